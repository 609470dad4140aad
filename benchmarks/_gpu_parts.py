"""The experiments of `gpu.py`: each measures cases in turns, in a process of its own, and writes its rows as they come.

python -m benchmarks._gpu_parts EXPERIMENT SETTINGS ROWS.jsonl
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch

import shardio
from benchmarks._resnet50 import resnet50
from benchmarks._results import in_round
from benchmarks.many_cores import Drop
from shardio.engines.factory import make_engine
from shardio.loader.batch.job import job_size
from shardio.loader.device import prefetcher
from shardio.loader.workers import workers

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
REPEATS = 64
"""How often an epoch has each sample: at an epoch's end, which is measured apart, all threads wait."""
ARRAYS = 16
"""Arrays per batch."""
NOTABLE = 0.05
"""The share by which a rate must differ for the table to say what to change."""

Step = Callable[[], float]
"""Takes a batch, and returns the seconds that it waited for it; 0 where that would say nothing."""


@dataclass(frozen=True)
class Settings:
    """Holds what all experiments share.

    Attributes:
        device: `"cuda"` or `"cpu"`.
        folder, dataset: the same photos as files and as a dataset.
        arrays: a dataset of arrays.
        threads: the numbers of threads to try, ascending.
        batch_size, size: images per batch, and the pixels of their sides.
        seconds, rounds: the duration of a turn, after half as long to warm up, and the number of turns.
    """

    device: str
    folder: str
    dataset: str
    arrays: str
    threads: Sequence[int]
    batch_size: int
    size: int
    seconds: float
    rounds: int

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def most(self) -> int:
        return self.threads[-1]


@dataclass(frozen=True)
class Case:
    """A row to be measured, as a ratio to the first case of its group.

    Attributes:
        what: the row's name.
        begin: starts, and returns a step.
        faster, slower: what to change if it is faster, or slower, than the first case.
    """

    what: str
    begin: Callable[[], Step]
    faster: str = ""
    slower: str = ""


Turn = tuple[float, float, float]
"""Steps per second, the share of the time that the consumer waited, and the processors kept busy."""
Row = dict[str, Any]


def in_turns(s: Settings, cases: Sequence[Case], amount: float | None = None, unit: str = "images/s") -> Iterator[Row]:
    """Measure cases in turns, and yield the rows of all so far after each turn; what fails is a row with the reason."""
    steps: dict[str, Step] = {}
    turns: dict[str, list[Turn]] = {}
    left = list(cases)
    for number in range(s.rounds):
        for case in in_round(left, number):
            try:
                step = steps[case.what] = steps.get(case.what) or case.begin()
                turns.setdefault(case.what, []).append(_turn(s, step))
            except Exception as error:  # noqa: BLE001  # the others go on
                left.remove(case)
                turns.pop(case.what, None)
                yield {"what": case.what, "failed": f"{type(error).__name__}: {error}"}
                continue
            for known in cases:
                if known.what in turns:
                    yield _row(known, turns[known.what], turns.get(cases[0].what, ()), amount or s.batch_size, unit)


def _turn(s: Settings, step: Step) -> Turn:
    warm = time.perf_counter() + s.seconds / 2
    step()  # builds what is built once
    while time.perf_counter() < warm:
        step()
    _sync(s.device)
    count, waited, busy, begun = 0, 0.0, time.process_time(), time.perf_counter()
    while not count or time.perf_counter() - begun < s.seconds:
        waited += step()
        count += 1
        if count % 8 == 0:  # keep the host from running far ahead, so that it waits for input only
            _sync(s.device)
    _sync(s.device)
    spent = time.perf_counter() - begun
    return count / spent, waited / spent, (time.process_time() - busy) / spent


def _row(case: Case, turns: Sequence[Turn], first: Sequence[Turn], amount: float, unit: str) -> Row:
    rate, waited, busy = map(median, zip(*turns, strict=True))
    row: Row = {"what": case.what, "rate": amount * rate, "unit": unit, "busy": busy}
    row |= {"waited": waited} if waited else {}
    pairs = list(zip(turns, first, strict=False))  # of the same round
    if not pairs:
        return row
    ratio = median(own[0] / other[0] for own, other in pairs)
    change = case.faster if ratio > 1 + NOTABLE else case.slower if ratio < 1 - NOTABLE else ""
    return row | {"ratio": ratio, "change": change}


def _sync(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


# Input: each function starts a stream of batches.


def endless(batches: Any) -> Iterator[Any]:
    """Repeat epochs without end."""
    return chain.from_iterable(repeat(batches))


def taking(start: Callable[..., Iterator[Any]], *given: Any, **options: Any) -> Callable[[], Step]:
    """Return what starts a stream, and itself returns a consumer that only takes its batches."""
    return lambda: untimed(partial(next, start(*given, **options)))


def untimed(work: Callable[[], Any]) -> Step:
    """A step of some work that waits for no input."""

    def step() -> float:
        work()
        return 0.0

    return step


def tasks_of(samples: int | None) -> Any:
    """Have Loaders that are made in this `with` block make so many samples per task; None: their choice."""

    def size(*given: Any, **options: Any) -> Any:
        own = job_size(*given, **options)
        most = samples or own.task_samples
        first, last = min(own.first_samples, most), min(own.last_samples, most)
        return replace(own, batches=1, task_samples=most, first_samples=first, last_samples=last) if samples else own

    return mock.patch.object(workers, "job_size", size)


def photos(s: Settings, engine: Any, *, dtype: Any = None, tasks: int | None = None, **options: Any) -> Iterator[Any]:
    """Batches of a Loader: random crops, flipped and normalized."""
    data = shardio.open(s.dataset)
    repeated = data.select(np.tile(np.arange(len(data)), REPEATS))
    normalize = shardio.Normalize(MEAN, STD, dtype=dtype or ("float16" if s.gpu else "float32"))
    crop: list[Any] = [shardio.RandomResizedCrop(s.size), shardio.RandomHorizontalFlip(), normalize]
    given: dict[str, Any] = {"threads": s.most, "device": s.device, "world": shardio.World()} | options
    with tasks_of(tasks):
        loader = shardio.Loader(repeated, s.batch_size, transforms=crop, engine=engine, channels_last=True, **given)
    return endless(loader)


def made_by(engine: Callable[..., Any]) -> Any:
    """Have Loaders that are made in this `with` block use this engine for whole batches."""
    return mock.patch.object(prefetcher, "make_engine", lambda name, recipe, **options: engine(recipe, **options))


def files(s: Settings, *, threads: int, tasks: int | None) -> Iterator[Any]:
    """Batches whose files are read for an engine, and dropped."""
    with made_by(lambda *_, **__: Drop()):
        return photos(replace(s, device="cpu"), "dali", threads=threads, tasks=tasks)


def two_decoders(s: Settings, **options: Any) -> Iterator[Any]:
    """Batches of a Loader with the engine of `_gpu_kernel`."""
    from benchmarks._gpu_kernel import TwoDecoders

    with made_by(TwoDecoders):
        return photos(s, "nvimgcodec", **options)


def dali_alone(s: Settings, threads: int) -> Iterator[Any]:
    """DALI as its manual shows it: its own file reader and random crops, with the same result as `photos`."""
    from nvidia.dali import fn, pipeline_def, types

    def pipeline() -> Any:
        encoded, labels = fn.readers.file(file_root=s.folder, shuffle_after_epoch=True, name="files")
        where = {"device": "mixed", "hw_decoder_load": 0.65} if s.gpu else {"device": "cpu"}
        images = fn.decoders.image_random_crop(
            encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], jpeg_fancy_upsampling=True, **where
        )
        images = fn.resize(images, size=(s.size, s.size), interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(),
            dtype=types.FLOAT16 if s.gpu else types.FLOAT,
            output_layout="HWC",
            mean=[255 * m for m in MEAN],
            std=[255 * d for d in STD],
        )
        return images, labels

    options = {"batch_size": s.batch_size, "num_threads": threads, "device_id": 0 if s.gpu else None}
    made = pipeline_def(**options, prefetch_queue_depth=3, seed=0)(pipeline)()
    made.build()
    while True:
        images, labels = made.run()
        images = torch.utils.dlpack.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)
        labels = torch.utils.dlpack.from_dlpack(labels.as_tensor())[:, 0].long()
        yield {"image": images, "label": labels.to(images.device)}


# Engines without a Loader: they are given the files and steps that a Loader has given, again and again.


Recording = tuple[Any, dict[str, Any], list[tuple[Any, Any, Any]]]
"""The recipe and options that a Loader made its engine with, and batches that it gave it: files, sizes and steps."""


def recorded(s: Settings, engine: str, count: int = 4) -> Recording:
    """Record some batches, with copies of their files."""
    made: list[tuple[Any, dict[str, Any]]] = []
    batches: list[tuple[Any, Any, Any]] = []

    class Recorder:
        ahead, reason = 1, ""
        end, check_process, close = Drop().end, Drop().check_process, Drop().close

        def __init__(self, recipe: Any, **options: Any) -> None:
            made.append((recipe, options))

        def begin(self, encoded: Any, sizes: Any, steps: Any) -> None:
            batches.append(([bytes(file) for file in encoded], sizes, steps))

    with made_by(Recorder):
        for _ in islice(photos(s, engine), count):
            pass
    return (*made[0], batches[:count])


def replaying(recording: Recording, make: Callable[..., Any], **options: Any) -> Step:
    """A step that an engine makes of recorded batches."""
    recipe, given, recorded_batches = recording
    engine, batches = make(recipe, **(given | options)), cycle(recorded_batches)
    for _ in range(engine.ahead):
        engine.begin(*next(batches))

    def step() -> None:
        engine.begin(*next(batches))
        _, failed = engine.end()
        if len(failed):
            raise RuntimeError(f"{len(failed)} images failed: {engine.reason}")

    return untimed(step)


# The experiments.


def host(s: Settings) -> Iterator[Row]:
    """The Loader's host side alone, by threads and task sizes: for an engine that makes nothing, and the CPU engine."""
    for threads in reversed(s.threads):
        sizes = [n for n in (16, 64, s.batch_size) if n <= s.batch_size and threads > 1]
        kinds: dict[str, Any] = {"files": files, "engine cpu": partial(photos, engine="cpu")}
        for what, start in kinds.items():
            cases = [
                Case(
                    f"{what}, {threads} threads" + (f", tasks of {n}" if n else ""),
                    taking(start, s, threads=threads, tasks=n),
                    faster=f"loader/batch/job.py: tasks of {n} on {threads} threads",
                )
                for n in (None, *sizes)
            ]
            yield from in_turns(s, cases)


def dali(s: Settings) -> Iterator[Row]:
    """DALI inside of shardio against DALI alone, and against the engine without a Loader."""
    alone = "the Loader or its feeding costs that: see the engine without a Loader"
    host_side = "the Loader's host side costs that: see files, by tasks"
    recording = recorded(s, "dali")
    for threads in dict.fromkeys((s.most, *(n for n in s.threads if n == 4))):
        ours, theirs = f"engine dali, {threads} threads", f"DALI alone, {threads} threads"
        replay = partial(replaying, recording, partial(make_engine, "dali"), threads=threads)
        cases = [
            Case(ours, taking(photos, s, "dali", threads=threads)),
            Case(theirs, taking(dali_alone, s, threads), faster=alone),
            Case(f"{ours}, without a Loader", replay, faster=host_side),
        ]
        for load in (0.4, 0.9) if s.gpu and threads == s.most else ():
            start = taking(photos, s, "dali", engine_options={"hw_decoder_load": load})
            cases.append(Case(f"{ours}, hw_decoder_load={load}", start, faster=f"HW_DECODER_LOAD={load}"))
        yield from in_turns(s, cases)


def train(s: Settings) -> Iterator[Row]:
    """ResNet-50 in bfloat16, channels_last, with each input against synthetic input."""
    torch.backends.cudnn.benchmark = True
    model = resnet50().to(s.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def synthetic() -> Iterator[Any]:
        image = torch.randn(s.batch_size, 3, s.size, s.size, device=s.device, dtype=torch.bfloat16)
        label = torch.zeros(s.batch_size, device=s.device).long()
        return repeat({"image": image.to(memory_format=torch.channels_last), "label": label})

    def training(start: Callable[[], Iterator[Any]]) -> Step:
        batches = start()

        def step() -> float:
            begun = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - begun
            with torch.autocast(torch.device(s.device).type, torch.bfloat16):
                loss = loss_of(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return waited

        return step

    inputs: dict[str, Callable[[], Iterator[Any]]] = {
        "synthetic": synthetic,
        **{f"engine {name}": partial(photos, s, name, dtype="bfloat16") for name in ("dali", "cpu", "nvimgcodec")},
        "two decoders and the kernel": partial(two_decoders, s, dtype="bfloat16"),
        "DALI alone": partial(dali_alone, s, s.most),
    }
    slower = "the input starves the GPU if it waited, and slows the GPU or the host's launches if not"
    cases = [Case(f"train, {name}", partial(training, start), slower=slower) for name, start in inputs.items()]
    yield from in_turns(replace(s, seconds=1.5 * s.seconds), cases)


def arrays(s: Settings) -> Iterator[Row]:
    """HDF5 arrays to the device against what could limit them: the host side, copies, tasks, epochs."""
    data = shardio.open(s.arrays)
    size = data[0]["array"].nbytes * ARRAYS

    def loading(repeats: int = REPEATS, tasks: int | None = None, device: str = s.device, **options: Any) -> Step:
        with tasks_of(tasks):
            repeated = data.select(np.tile(np.arange(len(data)), repeats))
            given: dict[str, Any] = {"threads": s.most, "device": device, "world": shardio.World()} | options
            return taking(lambda: endless(shardio.Loader(repeated, ARRAYS, **given)))()

    def copying(pin: bool) -> Step:
        host = cycle([torch.ones(size, dtype=torch.uint8, pin_memory=pin and s.gpu) for _ in range(3)])
        there = cycle([torch.empty(size, dtype=torch.uint8, device=s.device) for _ in range(3)])
        return untimed(lambda: next(there).copy_(next(host), non_blocking=True))

    job, host = "loader/batch/job.py: tasks of ", "shardio's copies: the host alone is faster"
    cases = [
        Case("Loader", loading),
        Case("Loader, the batches stay on the host", partial(loading, device="cpu"), faster=host),
        Case("copies of pinned memory", partial(copying, True), faster="room: see which row is nearest to the Loader"),
        Case("copies of pageable memory", partial(copying, False)),
        *(Case(f"Loader, tasks of {n}", partial(loading, tasks=n), faster=f"{job}{n}") for n in (1, 4, ARRAYS)),
        Case("Loader, prefetch=6", partial(loading, prefetch=6), faster="a lower MOST_AHEAD, and less memory"),
        Case("Loader, short epochs", partial(loading, repeats=1), slower="what an epoch's first and last steps cost"),
        Case("Loader, 4 threads", partial(loading, threads=4), faster="threads that take turns at the lock"),
    ]
    yield from in_turns(s, cases, size / 1e9, "GB/s")


def codec(s: Settings) -> Iterator[Row]:
    """nvImageCodec's engine by its parts, without a Loader."""
    from benchmarks._gpu_kernel import Decoder, TwoDecoders, fused_steps

    take = "engines/nvimgcodec.py: as in benchmarks/_gpu_kernel.py"
    recording = recipe, options, batches = recorded(s, "nvimgcodec")
    engines: dict[str, Any] = {
        "two decoders, images reused, the kernel": {},
        "two decoders, new images, the kernel": {"reuse": False},
        "two decoders, images reused, torch's operations": {"kernel": False},
        "one decoder on a thread, images reused, the kernel": {"decoders": 1},
        "four decoders, images reused, the kernel": {"decoders": 4},
    }
    encoded, sizes, steps = batches[0]
    fused = fused_steps(steps, sizes)
    whole = replace(fused, regions=np.concatenate((sizes * 0, sizes), axis=1))

    def part(name: str, region: Any = fused, **how: Any) -> Callable[[], Step]:
        given = options | {"reuse": False} | how
        return lambda: untimed(partial(getattr(Decoder(recipe, **given), name), encoded, region))

    parts = {
        "reading headers": part("streams"),
        "decoding regions": part("decode"),
        "decoding regions, images reused": part("decode", reuse=True),
        "decoding whole images": part("decode", whole),
    }
    loads = {f"decoding, hw_decoder_load={n}": part("decode", options={"hw_decoder_load": n}) for n in (0.65, 1.0)}
    cases = [
        Case("engine nvimgcodec without a Loader", partial(replaying, recording, partial(make_engine, "nvimgcodec"))),
        *(Case(name, partial(replaying, recording, TwoDecoders, **how), faster=take) for name, how in engines.items()),
        *(Case(f"part: {name}", begin) for name, begin in (parts | (loads if s.gpu else {})).items()),
        Case("Loader, engine nvimgcodec", taking(photos, s, "nvimgcodec")),
        Case("Loader, two decoders and the kernel", taking(two_decoders, s), faster=take),
    ]
    yield from in_turns(s, cases)


def kernel(s: Settings) -> Iterator[Row]:
    """The fused kernel against torch's operations: its pixels, and its rate."""
    from benchmarks._gpu_kernel import Decoder, fused_steps

    recipe, options, ((encoded, sizes, steps),) = recorded(s, "nvimgcodec", 1)
    decoder, fused = Decoder(recipe, **options), fused_steps(steps, sizes)
    images = decoder.decode(encoded, fused)
    by_torch, by_kernel = (partial(work, images, fused) for work in (decoder.by_torch, decoder.by_kernel))
    levels = 255 * torch.tensor(STD, device=s.device)[:, None, None]
    difference = float(((by_torch().float() - by_kernel().float()).abs() * levels).max())
    yield {"what": "largest difference of the kernel's pixels", "rate": difference, "unit": "of 255"}
    take = "engines/torch_steps.py: the kernel of benchmarks/_gpu_kernel.py"
    cases = [
        Case("torch's operations", lambda: untimed(by_torch)),
        Case("the kernel", lambda: untimed(by_kernel), faster=take),
    ]
    yield from in_turns(s, cases)


def tests(s: Settings) -> Iterator[Row]:
    """The tests of Loaders on a GPU, then all tests of engines with the GPU as the Loaders' device."""
    for path in ("tests/loader/test_gpu.py", "tests/engines") if s.gpu else ("tests/loader/test_gpu.py",):
        own = {} if path.endswith(".py") else {"SHARDIO_TEST_DEVICE": s.device}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
        said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
        yield {"what": path, "failed" if done.returncode else "change": said[-1].strip("= ")}


EXPERIMENTS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    each.__name__: each for each in (host, dali, train, arrays, codec, kernel, tests)
}


def main() -> None:
    """Run one experiment."""
    name, settings, rows = sys.argv[1:]
    with Path(rows).open("a") as file:
        for row in EXPERIMENTS[name](Settings(**json.loads(settings))):
            print(json.dumps(row), file=file, flush=True)
    sys.stdout.flush()
    os._exit(0)  # not to wait for the threads of so many Loaders and decoders


if __name__ == "__main__":
    main()

"""Measure what boxes cost a Loader, and how it compares with torchvision v2 and Albumentations in torch's DataLoader.

    python benchmarks/photos.py /tmp/photos-640 --megapixels 0.3072 --count 480
    python -m benchmarks.detection --photos /tmp/photos-640 --python /tmp/peers/bin/python --json detection.json

JPEGs of about 640 x 480 pixels with 20 boxes each become float32 images of 640 x 640 by RandomIoUCrop, a flip and a
resize, in batches of 16, on two threads or workers; everything is in the page cache. `without boxes` is the same
Loader of a dataset that has no boxes, which crops as the other one did: its images are compared with the other's, bit
for bit, before the first round. `--python` is an interpreter with torchvision 0.29.1, torchcodec, albumentations 2.0.8
and opencv-python-headless; their boxes are compared with the Loader's, given the same crops and flips.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import shardio
from benchmarks import _processes as processes
from benchmarks._results import finish, options, ratio, sayer, turns
from benchmarks.before_after import rates_of
from shardio.bench.usage import process_usage
from shardio.format import images
from shardio.transforms.random_generator import RandomGenerator
from shardio.transforms.steps import Crop, Sizes, Step

SIDE, BOXES, BATCH_SIZE, THREADS, EPOCHS = 640, 20, 16, 2, 2
"""EPOCHS is how many epochs a run has: the same in each, so that the crops are."""
PEERS = ("torchvision", "albumentations")


class RecordedCrop(shardio.RandomCrop):
    """Crop as recorded epochs did."""

    recorded: ClassVar[dict[int, NDArray[np.int32]]] = {}  # by epoch: (top, left, height, width) of each sample, [N, 4]

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        return (Crop(self.recorded[generator.epoch][generator.indices], inside=True),)

    def out_size(self, size: tuple[int, int] | None) -> None:
        return None


def prepare(photos: Path, work: Path) -> None:
    """Write the photos as files, as a dataset, and as a dataset with boxes."""
    (work / "files").mkdir()
    random, files = np.random.default_rng(0), sorted(photos.rglob("*.jpg"))
    kinds: dict[str, Any] = {
        "image": "image",
        "boxes": shardio.Field("array", "float32", (None, 4), role="boxes", on="image"),
        "labels": shardio.Field("array", "int64", (None,), per="boxes"),
    }
    all_boxes = []
    with (
        shardio.create(work / "plain", container="tar", fields={"image": "image"}) as plain,
        shardio.create(work / "boxes", container="tar", fields=kinds) as with_boxes,
    ):
        for number, file in enumerate(files):
            data = file.read_bytes()
            shutil.copy(file, work / "files" / f"{number:06d}.jpg")
            plain.append({"image": data})
            info = images.probe(data)
            height, width = info.height, info.width
            sides = random.uniform(16, 0.4 * min(height, width), (BOXES, 2))
            corners = random.uniform(0, 1, (BOXES, 2)) * ([width, height] - sides)
            boxes = np.concatenate((corners, corners + sides), axis=1).astype(np.float32)
            with_boxes.append({"image": data, "boxes": boxes, "labels": np.arange(BOXES)})
            all_boxes.append(boxes)
    np.save(work / "boxes.npy", np.stack(all_boxes))


def loader(dataset: Path, crop: list[Any], **given: Any) -> shardio.Loader:
    """A Loader with the settings of both."""
    image = [*crop, shardio.RandomHorizontalFlip(), shardio.Resize((SIDE, SIDE)), shardio.ToFloat()]
    transforms: dict[str, Any] = {"image": image}
    if len(crop) > 1:
        transforms["boxes"] = [shardio.Ragged()]
    return shardio.Loader(
        dataset, BATCH_SIZE, transforms=transforms, threads=THREADS, seed=0, world=shardio.World(), **given
    )


def record(with_boxes: Callable[..., shardio.Loader], work: Path) -> None:
    """Record the crops of all epochs, and the boxes of epoch 0."""
    count = len(np.load(work / "boxes.npy", mmap_mode="r"))
    found = with_boxes(geometry=True, tail="pad")
    for epoch in range(EPOCHS):
        crops, flips, sizes = np.zeros((count, 4), np.int32), np.zeros(count, np.bool_), np.zeros((count, 2), np.int32)
        targets: dict[int, dict[str, torch.Tensor]] = {}
        for batch in found:
            index = batch["index"].numpy()
            matrix = np.linalg.inv(batch["image_geometry"].numpy())
            ends = np.stack([(matrix @ [x, y, 1])[:, 1::-1] for x, y in ((0, 0), (SIDE, SIDE))])  # (y, x)
            low, high = np.rint(ends.min(axis=0)), np.rint(ends.max(axis=0))
            crops[index], flips[index] = np.concatenate((low, high - low), axis=1), matrix[:, 0, 0] < 0
            sizes[index] = batch["image_stored_size"].numpy()
            targets |= dict(zip(index.tolist(), shardio.to_torchvision(batch), strict=True))
        RecordedCrop.recorded[epoch] = crops
        if epoch == 0:
            ordered = [targets[index] for index in range(count)]
            np.savez(
                work / "recorded.npz",
                crops=crops,
                flips=flips,
                sizes=sizes,
                offsets=np.cumsum([0, *(len(target["boxes"]) for target in ordered)]),
                boxes=torch.cat([target["boxes"] for target in ordered]).numpy(),
                numbers=torch.cat([target["labels"] for target in ordered]).numpy(),
            )


def run(one: shardio.Loader) -> tuple[float, float]:
    """Images per second, and per second of processor time, over the recorded epochs."""
    one.set_epoch(0)
    begun, used, images = time.perf_counter(), time.process_time(), 0
    for _ in range(EPOCHS):
        images += sum(len(batch["index"]) for batch in one)
    return images / (time.perf_counter() - begun), images / (time.process_time() - used)


def run_peer(ask: Callable[[str], float], peer: str) -> tuple[float, float]:
    """The same of a peer, whose processes are those of `ask`."""
    pid = int(ask("pid"))
    begun, used = time.perf_counter(), sum(process_usage(pid).cpu.values())
    rate = ask(peer)
    return rate, rate * (time.perf_counter() - begun) / (sum(process_usage(pid).cpu.values()) - used)


def versions(python: Path) -> dict[str, str]:
    """The versions of the packages that the peers use."""
    names = ["torch", "torchvision", "torchcodec", "albumentations", "opencv-python-headless"]
    code = f"from importlib.metadata import version; import json; print(json.dumps({{n: version(n) for n in {names}}}))"
    found: dict[str, str] = json.loads(processes.run([str(python), "-c", code]))
    return found


def main() -> None:
    """Measure, print and write the result."""
    parser = options(__doc__, photos=True)
    parser.add_argument("--python", type=Path, help="an interpreter with torchvision, torchcodec and albumentations")
    args = parser.parse_args()
    say = sayer()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        work = Path(folder)
        prepare(args.photos, work)
        with_boxes = partial(loader, work / "boxes", [shardio.RandomIoUCrop(), shardio.SanitizeBoundingBoxes()])
        record(with_boxes, work)
        sides = {"boxes": with_boxes(), "without boxes": loader(work / "plain", [RecordedCrop(SIDE)])}
        for one, other in zip(*sides.values(), strict=True):  # warms up, too
            if not torch.equal(one["image"], other["image"]):
                raise RuntimeError("the Loader without boxes has made other images")
        say("both Loaders make the same images")
        runs: dict[str, Callable[[], tuple[float, float]]] = {name: partial(run, side) for name, side in sides.items()}
        apart, peers = {}, {}
        if args.python is not None:
            command = [str(args.python), str(Path(__file__).with_name("_run_detection.py")), str(work)]
            peers = versions(args.python)
            environ = os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1", "CUDA_VISIBLE_DEVICES": ""}
            ask = started.enter_context(rates_of(command, work, environ))
            apart = {name: ask(f"{name}-apart") for name in PEERS}
            say(f"boxes of the same crops and flips are apart by pixels: {apart}")
            if apart["torchvision"] or apart["albumentations"] > 1e-3:
                raise RuntimeError("the sides deliver other boxes")
            runs |= {name: partial(run_peer, ask, name) for name in PEERS}
        figures = turns(runs, args.rounds)
    by = ({name: [each[kind] for each in values] for name, values in figures.items()} for kind in (0, 1))
    result = {
        what: {
            "images per second": {name: round(median(values), 1) for name, values in rates.items()},
            "of the rate without boxes": round(ratio(rates["boxes"], rates["without boxes"]), 3),
            "times the rate of": {name: round(ratio(rates["boxes"], rates[name]), 2) for name in apart},
        }
        for what, rates in zip(("by the clock", "by processor time"), by, strict=True)
    }
    settings = {"side": SIDE, "boxes": BOXES, "batch": BATCH_SIZE, "threads": THREADS, "rounds": args.rounds}
    finish({"benchmark": "detection", **settings, "boxes apart, pixels": apart, **result, "peers": peers}, args.json)


if __name__ == "__main__":
    main()

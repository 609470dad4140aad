"""Batch engines deliver the CPU engine's results in its order for any images."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import CMYK_JPEG, encode, jpeg, of_many_scans, png, spoiled, webp
from _cli import python
from _jobs import Job, samples

import shardio
from shardio import World
from shardio.engines.factory import choose_engine
from shardio.engines.jpeg_headers import are_plain_jpegs
from shardio.errors import (
    BadSample,
    ConfigError,
    EngineWarning,
    MissingDependency,
    PipelineClosed,
    TooManyBad,
)
from shardio.loader.device.copier import DeviceCopier
from shardio.transforms import Transform
from shardio.transforms.recipe import Recipe

WHOLE = ["dali", "nvimgcodec"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = [shardio.RandomResizedCrop(32), shardio.RandomHorizontalFlip()]


@cache
def photo(number: int, progressive: bool = False) -> bytes:
    """A synthetic JPEG with gradients, edges and noise, of about 120 x 160 pixels."""
    random = np.random.default_rng(number)
    height, width = 100 + number % 40, 140 + number % 50
    y, x = np.mgrid[0:height, 0:width] / 100
    planes = [127 + 120 * np.sin(a * x + b * y + c) for a, b, c in random.uniform(0, 9, (3, 3))]
    image = np.clip(np.stack(planes, axis=2) + random.integers(-9, 9, (height, width, 3)), 0, 255).astype(np.uint8)
    cv2.circle(image, (width // 2, height // 3), 25, random.integers(0, 256, 3).tolist(), -1)
    return encode("jpg", image, cv2.IMWRITE_JPEG_QUALITY, 90, cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive))


def dataset(images: Sequence[bytes], channels: int = 3) -> shardio.Dataset:
    rows = [{"image": image, "label": number + 1, "key": f"k{number}"} for number, image in enumerate(images)]
    fields = {"image": shardio.Field("image", channels=channels), "label": shardio.Field("scalar", "int64")}
    return shardio.from_samples(rows, fields=fields | {"key": shardio.Field("text")}, shard_samples=11)


def load(data: shardio.Dataset, engine: str, batch_size: int = 8, **options: Any) -> shardio.Loader:
    given = {"transforms": CROP, "world": World(), "threads": 2, "seed": 5}
    return shardio.Loader(data, batch_size, engine=engine, **(given | options))


def assert_alike(ours: Iterable[dict[str, Any]], theirs: Iterable[dict[str, Any]]) -> None:
    """Fail unless both deliver the same samples, with pixels within 2 of 255 in the mean of each batch."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() & {"index", "label", "valid"}:
            assert one[name].tolist() == other[name].tolist()
        assert one["key"] == other["key"]
        assert one["image"].shape == other["image"].shape
        assert (one["image"].double() - other["image"].double()).abs().mean() < 2


TRANSFORMS: dict[str, list[Transform]] = {
    "train": CROP,
    "no antialias": [shardio.RandomResizedCrop(48, antialias=False)],
    "bicubic": [shardio.RandomResizedCrop(48, interpolation="bicubic")],
    "validate": [shardio.Resize(64), shardio.CenterCrop(56)],
    "border": [shardio.CenterCrop(150)],
    "random crop": [shardio.RandomCrop(90, padding=20), shardio.RandomHorizontalFlip()],
    "rotate, then crop": [shardio.RandomRotation(20, "bilinear"), shardio.RandomCrop(64)],
    "canvas": [shardio.RandomZoomOut((9, 99, 200)), shardio.RandomVerticalFlip(), shardio.CenterCrop(60)],
    "scales": [shardio.RandomVerticalFlip(), shardio.ScaleJitter(90), shardio.RandomCrop(48)],
    "twice": [shardio.RandomResizedCrop(64), shardio.RandomHorizontalFlip(), shardio.Resize((40, 50))],
    "contrastive": [
        shardio.RandomResizedCrop(48),
        shardio.RandomHorizontalFlip(),
        shardio.RandomApply([shardio.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        shardio.RandomGrayscale(0.2),
        shardio.GaussianBlur(5),
    ],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("engine", WHOLE)
def test_same_samples_crops_and_pixels(engine: str, name: str) -> None:
    """Over 64 images indices and labels are equal, and each batch's pixels are within 2 of 255 in the mean."""
    data = dataset([photo(number) for number in range(64)])
    transforms = TRANSFORMS[name]
    made = list(load(data, engine, transforms=transforms))
    assert {batch["image"].dtype for batch in made} == {torch.uint8}
    assert_alike(load(data, "cpu", transforms=transforms), made)


@pytest.mark.parametrize(("dtype", "channels_last"), [("float32", False), ("float16", True), ("bfloat16", True)])
@pytest.mark.parametrize("engine", ["cpu", *WHOLE])
def test_numbers_of_every_kind(engine: str, dtype: str, channels_last: bool) -> None:
    """Floats are [B, C, H, W] in the requested precision and layout, normalized and erased as on the CPU."""
    data = dataset([photo(number) for number in range(16)])
    erase = shardio.RandomErasing(1.0, value=(0.5, -1.0, 2.0))
    transforms = [*CROP, shardio.Normalize(MEAN, STD, dtype=dtype), erase]  # type: ignore[arg-type]
    plain_bytes = list(load(data, "cpu"))
    for bytes_of, batch in zip(
        plain_bytes, load(data, engine, transforms=transforms, channels_last=channels_last), strict=True
    ):
        image = batch["image"]
        assert image.dtype == getattr(torch, dtype)
        assert image.shape == (8, 3, 32, 32)
        assert image.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        wanted = (bytes_of["image"].permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(
            STD
        ).view(3, 1, 1)
        erased = (image == torch.tensor((0.5, -1.0, 2.0)).view(3, 1, 1)).all(dim=1, keepdim=True)
        shares = erased.float().mean(dim=(1, 2, 3))
        assert shares.min() > 0.01
        assert shares.max() < 0.5
        assert ((image.float() - wanted).abs() * ~erased).mean() < 0.04


ODD = {
    "cmyk": CMYK_JPEG,
    "png": png(30, 40),
    "16-bit png": png(30, 40, dtype=np.uint16),
    "rgba png": png(30, 40, 4),
    "webp": webp(30, 40),
    "grey jpeg": jpeg(30, 40, 1),
    "progressive": photo(3, progressive=True),
    "small": jpeg(1, 1),
}


@pytest.mark.parametrize("engine", WHOLE)
def test_odd_images_come_in_their_places(engine: str) -> None:
    """The CPU engine processes images that a batch engine rejects: batches are complete, in order, of one layout."""
    images = [photo(number) for number in range(32)]
    for place, odd in zip(range(1, 24, 3), ODD.values(), strict=True):
        images[place] = odd
    images[24:28] = [png(30, 40, seed=number) for number in range(4)]  # a batch of nothing else
    options = {"transforms": [*CROP, shardio.ToFloat()], "channels_last": True, "shuffle": None}
    loaders = (load(dataset(images), name, 4, **options) for name in ("cpu", engine))
    for ours, theirs in zip(*loaders, strict=True):
        assert ours["index"].tolist() == theirs["index"].tolist()
        assert theirs["image"].is_contiguous(memory_format=torch.channels_last)
        assert (ours["image"] - theirs["image"]).abs().mean(dim=(1, 2, 3)).max() < 4 / 255


def broken_png(number: int) -> bytes:
    """A PNG whose pixels do not decompress, so that the CPU engine rejects it, too."""
    whole = bytearray(png(30, 40, seed=number))
    middle = whole.index(b"IDAT") + 8
    whole[middle : middle + 40] = bytes(40)
    return bytes(whole)


@pytest.mark.parametrize("broken", [lambda number: spoiled(photo(number)), broken_png], ids=["jpeg", "png"])
@pytest.mark.parametrize("action", ["raise", "replace", "mask"])
@pytest.mark.parametrize("engine", WHOLE)
def test_bad_images_do_not_end_the_pipeline(engine: str, action: str, broken: Callable[[int], bytes]) -> None:
    """Bad images are raised with their position, replaced or masked within the budget, and later batches follow."""
    bad = [7, 22]
    data = dataset([broken(number) if number in bad else photo(number) for number in range(40)])
    loader = load(data, engine, on_bad_sample=action, max_bad=0.5)
    if action == "raise":
        with pytest.raises(BadSample, match=r"sample (7|22).*field 'image'"):
            list(loader)
        return
    with pytest.raises(TooManyBad):
        list(load(data, engine, on_bad_sample=action, max_bad=1))
    wanted = load(data, "cpu", on_bad_sample=action, max_bad=0.5)
    for _ in range(2):
        assert_alike(wanted, loader)
    assert [one.location.index for one in loader.quarantine()] == [one.location.index for one in wanted.quarantine()]
    assert sorted(one.location.index for one in loader.quarantine()) == sorted(bad * 2)


@pytest.mark.parametrize("engine", WHOLE)
def test_good_images_beside_bad_ones_are_the_engines(engine: str) -> None:
    """An image that the host finds bad changes no neighbour: these still come from the engine that was asked for."""
    images = [photo(number) for number in range(16)]
    (clean,) = load(dataset(images), engine, 16, shuffle=None)
    images[3], images[7] = broken_png(3), broken_png(7)
    (dirty,) = load(dataset(images), engine, 16, shuffle=None, on_bad_sample="mask", max_bad=2)
    good = [number for number in range(16) if number not in (3, 7)]
    assert dirty["valid"].tolist() == [number in good for number in range(16)]
    assert torch.equal(dirty["image"][good], clean["image"][good])


@pytest.mark.parametrize("engine", WHOLE)
def test_two_views_of_each_image(engine: str) -> None:
    """One field under two names: each view is the CPU engine's, of bad images and those that the engine refuses too."""
    images = [photo(number) for number in range(32)]
    images[3], images[5], images[14] = png(30, 40), photo(5, progressive=True), spoiled(photo(14))
    transforms = [*CROP, shardio.Normalize(MEAN, STD), shardio.RandomErasing(0.5)]
    options = {
        "fields": {"a": "image", "b": "image", "label": "label"},
        "transforms": {"a": transforms, "b": transforms},
    }
    options |= {"on_bad_sample": "mask", "max_bad": 0.1}
    for ours, theirs in zip(*(load(dataset(images), name, **options) for name in ("cpu", engine)), strict=True):
        for name in ("label", "valid"):
            assert ours[name].tolist() == theirs[name].tolist()
        for name in ("a", "b"):
            assert (ours[name] - theirs[name]).abs().mean() < 0.04
        assert torch.equal((theirs["a"] != theirs["b"]).any(dim=(1, 2, 3)), theirs["valid"])


@pytest.mark.parametrize("engine", WHOLE)
def test_resumed_on_another_world(engine: str) -> None:
    """A state resumes with another engine, world and batch size."""
    data = dataset([photo(number) for number in range(64)])
    first = Job(data, 2, 8, transforms=CROP, engine=engine)
    state = first.run(2)
    for other in (engine, "cpu"):
        second = Job(data, 1, 4, state, transforms=CROP, engine=other)
        second.run()
        assert sorted(first.samples + second.samples) == list(range(64))


@pytest.mark.parametrize("engine", WHOLE)
def test_batches_are_yours_and_epochs_go_on(engine: str) -> None:
    """Batches that are kept do not change, and a loop left early does not affect the next one."""
    data = dataset([photo(number) for number in range(48)])
    loader = load(data, engine)
    kept = list(loader)
    copies = [batch["image"].clone() for batch in kept]
    for _ in range(2):
        left = iter(loader)
        for _ in range(2):  # more than a peek, so that the epoch ends
            next(left)
        del left
    third = list(loader)
    assert all(torch.equal(batch["image"], copy) for batch, copy in zip(kept, copies, strict=True))
    wanted = load(data, "cpu")
    wanted.set_epoch(3)
    assert_alike(wanted, third)


@pytest.mark.parametrize("engine", WHOLE)
def test_padded_tails_grey_fields_and_two_images(engine: str) -> None:
    """Each image field has its own engine, grey fields have one channel, and padding is marked."""
    rows = [{"left": photo(n), "right": jpeg(40, 50, 1, seed=n), "label": n} for n in range(13)]
    fields = {
        "left": shardio.Field("image", channels=3),
        "right": shardio.Field("image", channels=1),
        "label": shardio.Field("scalar", "int64"),
    }
    data = shardio.from_samples(rows, fields=fields)
    transforms = {"left": CROP, "right": [shardio.Resize((20, 30)), shardio.ColorJitter(0.3, 0.3, 0.3, 0.3)]}
    options = {"transforms": transforms, "tail": "pad"}
    for ours, theirs in zip(load(data, "cpu", 5, **options), load(data, engine, 5, **options), strict=True):
        assert ours["valid"].tolist() == theirs["valid"].tolist()
        for name, shape in (("left", (5, 32, 32, 3)), ("right", (5, 20, 30, 1))):
            assert theirs[name].shape == shape
            assert (ours[name].double() - theirs[name].double()).abs().mean() < 2


def test_what_an_engine_cannot_do_is_said() -> None:
    """The loader refuses an unsupported engine before it starts anything; `auto` uses the CPU engine."""
    data = dataset([photo(number) for number in range(8)])
    for options, message in (
        ({"map": dict}, "does not support map"),
        ({"isolate": True}, "does not support isolate"),
        ({"transforms": [shardio.Resize(64)]}, "images of different sizes"),
        ({"engine_options": {"hw_decoder_load": 2}}, r"hw_decoder_load must be in \[0, 1\], got 2"),
        ({"engine_options": {"threads": 2}}, "has the option hw_decoder_load, not 'threads'"),
    ):
        for engine in WHOLE:
            with pytest.raises(ConfigError, match=message):
                load(data, engine, **options)
    with pytest.raises(ConfigError, match="engine must be one of auto, cpu, dali, nvimgcodec, got 'gpu'"):
        load(data, "gpu")
    with pytest.raises(ConfigError, match="the engine 'cpu' takes no engine_options"):
        load(data, "cpu", engine_options={"hw_decoder_load": 0.5})
    assert len(list(load(data, "auto", transforms=[shardio.Resize(64)]))) == 1


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` prefers DALI on a GPU, then nvImageCodec, and uses the CPU engine where these lack support."""
    recipe = Recipe.of(CROP, channels=3, size=None)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    there = {"nvidia.dali", "nvidia.nvimgcodec"}
    monkeypatch.setattr("shardio.engines.factory.find_spec", lambda name: name if name in there else None)
    assert choose_engine("auto", gpu, [recipe], decode="fast", why_not=None) == "dali"
    assert choose_engine("auto", gpu, [recipe], decode="exact", why_not="map") == "cpu"
    assert choose_engine("auto", gpu, [], decode="exact", why_not=None) == "cpu"
    boxes = Recipe.of([shardio.Resize((8, 8), interpolation="box")], channels=3, size=None)
    assert choose_engine("auto", gpu, [recipe, boxes], decode="fast", why_not=None) == "nvimgcodec"  # DALI has no box
    assert choose_engine("auto", cpu, [recipe], decode="exact", why_not=None) == "cpu"
    there.remove("nvidia.dali")
    with pytest.warns(EngineWarning, match="'nvimgcodec', chosen for the GPU, decodes other pixels than Pillow"):
        assert choose_engine("auto", gpu, [recipe], decode="exact", why_not=None) == "nvimgcodec"
    there.clear()
    assert choose_engine("auto", gpu, [recipe], decode="exact", why_not=None) == "cpu"


def test_dali_is_imported_only_where_it_is_used() -> None:
    """Neither shardio nor the CPU engine imports DALI; without it, an engine says how to install it."""
    code = """
import sys, shardio
sys.modules["nvidia.dali"] = None
rows = [{"image": bytes.fromhex("JPEG")} for _ in range(4)]
data = shardio.from_samples(rows)
crop = [shardio.RandomResizedCrop(8)]
for engine in ("auto", "cpu"):
    assert len(list(shardio.Loader(data, 2, transforms=crop, engine=engine))) == 2
assert not any(name.startswith("nvidia.dali") for name in sys.modules if name != "nvidia.dali")
try:
    shardio.Loader(data, 2, transforms=crop, engine="dali")
except shardio.ShardioError as error:
    print(type(error).__name__, error)
""".replace("JPEG", jpeg(20, 20).hex())
    done = python("-c", code)
    assert done.stdout.startswith(f"{MissingDependency.__name__} the engine 'dali' needs nvidia.dali: pip install")


def changed(image: bytes, places: dict[int, int]) -> bytes:
    """A JPEG with other bytes at some places of its frame header."""
    made, frame = bytearray(image), image.index(b"\xff\xc0")
    for place, value in places.items():
        made[frame + place] = value
    return bytes(made)


WHOLE_JPEG = jpeg(30, 40)
PLAIN = [
    (photo(1), True),
    (photo(1, progressive=True), True),
    (jpeg(30, 40, 1), True),
    (b"", False),
    (b"\xff\xd8\xff", False),
    (png(30, 40), False),
    (CMYK_JPEG, False),
    (photo(1)[:-30], False),  # cut short
    (photo(1) + b"\0" * 9, True),  # bytes after the end are ignored
    (photo(1)[:400], False),
    (of_many_scans(64, 101), False),
    (of_many_scans(64, 100), True),
]
# Only the compiled part tells RGB, by component names or by Adobe's marker, and 12 bits.
ODD_JPEGS = [
    (changed(WHOLE_JPEG, {10: ord("R"), 13: ord("G"), 16: ord("B")}), False),
    (changed(WHOLE_JPEG, {4: 12}), False),
    (WHOLE_JPEG[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00" + b"\x00" + WHOLE_JPEG[2:], False),
    (WHOLE_JPEG, True),
]


def test_headers_tell_what_is_plain(part: str) -> None:
    """Complete grey and YCbCr JPEGs of the stored size count as plain, in the compiled part and in Python."""
    files = PLAIN + ODD_JPEGS * (part == "compiled")
    sizes = [cv2.imdecode(np.frombuffer(d, np.uint8), -1).shape[:2] if ok else (30, 40) for d, ok in files]
    sizes[10] = 64, 64
    assert are_plain_jpegs([d for d, _ in files], np.array(sizes, np.int32)).tolist() == [ok for _, ok in files]
    assert not are_plain_jpegs([photo(1)], np.array([[1, 2]], np.int32))[0]  # not of the stored size


END = """
import os, sys
import shardio
from test_engines import dataset, load, photo

def rows(loader):
    return [batch["index"].tolist() for batch in loader]

data = dataset([photo(number) for number in range(24)])
loader = load(data, sys.argv[1], 4)
batches = iter(loader)
next(batches)
if sys.argv[2] == "held":
    sys.exit()
if sys.argv[2] == "held by an error":
    def ends(held):
        raise RuntimeError("enough")
    ends(batches)
child = os.fork()
if not child:  # what the engine's libraries had begun stays with the parent: no hang, but a word
    try:
        list(loader)
    except shardio.ShardioError as error:
        assert "was in use before this process was forked" in str(error)
        os._exit(0 if sorted(sum(rows(load(data, "cpu", 4)), [])) == list(range(24)) else 3)
    os._exit(4)
left = rows(batches)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert len(left) == 5, left
next(iter(loader))  # and the process ends in the middle of an epoch
sys.exit(code)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "how"),
    [(WHOLE[0], "held by an error"), (WHOLE[1], "held"), *((engine, "forked") for engine in WHOLE)],
)
def test_processes_that_end_in_the_middle(engine: str, how: str) -> None:
    """A process exits mid-epoch without output, whatever keeps the iterator; a forked child is told to load anew."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command, environment = [sys.executable, "-c", END, engine, how], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == (how == "held by an error"), done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("Traceback") == (how == "held by an error")


class Refusing:
    """An engine that rejects every image."""

    ahead = 1
    reason = "DALI: out of\n  memory"

    def __init__(self, *_: Any, **__: Any) -> None:
        self.begun: list[int] = []

    def begin(self, encoded: Sequence[bytes], sizes: Any, steps: Any) -> None:
        self.begun.append(len(encoded))

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        return torch.empty(0), range(self.begun.pop(0))

    def check_process(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_engine_that_fails_by_itself_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the engine fails on good images, all batches are delivered, and a warning gives the engine's error."""
    monkeypatch.setattr("shardio.engines.dali.DaliEngine", Refusing)
    data = dataset([photo(number) for number in range(16)])
    with pytest.warns(
        EngineWarning,
        match="field 'image': the engine refused 8 good images, which the CPU engine made.*DALI: out of memory",
    ):
        found = list(load(data, "dali"))
    assert_alike(load(data, "cpu"), found)


def test_a_layout_survives_another_process() -> None:
    """Worker processes deliver channels-last floats as threads do, in half precision, too."""
    data = dataset([photo(number) for number in range(8)])
    transforms = [*CROP, shardio.Normalize(MEAN, STD, dtype="bfloat16")]
    options = {"transforms": transforms, "channels_last": True}
    isolated = load(data, "cpu", isolate=True, threads=1, **options)
    for ours, theirs in zip(load(data, "cpu", **options), isolated, strict=True):
        assert torch.equal(ours["image"], theirs["image"])
        assert theirs["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("engine", WHOLE)
def test_a_failure_in_the_middle_mixes_nothing_up(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt while a batch is sent, no batch of any loop has another batch's images."""
    data = dataset([photo(number) for number in range(40)])
    loader = load(data, engine)
    mark, calls = DeviceCopier.mark, 0

    def interrupted(self: DeviceCopier) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return mark(self)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceCopier, "mark", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    wanted = load(data, "cpu")
    wanted.set_epoch(loader.epoch + bool(loader.state_dict()["position"]))
    assert_alike(wanted, loader)


@pytest.mark.parametrize("engine", WHOLE)
def test_an_older_loop_takes_nothing_of_a_newer_one(engine: str) -> None:
    """A newer loop ends the older one with an error and delivers its whole epoch."""
    loader = load(dataset([photo(number) for number in range(32)]), engine, 4)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    first = next(newer)
    with pytest.raises(PipelineClosed, match="newer loop"):
        next(older)
    assert sorted(samples([first, *newer])) == list(range(32))


@pytest.mark.parametrize("engine", WHOLE)
def test_filters_wider_than_the_image(engine: str) -> None:
    """Borders are mirrored repeatedly if needed, and a single pixel stays itself."""
    data = dataset([jpeg(1, 1), *(photo(number) for number in range(7))])
    transforms = [shardio.RandomResizedCrop(8), shardio.GaussianBlur(33, sigma=9.0)]
    assert_alike(*(load(data, name, transforms=transforms) for name in ("cpu", engine)))

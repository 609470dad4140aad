"""What `fuzz.py` does with damaged files, and what must hold: right values or an error in words, and nothing else.

A use reads `Place.folder`, may write to `Place.out`, and raises Finding if a rule is broken. It lets shardio's errors
through: that damage is refused is as good as that it does no harm.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _fuzz_targets import COUNT, Target, convert_source, convert_to_hdf5, converter, index_source, labels, train

import shardio
from shardio.conversion.adopt import adopt
from shardio.errors import PipelineStalled, ShardioError, WorkerDied
from shardio.system import helper_process

BATCH = 5
LIMIT = 10.0
"""Seconds that a loader waits for a batch."""
READ_LIMIT = 0.5
"""Seconds that libhdf5 may take for a value. Damage may hold it for each of the few values of a file."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"hdf5": {"read_timeout": READ_LIMIT}}
"""The options of converters."""
CANARIES = (b"canary-7f3a9c", b"root:x:0:0")
"""What stands in files that no data may lead to."""


class Finding(Exception):
    """A rule is broken; `kind` says which one."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Place:
    """Where a round happens.

    Attributes:
        target: what they are.
        folder: the damaged files.
        out: a path for output, which does not exist yet.
        whole: the same files undamaged.
        changed: the paths of the damaged files within the folder.
        ways: the ways in which they were damaged.
    """

    target: Target
    folder: Path
    out: Path
    whole: Path
    changed: frozenset[str]
    ways: frozenset[str]

    @property
    def description(self) -> bool:
        """Whether the manifest was damaged, and may describe another dataset now."""
        return any(name.startswith("shardio.") for name in self.changed)


def raw(value: Any) -> bytes:
    """A value's bytes, to compare."""
    if hasattr(value, "numpy"):  # a tensor
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return (
        value.encode(errors="surrogatepass") if isinstance(value, str) else json.dumps(value, sort_keys=True).encode()
    )


def check_origin(place: Place, values: Iterable[bytes]) -> None:
    """Raise Finding if a value comes from a file that is none of the dataset's."""
    if not place.target.trusted:
        for value in values:
            for canary in CANARIES:
                if canary in value:
                    raise Finding("other file", f"delivered {value[:60]!r}")


def loader(path: Path, **options: Any) -> shardio.Loader:
    """A loader that masks bad samples."""
    settings: dict[str, Any] = {"on_bad_sample": "mask", "max_bad": 10_000_000, "timeout": LIMIT, "tail": "pad"}
    settings |= {"threads": 2, "seed": 3, "world": shardio.World(), "verify": True}
    dataset = shardio.open(path)
    if images := {name for name, field in dataset.fields.items() if field.kind == "image"} & {
        *options.get("fields", dataset.fields)
    }:
        settings["transforms"] = {name: [shardio.RandomResizedCrop(8)] for name in images}
    if dataset.fields.get("video") == shardio.Field("video"):
        settings["transforms"] = {"video": [shardio.RandomClip(4, stride=3, short="pad"), shardio.Resize(16)]}
    return shardio.Loader(dataset, BATCH, **settings | options)


def epoch(batches: shardio.Loader) -> Iterator[tuple[int, bool, dict[str, bytes]]]:
    """Number, validity and values of each sample that a loop delivers, without padding."""
    wanted = [
        *shardio.Plan(len(batches.dataset), seed=3, epoch=batches.epoch).indices(0, len(batches.dataset)).tolist()
    ]
    came = 0
    for batch in batches:
        valid = batch["valid"].tolist()
        for row, index in enumerate(batch["index"].tolist()):
            if came < len(wanted):
                if index != wanted[came]:
                    raise Finding("order", f"position {came} delivered sample {index}, not {wanted[came]}")
                names = [name for name in batch if name not in ("index", "valid")]
                yield index, valid[row], {name: raw(batch[name][row]) for name in names}
            came += 1
    if came < len(wanted):
        raise Finding("order", f"{came} of {len(wanted)} samples were delivered")


@cache
def originals(folder: Path) -> Mapping[int, Mapping[str, bytes]]:
    """What a loader delivers of the undamaged dataset."""
    return {index: values for index, _, values in epoch(loader(folder))}


def stored(folder: Path) -> frozenset[bytes]:
    """All values of a dataset."""
    dataset = shardio.open(folder)
    values = frozenset(raw(value) for number in range(len(dataset)) for value in dataset[number].values())
    dataset.close()
    return values


stored_once = cache(stored)
"""All values of an undamaged dataset."""


def found_by_verify(folder: Path) -> bool:
    """Whether `verify` reports something."""
    try:
        return bool(shardio.verify(folder, workers=1).count)
    except ShardioError:
        return True


def load(place: Place) -> None:
    """An epoch with `verify=True`: each sample is right, or marked."""
    wanted = originals(place.whole)
    for index, valid, values in epoch(loader(place.folder)):
        check_origin(place, values.values())
        if not valid or values == wanted.get(index):
            continue
        # Another dataset, or another sample with its checksum: the checksums of samples cannot tell, those of files do.
        consistent = place.description or values in wanted.values()
        if not (consistent and found_by_verify(place.folder)):
            differing = {name: value[:40] for name, value in values.items() if wanted.get(index, {}).get(name) != value}
            raise Finding("wrong value", f"sample {index} is delivered with {differing}")


def load_again(place: Place) -> None:
    """Epochs without checksums, by replacement, in blocks, with decoded fields left out."""
    for options in ({"on_bad_sample": "replace", "verify": False}, {"shuffle": "block", "block": 3, "window": 2}):
        batches = loader(place.folder, **options)
        for batch in batches:
            check_origin(place, (raw(value) for name in batch for value in batch[name]))
        if batches.epoch != 1:
            raise Finding("order", "the epoch did not end")


def read(place: Place) -> None:
    """Single reads of every sample, which may fail one by one."""
    dataset = shardio.open(place.folder)
    for number in range(min(len(dataset), 100)):
        with contextlib.suppress(ShardioError):
            check_origin(place, map(raw, dataset[number].values()))
    for name in dataset.fields:
        with contextlib.suppress(ShardioError):
            check_origin(place, map(raw, dataset.read(range(min(len(dataset), 100)), [name])[name]))
    try:
        dataset._repr_html_()
    except Exception as error:  # which a notebook would show instead of the dataset
        raise Finding("repr", f"{type(error).__name__}: {error}") from error
    dataset.close()


def find(place: Place) -> None:
    """Keys are found where they are; a changed index with a right checksum may find fewer of them."""
    keys = shardio.open(place.whole).read(range(COUNT), ["key"])["key"]
    found = shardio.open(place.folder).find([*keys, "none"]).tolist()
    right = [*range(COUNT), -1]
    fewer = all(number in (-1, each) for number, each in zip(found, right, strict=True))
    if found != right and not (fewer and "any_array_index" in place.ways):
        raise Finding("wrong value", f"keys are found at {found}")


def verify(place: Place) -> None:
    """Verification finds every change of a shard."""
    shards = [name for name in place.changed if not name.startswith("shardio.")]
    same = all(
        (place.folder / name).is_file() and same_bytes(place.folder / name, place.whole / name) for name in shards
    )
    if not shardio.verify(place.folder).count and not same:
        raise Finding("not found", f"verify finds nothing, although {', '.join(shards)} changed")


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files are equal."""
    return other.is_file() and one.read_bytes() == other.read_bytes()


def verify_deep(place: Place) -> None:
    """Verification that reads every sample."""
    check_origin(
        place, (str(problem).encode(errors="replace") for problem in shardio.verify(place.folder, deep=True).problems)
    )


def repair(place: Place) -> None:
    """Repair in place, and read what that makes."""
    shardio.repair(place.folder)
    read(place)


def stats(place: Place) -> None:
    """Statistics of every sample."""
    shardio.stats(place.folder)


def reshard(place: Place) -> None:
    """Copy what is good: values are those of the undamaged dataset."""
    shardio.convert(place.folder, place.out, container="lmdb", on_error="skip", max_bad=1e9)
    check_output(place, None if place.description else stored_once(place.whole))


def check_output(place: Place, allowed: frozenset[bytes] | None) -> None:
    """Check a dataset that was written: whole, and of no other values than those allowed (None: any)."""
    # A conversion copies image files, and does not decode them.
    problems = [
        text for text in shardio.verify(place.out, deep=True).problems if not re.search(r"the (\w+ )?image", text)
    ]
    if problems:
        raise Finding("bad output", f"a conversion succeeded, but: {problems[0]}")
    values = stored(place.out)
    check_origin(place, values)
    if allowed is not None and (wrong := [value for value in values if value not in allowed]):
        raise Finding("wrong value", f"wrote {wrong[0][:60]!r}")


@cache
def converted(kind: str, path: Path) -> frozenset[bytes]:
    """All values that an undamaged source gives."""
    source = converter(kind)(str(path))
    return frozenset(
        raw(source.fields[name].encode(value)) for n in range(len(source.sizes())) for name, value in source[n].items()
    )


def convert(place: Place, on_error: str = "skip") -> None:
    """Convert; bad samples are left out, or end it."""
    target = place.target
    options: Any = {"on_error": on_error, "max_bad": 1e9, "converter_options": OPTIONS.get(target.converter)}
    shardio.convert(str(place.folder / target.path), place.out, converter=converter(target.converter), **options)
    sure = target.exact and not any(way.startswith("any_") and way != "any_bytes" for way in place.ways)
    check_output(place, None)
    if not sure:
        return
    allowed = converted(target.converter, place.whole / target.path)
    dataset = shardio.open(place.out)
    for number in range(len(dataset)):
        for name, value in dataset[number].items():
            if raw(dataset.fields[name].encode(value)) not in allowed:
                raise Finding("wrong value", f"wrote {name} of sample {number} as {raw(value)[:40]!r}")


def adopted(place: Place) -> None:
    """Adopt the files in place, and load them."""
    target = place.target
    options = OPTIONS.get(target.converter, {} if target.converter in ("tfrecord", "lmdb") else {"key": False})
    source = converter(target.converter)(str(place.folder / target.path), **options)
    adopt(source, place.out, on_error="skip", max_bad=1e9)
    for _, _, values in epoch(loader(place.out)):
        check_origin(place, values.values())


def resumed(place: Place, work: Callable[..., None], **options: Any) -> None:
    """Go on with an interrupted conversion: the result is that of the whole one, or an error."""
    work(place.folder, **options)
    wanted = conversion(place.whole, work)
    found = {path.name: path.read_bytes() for path in (place.folder / "out").iterdir() if path.is_file()}
    hidden = [path.name for path in (place.folder / "out").iterdir() if path.name.startswith(".")]
    if hidden:
        raise Finding("left behind", f"after a finished conversion: {hidden}")
    found = {name: found.get(name, b"") for name in wanted}
    if place.ways & {"any_msgpack", "any_saved"}:  # a record with its checksum: nothing contradicts its image sizes
        found, wanted = without_image_sizes(found), without_image_sizes(wanted)
    if found != wanted and not found_by_verify(place.folder / "out"):
        raise Finding("wrong value", "the resumed conversion differs from one in one go, and verify finds nothing")


def without_image_sizes(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The files of a dataset, with a manifest without the sizes of images."""
    described = json.loads(files["shardio.json"] or b"{}")
    for one in described.get("fields", {}).values():
        one.pop("shape", None)
    return {**files, "shardio.json": described}


@cache
def conversion(folder: Path, work: Callable[..., None]) -> Mapping[str, bytes]:
    """The files of a conversion in one go."""
    other = folder.parent / f"{folder.name}-{work.__name__}"
    shutil.copytree(folder / "in", other / "in", copy_function=shutil.copy2)
    work(other)
    files = {path.name: path.read_bytes() for path in (other / "out").iterdir() if path.is_file()}
    shutil.rmtree(other)
    return files


def content(path: Path) -> Any:
    """A checkpoint as plain values."""
    from shardio.train import checkpoint  # here: tests of what needs no torch take other functions of this module

    found = checkpoint.load(path)
    return plain([found.place, dict(found.model), dict(found.optimizer), dict(found.loader), dict(found.shape)])


def plain(value: Any) -> Any:
    """A value with its tensors as bytes."""
    if hasattr(value, "numpy"):
        return str(value.dtype), tuple(value.shape), raw(value.contiguous())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else repr(value)


wanted_content = cache(content)
"""The content of an undamaged checkpoint."""


def load_checkpoint(place: Place) -> None:
    """A checkpoint loads with its own values, or not at all."""
    for name in sorted(place.changed):
        if content(place.folder / name) != wanted_content(place.whole / name):
            raise Finding("wrong value", f"{name} loads with other values")


def go_on(place: Place) -> None:
    """Training goes on from a checkpoint as if nothing had happened, or not at all."""
    train(place.folder, epochs=2, resume="auto")
    found = content(place.folder / "out" / "last.pt")
    if found != trained_on(place.whole):
        raise Finding("wrong value", "training went on from other values")


@cache
def trained_on(folder: Path) -> Any:
    """What training that goes on from the undamaged checkpoint comes to."""
    other = folder.parent / f"{folder.name}-trained"
    shutil.copytree(folder, other)
    train(other, epochs=2, resume="auto")
    found = content(other / "out" / "last.pt")
    shutil.rmtree(other)
    return found


def load_state(place: Place) -> None:
    """A state that is taken is one of this loader, and the samples that follow are the plan's."""
    path = place.folder / "state.json"
    try:  # what a trainer reads before it has a state
        state = json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, RecursionError):
        return
    batches = labels(place.folder)
    batches.load_state_dict(state)
    first, position = batches.epoch, batches.state_dict()["position"]
    if first > 2**40:  # the plan of such an epoch is as good as any
        return
    count = len(batches.dataset)
    wanted = shardio.Plan(count, seed=3, epoch=first).indices(0, count).tolist()[position:]
    came = [index for batch in batches for index in batch["index"].tolist()]
    if came[: len(wanted)] != wanted:
        raise Finding("order", f"after {state} came {came}, not {wanted}")


USES: dict[str, Callable[[Place], None]] = {
    "load": load,
    "load_again": load_again,
    "read": read,
    "find": find,
    "verify": verify,
    "verify_deep": verify_deep,
    "repair": repair,
    "stats": stats,
    "reshard": reshard,
    "convert": convert,
    "convert_all": lambda place: convert(place, "raise"),
    "adopt": adopted,
    "resume": lambda place: resumed(place, convert_source, resume=True),
    "resume_hdf5": lambda place: resumed(place, convert_to_hdf5, resume=True),
    "resume_index": lambda place: resumed(place, index_source, resume=True),
    "overwrite": lambda place: resumed(place, convert_source, overwrite=True),
    "overwrite_index": lambda place: resumed(place, index_source, overwrite=True),
    "load_checkpoint": load_checkpoint,
    "train": go_on,
    "load_state": load_state,
}
"""What may be done with a target, by name."""
IN_PLACE = {"repair", "resume", "resume_hdf5", "resume_index", "overwrite", "overwrite_index", "train"}
"""Uses that may change the damaged files themselves."""


def use(name: str, place: Place) -> str:
    """Use damaged files; return `right`, or `refused` if an error of shardio ended it. Raises Finding."""
    helper_process.READ_SECONDS = READ_LIMIT  # a round has 30 s, and libhdf5 may take 60 s for a value
    try:
        USES[name](place)
    except (PipelineStalled, WorkerDied) as error:
        raise Finding("hang", str(error)) from error
    except (ShardioError, MemoryError) as error:
        text = str(error)
        if isinstance(error, MemoryError) and "of memory" not in text and "enough memory" not in text:
            raise  # not shardio's: those say how much memory was wanted for what
        if not text.strip() or len(text) > 20_000:
            raise Finding("no words", f"{type(error).__name__} with {len(text)} characters") from error
        check_origin(place, [text.encode(errors="replace")])
        return "refused"
    return "right"

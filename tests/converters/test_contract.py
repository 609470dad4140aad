"""What holds of every converter that reads files, whatever their format: tests of one format are beside this one."""

import inspect
import multiprocessing
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from _fuzz_targets import TARGETS, Target, converter
from _fuzz_uses import converted, raw

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.output.shard_writer import encode
from shardio.source import Source, find, names
from shardio.testing.sources import check_sample

FILES = Path(__file__).parent / "files"


def write_mds(folder: Path) -> None:
    """Files that MosaicML's own writer made."""
    shutil.copytree(FILES / "mds" / "plain", folder, dirs_exist_ok=True)


MDS = Target("mds", write_mds, (), "mds")
SOURCES = {target.name: target for target in (*TARGETS.values(), MDS) if target.converter}


@pytest.fixture(params=SOURCES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """Files of one format, in `in`."""
    (tmp_path / "in").mkdir()
    SOURCES[request.param].write(tmp_path / "in")
    return SOURCES[request.param]


def source_of(target: Target, folder: Path | str = "in", **options: Any) -> Source:
    """The source that a converter makes of the files in a folder."""
    source: Source = converter(target.converter)(str(Path(folder) / target.path), **options)
    return source


def samples_of(source: Source) -> list[dict[str, Any]]:
    """All samples, the last one first."""
    return [dict(source[number]) for number in reversed(range(len(source.sizes())))]


def encoded(source: Source) -> None:
    """Read all samples, and check them as a conversion does."""
    for number in range(len(source.sizes())):
        encode(source[number], source.fields)


def check_samples(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Assert that samples are equal."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        check_sample(one, other)


@contextmanager
def forked(source: Source) -> Iterator[Any]:
    """A pipe with the samples that a forked child reads."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn when a process with threads forks
        child = context.Process(target=lambda: sender.send(samples_of(source)))
        child.start()
    assert receiver.poll(20)
    yield receiver
    child.join(20)
    assert child.exitcode == 0


def test_every_converter_is_found_by_its_name() -> None:
    """The command line finds a converter by its function's name."""
    assert {find(name).__name__ for name in names()} >= {target.converter for target in SOURCES.values()}
    assert all(find(name).__name__ == name for name in names())


def test_samples_do_not_depend_on_the_path(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of a relative path, pickled and used elsewhere, and one of copied files give the same samples."""
    monkeypatch.chdir(tmp_path)
    here = source_of(target)
    monkeypatch.chdir("/")
    sent = pickle.dumps(here)
    assert len(sent) < 10_000
    expected = samples_of(here)
    assert len(expected)
    shutil.copytree(tmp_path / "in", tmp_path / "-ü b")
    for other in (pickle.loads(sent), source_of(target, tmp_path / "-ü b")):  # noqa: S301
        check_samples(samples_of(other), expected)
        assert dict(other.metadata) == dict(here.metadata)
        assert dict(other.fields) == dict(here.fields)
        assert other.sizes().tolist() == here.sizes().tolist()
    for outside in (-1, len(expected)):
        with pytest.raises(IndexError, match=rf"index must be in \[0, {len(expected)}\), got {outside}"):
            here[outside]


def test_processes_and_threads_read_the_same(target: Target, tmp_path: Path) -> None:
    """A forked child opens the files itself, and threads with copies of a source do not interfere."""
    source = source_of(target, tmp_path / "in")
    expected = samples_of(source)
    with forked(source) as receiver:
        check_samples(receiver.recv(), expected)
    copies = [pickle.loads(pickle.dumps(source)) for _ in range(4 if getattr(source, "threads", False) else 1)]  # noqa: S301
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(samples_of, copies):
            check_samples(found, expected)


def test_fields_are_chosen_and_named(target: Target, tmp_path: Path) -> None:
    """`fields` takes what it names, under the names that it gives; the error on any other lists what there is."""
    if "fields" not in inspect.signature(converter(target.converter)).parameters:
        pytest.skip("its fields are always the same")
    with pytest.raises(ConfigError, match="has no 'no such'; there are ") as caught:
        source_of(target, tmp_path / "in", fields="no such")
    name = str(caught.value).partition("there are ")[2].split(", ")[-1].split(";")[0]
    chosen = samples_of(source_of(target, tmp_path / "in", fields=f"chosen={name}"))
    whole = samples_of(source_of(target, tmp_path / "in"))
    assert any(np.array_equal(chosen[0]["chosen"], value) for value in whole[0].values())


def test_a_path_without_files_is_refused(target: Target, tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    with pytest.raises(SourceError, match="gone"):
        source_of(target, tmp_path / "gone")


@pytest.mark.parametrize("change", ["vanish", "shrink"])
def test_files_that_change_are_found_by_workers(target: Target, tmp_path: Path, change: str) -> None:
    """Files that are gone or cut short when a worker opens them are errors, and do not end the process."""
    if target.name == "huggingface":
        pytest.skip("what is pickled is the library's Dataset, which raises errors of its own")
    sent = pickle.dumps(source_of(target, tmp_path / "in"))
    for path in [path for path in (tmp_path / "in").rglob("*") if path.is_file()]:
        path.unlink() if change == "vanish" else os.truncate(path, path.stat().st_size // 2)
    with pytest.raises((SourceError, BadSample)):
        encoded(pickle.loads(sent))  # noqa: S301


def damage(folder: Path, random: Random) -> None:
    """Change some bytes of a file, often those of its header, to any or to characters of JSON, or cut the file off."""
    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size))
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 4))):
        at = random.randrange(min(len(data), random.choice((200, 4096, 1 << 30))))
        data[at] = random.choice((random.randrange(256), random.choice(b'0129-"[]{}x,')))
    if random.random() < 0.2:
        del data[random.randrange(len(data)) :]
    path.unlink()  # a source may still map the old one
    path.write_bytes(data)


def test_damage_is_refused_or_a_bad_sample(target: Target, tmp_path: Path) -> None:
    """With any damaged file the source is refused, a sample is bad, or a value differs that has no checksum."""
    if target.converter == "hdf5" and target.name != "netcdf3":
        pytest.skip("libhdf5 may take long for damage: test_hdf5.py chooses a file that it reads quickly")
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError:
        folder = tmp_path / "other"  # this file system takes only UTF-8 names
    allowed = converted(target.converter, tmp_path / "in" / target.path)
    told, random = [], Random(0)
    for _ in range({"mds": 300, "zarr": 25}.get(target.converter, 30)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "in", folder)
        damage(folder, random)
        try:
            source = source_of(target, folder)
            for name in source.fields:
                getattr(source, "column", lambda name: None)(name)
            for number in range(min(len(source.sizes()), 20)):
                try:
                    sample = source[number]
                    encode(sample, source.fields)
                except BadSample as error:
                    told.append(str(error))
                else:
                    values = {raw(source.fields[name].encode(value)) for name, value in sample.items()}
                    assert not target.exact or values <= allowed
        except (SourceError, ConfigError, BadSample) as error:
            told.append(str(error))
    assert told
    assert [text.encode() for text in told]

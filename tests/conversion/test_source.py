"""The base of sources: defaults that are right, wrappers that pass on what describes, and objects of other classes."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _hdf5_files import write_hdf5

import shardio
from shardio.conversion import source as sources
from shardio.conversion.instances import BOXES, InstanceSource
from shardio.conversion.masks import masked
from shardio.conversion.reencode import ReencodeOptions
from shardio.conversion.source import DESCRIBING, YIELDING, Places, Source, WrappedSource, as_source, file_states
from shardio.conversion.stacks import Stacked
from shardio.conversion.transformed_source import TransformedSource
from shardio.errors import BadSample, SourceError
from shardio.format.fields import Field
from shardio.testing import check_source
from tests._builders import jpeg

ARRAY = Field("array", dtype="float32", shape=(2,))


class Full(Source):
    """A source with a value of its own for each member."""

    fields = {"x": ARRAY, "y": ARRAY, "image": Field("image")}
    metadata = {"source": "full"}
    remarks, hints = ("a remark",), ("a hint",)
    files, merged = (Path("one"),), ((Path("other"),),)
    threads = plain_values = True
    changes = {"option": 1}
    dimensions = {"x": ("time", "place")}
    adoption = Places(np.array([0, 2]), lambda index: {})

    def sizes(self) -> Any:
        return np.array([8, 8])

    def __getitem__(self, index: int) -> Any:
        return {"x": np.full(2, index, "f4"), "y": np.zeros(2, "f4"), "image": jpeg(index)}

    def column(self, name: str) -> Any:
        return np.arange(2)

    def holds(self, condition: Any, numbers: Any) -> Any:
        return np.ones(len(numbers), bool)

    def encoded(self, numbers: Any) -> Any:
        return iter(())


def wrappers() -> list[Source]:
    """One source of each kind that wraps another."""
    return [
        WrappedSource(Full()),
        masked(Full(), ["image"]),
        Stacked(Full(), {"z": ("x", "y")}),
        TransformedSource(Full(), ReencodeOptions(), {"x": "float64"}),
        InstanceSource(Full(), "x", "xyxy", members={"boxes": ("", BOXES)}),
    ]


def test_every_member_describes_or_yields() -> None:
    """A new member of `Source` must be put into one of the two lists, as wrappers treat them differently."""
    members = {name for name in vars(Source) if not name.startswith("_")} | {"fields", "metadata"}
    assert members == {*DESCRIBING, *YIELDING}


@pytest.mark.parametrize("wrapper", wrappers(), ids=lambda wrapper: type(wrapper).__name__)
def test_wrappers_pass_on_what_describes(wrapper: Source) -> None:
    """A wrapper passes on what describes its source; it may add to that, and takes nothing away."""
    for name in DESCRIBING:
        own, wrapped = getattr(wrapper, name), getattr(Full(), name)
        assert own == wrapped or set(wrapped) <= set(own), name
    known = {cls for cls in WrappedSource.__subclasses__() if cls.__module__.startswith("shardio")}
    assert known <= {type(one) for one in wrappers()}


def test_a_wrapper_passes_on_no_values() -> None:
    """A wrapper that says nothing else reads samples one by one, and gives no columns and no places."""
    wrapper = WrappedSource(Full())
    assert wrapper.column("x") is None
    assert wrapper.holds(None, np.arange(2)) is None  # type: ignore[arg-type]
    assert wrapper.encoded(np.arange(2)) is None
    assert wrapper.adoption is None
    with pytest.raises(SourceError, match="WrappedSource has no files that can be read in place"):
        sources.adoption_of(wrapper)


def test_a_merged_file_that_changes(tmp_path: Path) -> None:
    """With `dtype=`, a merged file that changes during the conversion ends it."""
    values = np.random.default_rng(0).random((64, 4), np.float32)
    files = [write_hdf5(tmp_path / f"{name}.h5", **{name: values}) for name in ("a", "b")]

    def progress(what: str, done: int, total: int) -> None:
        os.utime(tmp_path / "b.h5")

    given: dict[str, Any] = {"converter": "hdf5", "converter_options": {"merge": True}, "dtype": "float16"}
    with pytest.raises(SourceError, match=r"b\.h5 changed while it was converted"):
        shardio.convert(files, tmp_path / "out", progress=progress, **given)
    assert file_states(sources.find("hdf5")(files, merge=True)).keys() == set(files)


class Other:
    """An object with some members of a source."""

    fields = {"x": ARRAY}
    metadata = {"source": "other"}
    remarks = ("left out y",)

    def sizes(self) -> Any:
        return np.full(3, 8)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 3:
            raise IndexError(index)
        if index == 1:
            raise BadSample("bad")
        return {"x": np.zeros(2, "f4")}

    def column(self, name: str) -> Any:
        return np.arange(3) if name == "x" else None


def test_objects_of_other_classes() -> None:
    """An object passes for a source if it has the members without defaults; the others are its own, or the defaults."""
    source = as_source(Other())
    assert source is not None
    for copy in (source, pickle.loads(pickle.dumps(source))):  # noqa: S301
        assert (copy.remarks, copy.hints, copy.files, copy.changes) == (("left out y",), (), (), {})
        assert copy.column("x").tolist() == [0, 1, 2]
        assert [type(one) for one in copy.block(np.arange(3))] == [dict, BadSample, dict]
    assert as_source(object()) is None
    assert as_source(source) is source


class Misspelt:
    """A source whose `column` is misspelt."""

    fields, metadata, sizes = Other.fields, Other.metadata, Other.sizes

    def colum(self, name: str) -> Any:
        return None

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 3:
            raise IndexError(index)
        return {"x": np.zeros(2, "f4")}


def test_misspelt_members_fail_the_contract(tmp_path: Path) -> None:
    """`check_source` finds a member that is called almost as one of a source, and which nobody would call."""
    with pytest.raises(AssertionError, match="has 'colum', which no source has: is 'column' meant"):
        check_source(Misspelt(), [{"x": np.zeros(2, "f4")}] * 3, tmp_path)

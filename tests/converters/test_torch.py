"""PyTorch Datasets with any sample structure become samples, and errors in the user's code are reported."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as pytorch
from _builders import decoded, encode, jpeg, pixels
from torch.utils.data import Dataset, IterableDataset

from shardio.conversion.api import convert
from shardio.dataset import dataset
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.testing import check_source
from shardio_converters.torch import torch


class Samples(Dataset[Any]):
    """A Dataset of a list; an exception in the list is raised."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.samples[index], Exception):
            raise self.samples[index]
        return self.samples[index]


class Picture:
    """The interface of a PIL image."""

    def __init__(self, image: Any) -> None:
        self.image = image
        self.mode = "L" if image.ndim == 2 else "RGB"

    def save(self, stream: Any, format: str) -> None:
        assert format == "PNG"
        if self.image.size == 0:
            raise OSError("image file is truncated")
        stream.write(encode("png", self.image))


class TestSamples:
    def test_a_dict_of_every_kind(self, tmp_path: Path) -> None:
        """Tensors, arrays, numbers, texts, bytes, booleans and nested values become fields, named after their keys."""
        samples = [
            {
                "float tensor": pytorch.arange(6).reshape(2, 3) / (7 + n),
                "steps": pytorch.arange(12).reshape(3, 4).T,  # not contiguous
                "brain": pytorch.tensor([1.5, n], dtype=pytorch.bfloat16, requires_grad=True),
                "zero-d": pytorch.tensor(n, dtype=pytorch.int16),
                "label": pytorch.tensor(n, dtype=pytorch.uint8),
                "array": np.full((2, 1), n, ">u2"),
                "number": n,
                "real": n + 0.5,
                "numpy": np.float32(n),
                "flag": n == 1,
                "text": f"größe {n}",
                "data": bytes([n, 0]),
                "jpeg": jpeg(seed=n),
                "boxes": [{"box": pytorch.tensor([1.0, n]), "id": np.int64(n)}, None],
                "nested": {"a": (1, 2), 3: np.zeros((1, 2))},
                "nothing": None,
                "ragged": np.ones((n + 1, 2)),  # without a fixed shape, as the last sample's differs
            }
            for n in range(3)
        ]
        expected = [
            {name.replace(" ", "_"): value for name, value in samples[n].items()}
            | {
                "float_tensor": np.arange(6, dtype=np.float32).reshape(2, 3) / np.float32(7 + n),
                "steps": np.arange(12).reshape(3, 4).T,
                "brain": np.array([1.5, n], np.float32),
                "zero-d": n,
                "label": n,
                "numpy": float(n),
                "boxes": [{"box": [1.0, n], "id": n}, None],
                "nested": {"a": [1, 2], "3": [[0.0, 0.0]]},
            }
            for n in range(3)
        ]
        source = torch(Samples(samples))
        assert source.metadata == {"source": "torch"}
        kinds: dict[str, Any] = {"steps": ("int64", (4, 3)), "zero-d": "int16", "label": "int64", "flag": "bool"}
        kinds |= {"data": "bytes", "jpeg": "image", "boxes": "json", "nothing": "json"}
        kinds |= {"ragged": ("float64", (None, 2))}
        check_source(source, expected, tmp_path / "out", **kinds)

    @pytest.mark.parametrize(
        ("sample", "names", "fields"),
        [
            ((np.zeros(3), 7), None, ["image", "label"]),
            ((1,), None, ["field0"]),
            ((1, 2, 3), "a, b,c", ["a", "b", "c"]),
            ((1, 2), ["x", "y"], ["x", "y"]),
            (pytorch.zeros(3), None, ["array"]),
            (pytorch.tensor(3), None, ["scalar"]),
            ("words", None, ["text"]),
            (Picture(pixels()), None, ["image"]),
            (None, None, ["json"]),
            (np.zeros(3), "feature", ["feature"]),
        ],
    )
    def test_what_parts_are_called(self, sample: Any, names: Any, fields: list[str]) -> None:
        """The parts of a sample are named by `fields`, by their number, or by the type of a single value."""
        source = torch(Samples([sample]), names=names)
        assert list(source.fields) == list(source[0]) == fields


def test_colours_among_grey() -> None:
    """If the first and last images are grey, a colour image is a bad sample, because it would lose its colours."""
    images = [Picture(pixels(5, 7, channels)) for channels in (1, 3, 1)]
    grey = torch(Samples([images[0], images[2]]))
    assert grey.fields["image"] == Field("image", channels=1)
    assert decoded(grey[1]["image"]).tolist() == images[2].image.tolist()
    with pytest.raises(BadSample, match="sample 1: field 'image': expected a grey image"):
        torch(Samples(images))[1]
    assert torch(Samples(images[:2])).fields["image"] == Field("image")


MODULE = """
from torch.utils.data import Dataset, IterableDataset
import neighbour

class Numbers(Dataset):
    classes = ["even", "odd"]
    def __init__(self, count=6, bad=-1):
        self.count, self.bad = count, bad
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        import later
        if index == self.bad:
            raise KeyError(f"no {index}")
        return {"value": later.times(index), "label": index % 2}

class Sub:
    made = Numbers(3)

numbers = Numbers(4)
number = 5

def make(count=2):
    return Numbers(count)

def broken():
    raise RuntimeError("no network")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with `my_sets.py` and the module that it imports."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "code ö"
    folder.mkdir()
    (folder / "my_sets.py").write_text(MODULE)
    (folder / "neighbour.py").write_text("")
    (folder / "later.py").write_text("def times(index):\n    return index * 10\n")
    monkeypatch.chdir(folder)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith(("my_sets", "neighbour", "later", "wrong", "random_")):
            del sys.modules[name]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "options", "count"),
        [
            ("numbers", None, 4),
            ("Numbers", None, 6),
            ("Numbers", '{"count": 3}', 3),
            ("Numbers", {"count": 3}, 3),
            ("make", None, 2),
            ("make", '{"count": 5}', 5),
            ("Sub.made", None, 3),
        ],
    )
    @pytest.mark.parametrize("place", ["my_sets", "../code ö/my_sets.py"])
    @pytest.mark.usefixtures("module")
    def test_an_object_by_name(self, place: str, name: str, options: Any, count: int) -> None:
        """Instances, classes and functions of modules and files are found by name."""
        source = torch(f"{place}:{name}", options=options)
        assert len(source.sizes()) == count
        assert source[1] == {"value": 10, "label": 1}
        assert source.metadata == {"source": "torch", "classes": ["even", "odd"]}

    def test_a_file_called_as_a_module(self, module: Path) -> None:
        """A file is loaded even if a loaded module has the same name."""
        (module / "random.py").write_text("data = [1, 2, 3]\n")
        assert torch("random.py:data")[2] == {"scalar": 3}
        import random

        assert not hasattr(random, "data")

    def test_pickling_sends_the_name(self, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pickled source rebuilds the Dataset by name, anywhere, without reading all samples."""
        source = torch("my_sets:Numbers", options='{"count": 100000}')
        sent = pickle.dumps(source)
        assert len(sent) < 1500
        monkeypatch.chdir("/")
        copy = pickle.loads(sent)  # noqa: S301
        assert copy[99_999] == {"value": 999_990, "label": 1}
        assert dict(copy.fields) == dict(source.fields)
        assert copy.sizes().tolist() == source.sizes().tolist()

    @pytest.mark.slow
    def test_worker_processes(self, module: Path, tmp_path: Path) -> None:
        """New processes import the user's code, and a sample that fails there is reported here."""
        source = torch("my_sets.py:Numbers", options='{"count": 40, "bad": 17}')
        found = convert(source, tmp_path / "out", shard_size=100, workers=2, on_error="skip", max_bad=1)
        made = dataset.open(tmp_path / "out")
        assert [made[row]["value"] for row in range(39)] == [10 * number for number in range(40) if number != 17]
        reasons = [(one.number, one.reason) for one in found.skipped]
        assert reasons == [(17, "my_sets.py:Numbers, sample 17: KeyError: 'no 17'")]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("my_sets:Numbers {count: 3}", "options must be a JSON object, got '{count: 3}'"),
            ("my_sets:Numbers [3]", r"options must be a JSON object, got '\[3\]'"),
            ('my_sets:Numbers {"size": 3}', r"my_sets:Numbers: TypeError: .*unexpected keyword argument 'size'"),
            ('my_sets:numbers {"count": 3}', "options are for a class or a function, my_sets:numbers is an instance"),
            ("my_sets", "src must be module:object or path/to/file.py:object, got 'my_sets'"),
            (":numbers", "src must be module:object"),
            ("no_such:numbers", "no_such:numbers: ModuleNotFoundError: No module named 'no_such'"),
            ("no_such.py:numbers", "no_such.py:numbers: FileNotFoundError: .*No such file"),
            ("wrong.py:data", "wrong.py:data: ZeroDivisionError: division by zero"),
            ("my_sets.py:nothing", r"my_sets\.py:nothing: my_sets\.py has no 'nothing'$"),
            ("s3://bucket/my_sets.py:numbers", "a path must be local, got the URL s3://bucket/my_sets.py:numbers"),
            ("my_sets:broken", "my_sets:broken: RuntimeError: no network"),
            ("my_sets:number", "my_sets:number must be a map-style Dataset, .*: int"),
            ("..my_sets:numbers", r"\.\.my_sets:numbers: "),
        ],
    )
    def test_names_that_lead_nowhere(self, module: Path, name: str, message: str) -> None:
        """A name that cannot be imported, and options that it does not take, are refused with Python's message."""
        (module / "wrong.py").write_text("data = 1 / 0\n")
        name, _, options = name.partition(" ")
        for _ in range(2):  # the second time like the first: no half-imported module is kept
            with pytest.raises((SourceError, ConfigError), match=message):
                torch(name, options=options or None)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class BadLength(Lengthless):
    def __len__(self) -> int:
        raise RuntimeError("who knows")


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        (Endless(), None, "Endless must be a map-style Dataset, with a length and samples by index; .* iterable"),
        (Lengthless(), None, "Lengthless must be a map-style Dataset"),
        (BadLength(), None, "the length of BadLength: RuntimeError: who knows"),
        (Samples([]), None, "Samples holds no samples"),
        (Samples([ValueError("first")]), None, "Samples, sample 0: ValueError: first"),
        (Samples([object()]), None, "Samples, sample 0: no field holds a object"),
        (Samples([(1, object())]), None, "Samples, sample 0: field 'label': no field holds a object"),
        (Samples([np.array([None])]), None, "Samples, sample 0: a dtype must be"),
        (Samples([2**70]), None, "Samples, sample 0: a dtype must be"),
        (Samples([{}]), None, "Samples, sample 0: a dataset needs at least one field"),
        (Samples([{"a b": 1, "a_b": 2}]), None, "Samples, sample 0: two keys would be one field: a b, a_b"),
        (Samples([{"a": {"b": object()}}]), None, "Samples, sample 0: not JSON"),
        (Samples([(1, 2, 3)]), "a,b", "names must name each part of a sample, the first has 3 parts; got a, b"),
        (Samples([{"x": 1}]), "a", "must name each part of a sample, the first is a dict, which has its own"),
        (Samples([(1, 2)]), "a,a", "names must be different names, got a, a"),
    ],
)
def test_what_is_no_data_set(given: Any, names: str | None, message: str) -> None:
    """An object is refused unless it has numbered samples whose first can be stored, under the given names."""
    with pytest.raises((SourceError, ConfigError), match=message):
        torch(given, names=names)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (BadSample("its own word"), "its own word"),
        (OSError(2, "No such file", "a.jpg"), r"FileNotFoundError: \[Errno 2\] No such file: 'a.jpg'"),
        ((1, 2, 3), "it has 3 parts, for 2 names: image, label"),
        (7, "it has 1 parts, for 2 names"),
        ((Picture(np.zeros((0, 0, 3), np.uint8)), 1), "OSError: image file is truncated"),
        ((object(), 1), "field 'image': no field holds a object"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_sample_that_fails(sample: Any, message: str, number: int) -> None:
    """A sample that raises is bad, with its number and the error's type and text; the others are read."""
    samples: list[Any] = [(Picture(pixels()), 1)] * 3
    samples[number] = sample
    source = torch(Samples(samples))
    with pytest.raises(BadSample, match=f"^Samples, sample {number}: {message}"):
        source[number]
    assert source[0]["label"] == source[3 - number]["label"] == 1


def test_images_in_a_costly_form_are_told(tmp_path: Path) -> None:
    """Floats that a transform made of images, and PIL images, are worth a note with what to do, also with `strict`."""
    floats = Samples([{"x": pytorch.zeros(3, 20, 24), "y": np.zeros((16, 16, 1)), "volume": np.zeros((4, 20, 20))}])
    told = convert(floats, tmp_path / "floats", converter="torch", strict=True).notes
    assert [note[:30] for note in told] == ["field 'x' holds floats, [3, 20", "field 'y' holds floats, [16, 1"]
    assert all("applied now, once and for all" in note for note in told)
    told = convert(Samples([(Picture(pixels()), 1)]), tmp_path / "pil", converter="torch").notes
    assert len(told) == 1
    assert "field 'image' holds PIL images, which are stored as PNG" in told[0]
    assert convert(Samples([(jpeg(), np.zeros(3))]), tmp_path / "jpeg", converter="torch").notes == ()

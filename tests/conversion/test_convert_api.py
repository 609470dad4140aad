"""`shardio.convert` in Python: every keyword works, and gives the same bytes as the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.testing
from _builders import jpeg, write_files
from _datasets import files
from torch.utils.data import TensorDataset

import shardio
from shardio.cli import app
from shardio.conversion.shard_tasks import Estimate
from shardio.errors import BadSample, ConfigError, NotADataset, TooManyBad
from shardio_converters.imagefolder import imagefolder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images of three classes: large and small, baseline and progressive."""
    images = {
        f"class {n % 3}/{n:02d}.jpg": jpeg(side, side * 2, seed=n, progressive=n % 5 == 0)
        for n, side in enumerate([30, 120] * 15)
    }
    return write_files(tmp_path_factory.mktemp("photos"), images)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 40 samples: grey pixels, numbers, labels [n, 1]."""
    path = tmp_path_factory.mktemp("arrays") / "in.npz"
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (40, 20, 24), np.uint8)
    np.savez(path, image=pixels, x=random.random((40, 6)), label=np.arange(40).reshape(40, 1))
    return path


def command(*arguments: object) -> str:
    """Run a command that succeeds and return its standard output."""
    result = typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


SAME: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "subset": (
        "imagefolder",
        ["--where", "label in (0, 2)", "--shuffle", "3", "--limit", "17", "--shard-size", "9KB", "--workers", "2"],
        {"where": "label in (0, 2)", "shuffle": 3, "limit": 17, "shard_size": "9KB", "workers": 2},
    ),
    "split": (
        "imagefolder",
        ["--split", "train=0.75,val=0.25", "--shuffle", "5"],
        {"split": {"train": 0.75, "val": 0.25}, "shuffle": 5},
    ),
    "images": (
        "imagefolder",
        ["--resize-shorter", "60", "--max-pixels", "5000", "--quality", "70", "--recompress", "if-needed"],
        {"resize_shorter": 60, "max_pixels": 5000, "quality": 70, "recompress": "if-needed"},
    ),
    "arrays": (
        "numpy",
        ["--as-image", "image", "--squeeze", "label", "--dtype", "float16,label=int32", "--to", "lmdb"],
        {"as_image": ["image"], "squeeze": ["label"], "dtype": {"": "float16", "label": "int32"}, "container": "lmdb"},
    ),
    "rounding, gzip": (
        "numpy",
        ["--to", "hdf5", "--compress", "gzip", "--fields", "x,label", "--dtype", "float16", "--allow-rounding"],
        {"container": "hdf5", "compression": "gzip", "converter_options": {"fields": "x,label"}}
        | {"dtype": "float16", "allow_rounding": True},
    ),
    "no compression": ("numpy", ["--to", "hdf5", "--compress", "none"], {"container": "hdf5", "compression": None}),
}


@pytest.mark.parametrize("case", SAME)
def test_the_command_line_gives_the_same_bytes(photos: Path, arrays: Path, tmp_path: Path, case: str) -> None:
    """Keywords in Python and options on the command line write the same files."""
    converter, options, keywords = SAME[case]
    source = {"imagefolder": photos, "numpy": arrays}[converter]
    shardio.convert(source, tmp_path / "python", converter=converter, **keywords)
    command("convert", converter, source, tmp_path / "command", *options)
    assert files(tmp_path / "python") == files(tmp_path / "command")
    assert files(tmp_path / "python")


def test_a_converter_is_a_function_too(photos: Path, tmp_path: Path) -> None:
    """A converter may be given by name, as a function, or as the source that it returns."""
    options = {"extensions": ["jpg"]}
    shardio.convert(photos, tmp_path / "a", converter="imagefolder", converter_options=options)
    shardio.convert(photos, tmp_path / "b", converter=imagefolder, converter_options=options)
    shardio.convert(imagefolder(photos, extensions=["jpg"]), tmp_path / "c")
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


def test_a_split_gives_a_dataset_each(photos: Path, tmp_path: Path) -> None:
    """A split returns a dataset by name for each part; attributes of a single dataset raise for several."""
    shares = {"train": 0.8, "val": 0.2}
    made = shardio.convert(photos, tmp_path / "out", converter="imagefolder", split=shares, limit=20)
    assert {name: part.manifest.samples for name, part in made.datasets.items()} == {"train": 16, "val": 4}
    assert [len(shardio.open(part.path)) for part in made.datasets.values()] == [16, 4]
    assert made.datasets["val"].path == tmp_path / "out" / "val"
    with pytest.raises(ConfigError, match=r"see its `datasets` \(train, val\)"):
        _ = made.manifest


def test_a_dry_run_estimates(arrays: Path, tmp_path: Path) -> None:
    """A dry run estimates each split and its stored fields, and writes nothing."""
    options: dict[str, Any] = {"converter": "numpy", "split": {"a": 0.75, "b": 0.25}, "as_image": "image"}
    report = tmp_path / "skipped.jsonl"
    outlook = shardio.convert(arrays, tmp_path / "out", dry_run=True, report=report, on_error="skip", **options)
    assert {name: estimate.samples for name, estimate in outlook.estimates.items()} == {"a": 30, "b": 10}
    assert all(isinstance(estimate, Estimate) and estimate.bytes > 0 for estimate in outlook.estimates.values())
    assert outlook.fields["image"].kind == "image"
    assert (outlook.datasets, outlook.skipped, list(tmp_path.iterdir())) == ({}, (), [])
    with pytest.raises(ConfigError, match="dry_run writes nothing"):
        _ = outlook.path
    made = shardio.convert(arrays, tmp_path / "out", **options)
    for name, estimate in outlook.estimates.items():
        assert len(made.datasets[name].manifest.shards) == estimate.shards


def test_bad_samples_are_skipped_and_reported(photos: Path, tmp_path: Path) -> None:
    """Result and report list skipped samples by split; the report is written even over the budget."""
    damaged = shutil.copytree(photos, tmp_path / "damaged")
    write_files(damaged, {"class 1/0 bad.jpg": "no image", "class 1/1 bad.jpg": "no image"})
    report = tmp_path / "skipped.jsonl"
    options: dict[str, Any] = {"converter": "imagefolder", "on_error": "skip", "report": report}
    with pytest.raises(BadSample, match=r"0 bad\.jpg"):
        shardio.convert(damaged, tmp_path / "out", converter="imagefolder")
    with pytest.raises(TooManyBad, match="max_bad=0 allows 0") as caught:
        shardio.convert(damaged, tmp_path / "none", max_bad=0, **options)
    assert len(caught.value.skipped) == len(report.read_text().splitlines()) == 2
    made = shardio.convert(damaged, tmp_path / "out", max_bad=2, resume=True, split={"all": 1.0}, **options)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["split"], line["number"], line["reason"]) for line in lines] == [
        ("all", sample.number, sample.reason) for sample in made.skipped
    ]
    assert made.datasets["all"].manifest.samples == 30


def test_progress_names_the_split(photos: Path, tmp_path: Path) -> None:
    """Progress is told with a word for the work, and the name of the split."""
    told: list[tuple[str, int, int]] = []
    options: dict[str, Any] = {"converter": "imagefolder", "split": {"a": 0.5, "b": 0.5}, "workers": None}
    shardio.convert(photos, tmp_path / "out", progress=lambda *args: told.append(args), **options)
    assert {what for what, done, total in told if done == total} == {"writing a", "writing b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": 90}, "quality goes with resize_shorter, max_pixels or recompress"),
        ({"report": "bad.jsonl"}, "report goes with on_error='skip'"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"split": {}}, "split must name at least one dataset"),
        ({"split": {"a": 0.5, "b": 0.5}, "limit": 1}, "split: 1 sample cannot fill all parts: none is left for a"),
        ({"where": "image < 1"}, r"a condition is on scalar and text fields \(label, key\), got 'image'"),
        ({"numbers": np.array([0, 30])}, r"numbers must be in \[0, 30\), got 0 to 30"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"container": "zip"}, "container must be one of tar, hdf5, lmdb, got 'zip'"),
        ({"container": "indexed"}, "container must be one of tar, hdf5, lmdb; 'indexed' only reads files that other"),
        ({"container": "memory"}, "container must be one of tar, hdf5, lmdb; 'memory' writes no files"),
        ({"shard_size": "big"}, "shard_size must be a size such as 64MB or 1GiB, got 'big'"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"extensions": "jpg", "converter": "imagefolder"}, r"converter_options={'extensions': 'jpg'}"),
        ({"to": "hdf5"}, r"convert has no option 'to'; did you mean container=\?"),
        ({"fields": "x"}, r"convert has no option 'fields'; did you mean converter_options=\?"),
        ({"converter": "numpy", "fields": "x"}, r"go in converter_options={'fields': 'x'}"),
        ({"compression": "gzip"}, "container 'tar' has no options, got compression"),
        ({"zzz": 1}, "convert has no option 'zzz'$"),
        (
            {"converter": "imagefolders"},
            "no converter is called 'imagefolders'; installed: .*; did you mean 'imagefolder'",
        ),
        (
            {"converter_options": {"suffixes": "jpg"}},
            "converter 'imagefolder' has the options extensions, allow_empty, hidden, nested, sort, got suffixes",
        ),
    ],
)
def test_wrong_arguments_are_refused(photos: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Invalid arguments are refused in Python's terms before anything is written."""
    with pytest.raises(ConfigError, match=message):
        shardio.convert(photos, tmp_path / "out", **{"converter": "imagefolder"} | options)
    assert not (tmp_path / "out").exists()


def test_what_is_no_source_is_refused(photos: Path, tmp_path: Path) -> None:
    """Objects and folders without a manifest are refused unless a converter is named."""
    with pytest.raises(NotADataset, match="name its converter, such as converter='imagefolder'"):
        shardio.convert(photos, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"go with converter=NAME; got int$"):
        shardio.convert(3, tmp_path / "out")
    with pytest.raises(ConfigError, match="go with converter=NAME; got TensorDataset, which converter='torch' takes"):
        shardio.convert(TensorDataset(torch.arange(3)), tmp_path / "out")
    with pytest.raises(ConfigError, match="at least one dataset, got an empty list"):
        shardio.convert([], tmp_path / "out")
    with pytest.raises(ConfigError, match="converter_options go with a converter"):
        shardio.convert(imagefolder(photos), tmp_path / "out", converter_options={"extensions": "jpg"})

"""`shardio view`, and the options that choose samples where a dataset is read."""

import json
import re
import shlex
from pathlib import Path

import pytest
from _builders import jpeg
from _cli import here
from _datasets import packed

import shardio
from shardio.errors import ConfigError, ShardioError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the dataset `data/photos`."""
    monkeypatch.chdir(tmp_path)
    rows = [{"n": number, "label": number % 4, "weight": float(number >= 30)} for number in range(60)]
    packed(Path("data/photos"), rows, {"n": "int64", "label": "int64", "weight": "float32"})
    return tmp_path


def run(command: str) -> str:
    """Run a command and return what it prints."""
    return here(*shlex.split(command))


def test_a_view_is_kept_and_read(folder: Path) -> None:
    """`view` writes a file, which the other commands and `shardio.open` read in place of a dataset."""
    told = run("view data/photos --where 'label in (0, 3)' --balanced label --samples 10 -o data/rare.json")
    view = shardio.open("data/rare.json")
    assert view.digest == shardio.open("data/photos").where("label in (0, 3)").balanced("label", 10).digest
    assert told == f"data/rare.json: a view of 10 samples of data/photos, digest {view.digest}\n"
    shown = run("info data/rare.json")
    assert re.search(
        r"^balanced +label; samples 10\nwhere +label in \(0, 3\)\nof +.*/data/photos, 60 samples", shown, re.M
    )
    assert f"digest        {view.digest}" in shown
    figures = json.loads(run("stats data/rare.json --json -"))
    assert (figures["digest"], figures["samples"]) == (view.digest, 10)
    run("view data/photos --weighted weight -o heavy.json")
    loader = shardio.Loader("heavy.json", 60, threads=1)
    assert next(iter(loader))["n"].min() >= 30


def test_samples_are_chosen_where_a_dataset_is_read(folder: Path) -> None:
    """`--where`, `--split` and `--part` choose as `where` and `split` do, in a dataset and in a view."""
    options = "--split train=0.8,val=0.2 --split-by label --split-seed 3"
    parts = shardio.open("data/photos").where("n < 40").split({"train": 0.8, "val": 0.2}, by="label", seed=3)
    for name, part in parts.items():
        told = json.loads(run(f"info data/photos --where 'n < 40' {options} --part {name} --json"))
        assert (told["digest"], told["samples"]) == (part.digest, len(part))
        assert told["view"]["of"]["where"] == "n < 40"
    run("view data/photos --where 'n < 40' -o data/first.json")
    assert json.loads(run(f"stats data/first.json {options} --part val --json -"))["digest"] == parts["val"].digest
    run("show data/photos --where 'label == 2' --batches --batch-size 4 -o sheet.png")
    assert (folder / "sheet.png").stat().st_size > 0


def test_an_index_of_keys_is_written(folder: Path) -> None:
    """`index --keys` writes the index of a field of any dataset beside it, and says which two samples share a key."""
    assert run("index --keys data/photos n") == "data/photos: an index finds 60 samples by 'n'\n"
    assert len([*folder.glob("data/photos/shardio.keys-*.bin")]) == 1
    assert shardio.open("data/photos").find([7, 60], on="n").tolist() == [7, -1]
    packed(Path("keyed"), [{"key": "a"}, {"key": "b"}])
    assert run("index --keys keyed") == "keyed: an index finds 2 samples by 'key'\n"
    for command, rule in (
        ("index --keys data/photos label", "56 samples repeat the 'label' of an earlier one"),
        ("index --keys data/photos", "no field 'key'"),
        ("index --keys data/photos weight", "keys are texts or integers"),
        ("index --keys data/photos n label", "a dataset and at most one field"),
        ("index --keys data/photos -o out", "writes no --output"),
        ("index data/photos", "--output must name"),
    ):
        with pytest.raises(ShardioError, match=rule):
            run(command)


def test_views_are_planned_measured_and_written(folder: Path) -> None:
    """`plan`, `bench` and `reshard` take the file of a view, and options that choose."""
    run("view data/photos --where 'label == 2' -o data/two.json")
    plan = json.loads(run("plan data/two.json --world 2 --batch-size 3 --json -"))
    assert (plan["samples"], plan["steps"]) == (15, 2)
    assert json.loads(run("plan data/photos --where 'label == 2' --world 2 --batch-size 3 --json -")) == plan
    options = "--seconds 0.2 --warmup 0 --batch-size 4 --threads 1 --prefetch 1 --json -"
    assert json.loads(run(f"bench data/two.json {options}"))["config"]["dataset"] == "data/two.json"
    told = json.loads(run(f"bench data/photos --where 'label == 2' --storage {options}"))
    assert told["config"]["dataset"].startswith('<View {"where": "label == 2"}: 15 of <Dataset ')
    run("reshard data/two.json two --to hdf5")
    run("reshard data/photos also --where 'label == 2'")
    view = shardio.open("data/two.json")
    digests = {shardio.open(path).digest for path in ("two", "also")}
    assert digests == {shardio.convert(view, "third").manifest.digest}
    split = "--split train=0.8,val=0.2 --split-by label"
    run(f"reshard data/photos val --where 'n < 40' {split} --part val --shuffle 3")
    part = shardio.open("data/photos").where("n < 40").split({"train": 0.8, "val": 0.2}, by="label")["val"]
    assert sorted(shardio.open("val").read(range(8), ["n"])["n"]) == part.read(range(8), ["n"])["n"].tolist()
    run(f"view data/photos {split} --part val -o views/val.json")
    run("merge data/two.json data/photos merged")
    assert len(shardio.open("merged")) == 75


def test_a_split_is_trained_and_validated_on(folder: Path) -> None:
    """`train` takes the part `train` and validates on `val`, unless other ones are given; a view resumes as a view."""
    from shardio.train import checkpoint

    packed(Path("data/images"), [{"image": jpeg(8, 8, seed=number), "label": number % 2} for number in range(40)])
    split = "--split train=0.8,val=0.2 --split-by label"
    options = "--epochs 1 --batch-size 16 --threads 1 --device cpu"
    run(f"train data/images {split} --output runs/one {options}")
    parts = shardio.open("data/images").split({"train": 0.8, "val": 0.2}, by="label")
    logged = json.loads(Path("runs/one/log.jsonl").read_text())
    assert logged["val_count"] == len(parts["val"])
    saved = checkpoint.load(Path("runs/one/last.pt"))
    assert saved.loader["digest"] == parts["train"].digest
    assert saved.config["train"] == repr(parts["train"])
    run(f"train data/images {split} --output runs/one {options.replace('1', '2', 1)} --resume auto")
    parts["train"].balanced("label", 30).save("even.json")
    run(f"train even.json --of data/images --val data/images --output runs/even {options}")
    assert json.loads(Path("runs/even/log.jsonl").read_text())["val_count"] == 40
    with pytest.raises(ConfigError, match=r"--part must be one of a, b, got 'train'"):
        run(f"train data/images --split a=0.8,b=0.2 --output runs/two {options}")


def test_data_elsewhere_is_given(folder: Path) -> None:
    """`--of` says what a view is of, several datasets by name."""
    run("view data/photos --where 'label == 1' -o views/one.json")
    with pytest.raises(ConfigError, match=r"of this view is not below its folder: give it with --of \.{3}$"):
        run("info views/one.json")
    assert "samples       15\n" in run("info views/one.json --of data/photos")
    (folder / "data=1").symlink_to("data")
    assert "samples       15\n" in run("info views/one.json --of data=1/photos")
    data = shardio.open("data/photos")
    shardio.mix({"a": data[:40], "b": data[9:]}, {"a": 1, "b": 3}, samples=8).save("views/mixed.json")
    told = run("info views/mixed.json --of a=data/photos --of b=data/photos")
    assert 'mix           a, b; weights {"a": 1, "b": 3}; samples 8\n' in told
    assert re.search(r"^b: slice +\[9, null, null\]\nb: of +.*/data/photos, 60 samples", told, re.M)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("info data/photos --part val", "--part goes with --split"),
        ("stats data/photos --split train=0.8,val=0.2", "--split goes with --part"),
        ("info data/photos --split train=0.8,val=0.2 --part x", "--part must be one of train, val, got 'x'"),
        ("info data/photos --split train --part x", "--split must be names and shares"),
        ("info data/photos --where 'import os'", "not a condition: 'import os'"),
        ("plan data/photos --world 1 --split train=0.8,val=0.2", "--split goes with --part"),
        ("bench data/photos --where 'import os'", "not a condition: 'import os'"),
        ("reshard data/photos out --split train=0.8,val=0.2 --split-by label", "--split-by goes with --part"),
        ("reshard data/photos out --part val", "--part goes with --split"),
        ("info data/photos --of data/photos", "--of goes with the file of a view, got 'data/photos'"),
        ("info data/photos --where 'n < 3' --cost", "--cost is for whole datasets"),
        ("view data/photos -o all.json", "which is stored already: choose from it, as with --where"),
        ("view data/photos --where 'n < 0' -o none.json", "no samples are chosen of data/photos"),
        ("view data/photos --samples 3 -o all.json", "--samples goes with --balanced or --weighted"),
        ("view data/photos --balanced n --weighted n -o a.json", "--balanced and --weighted exclude each other"),
        ("view data/photos --where 'n < 3' -o shardio.json", "a view is kept in a file such as rare.json"),
        ("info data/photos --of a=x --of a=y", "--of must be a dataset, or NAME=DATASET once for each source"),
    ],
)
def test_wrong_options_are_refused(folder: Path, command: str, message: str) -> None:
    """The error names the options as they are typed."""
    with pytest.raises(ShardioError, match=re.escape(message)):
        run(command)


def test_the_examples_work(folder: Path) -> None:
    """Each example that `shardio view --help` shows runs as it stands."""
    examples = re.findall(r"^ +(shardio (?:view|info) .*)$", run("view --help"), re.M)
    assert len(examples) == 4
    for example in examples:
        run(example.removeprefix("shardio "))

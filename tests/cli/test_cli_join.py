"""`--join`, wherever a dataset is read."""

import json
import re
import shlex
from pathlib import Path

import pytest
from _builders import jpeg
from _cli import here
from _datasets import packed

import shardio
from shardio.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the dataset `photos`, the dataset `scores`, and tables."""
    monkeypatch.chdir(tmp_path)
    images = [jpeg(20, 24, seed=n) for n in range(30)]
    packed(Path("photos"), [{"image": images[n], "label": n % 3, "key": f"k{n}"} for n in range(30)])
    packed(Path("scores"), [{"score": n / 2} for n in range(30)])
    Path("captions.csv").write_text("key,caption\n" + "".join(f"k{n},a caption of {n}\n" for n in range(20)))
    Path("new labels.jsonl").write_text("".join(f'{{"label": {n % 2}}}\n' for n in range(30)))
    return tmp_path


def run(command: str) -> str:
    """Run a command and return what it prints."""
    return here(*shlex.split(command))


def test_a_join_is_read_wherever_a_dataset_is(folder: Path) -> None:
    """All words of `--join` are arguments of `join`; conditions, parts and files of views come after it."""
    options = "--join 'captions.csv on=key how=inner' --join 'scores fields=s=score' --where 's > 2'"
    view = shardio.open("photos").join("captions.csv", on="key", how="inner")
    view = view.join("scores", fields={"s": "score"}).where("s > 2")
    told = json.loads(run(f"info photos {options} --json"))
    assert (told["digest"], told["samples"]) == (view.digest, 15)
    shown = run(f"info photos {options}")
    assert re.search(r'^join +\{"caption": "caption"\}; on key; how inner\nof +.*photos, 30 ', shown, re.M)
    assert re.search(r"^with: of +.*captions\.csv, 20 samples", shown, re.M)
    assert re.search(r"^field caption +text; joined from .*/captions\.csv$", shown, re.M)
    assert re.search(r"^s: scalar float64, joined from .*/scores$", run(f"stats photos {options}"), re.M)
    assert json.loads(run(f"stats photos {options} --json -"))["digest"] == view.digest
    run(f"view photos {options} -o view.json")
    assert shardio.open("view.json", of={"caption": "captions.csv"}).digest == view.digest
    assert json.loads(run("info view.json --of caption=captions.csv --json"))["digest"] == view.digest
    assert "15" in run(f"reshard photos out {options} --to lmdb")
    assert shardio.open("out")[0]["caption"] == "a caption of 5"
    assert shardio.open("out")[0]["s"] == 2.5
    run(f"show photos {options} --batches --batch-size 4 -o sheet.png")
    result = run(f"bench photos {options} --batch-size 4 --epochs 1")
    assert "samples/s" in result


def test_new_labels_take_the_place_of_old_ones(folder: Path) -> None:
    """`replace` is a word alone, and names with spaces are quoted within the option."""
    out = run("""stats photos --join '"new labels.jsonl" replace' --json -""")
    assert json.loads(out)["digest"] == shardio.open("photos").join("new labels.jsonl", replace=True).digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("captions.csv key", r"--join takes a dataset and on=, how=, fields= or replace, each once, got"),
        ("captions.csv on=key on=key", "each once"),
        ("captions.csv replace=yes", "each once"),
        ("captions.csv on=key how=left", "how must be one of"),
        ("", "--join takes a dataset"),
        ("'captions.csv", "--join takes a dataset"),
        ("nothing on=key", "nothing"),
        ("captions.csv on=key", "no row for 10 of 30 samples"),
    ],
)
def test_words_that_make_no_join_are_refused(folder: Path, text: str, words: str) -> None:
    """The message has the text of the option, and says what it may hold."""
    with pytest.raises((ConfigError, shardio.ShardioError), match=words):
        run(f"info photos --join {shlex.quote(text)}")

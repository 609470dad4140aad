"""Texts that a loader makes tokens of, beside a plain loop over the tokenizer."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import _datasets
import numpy as np
import pytest
import torch
from _builders import jpeg
from _foreign import write_tokenizer

import shardio
from shardio.errors import BadSample, ConfigError

tokenizers = pytest.importorskip("tokenizers")

EOD = "<|endoftext|>"
TEXTS = ["a tale of two cities", "it was the best of times", "", "it was", "the worst of times", "of", "wisdom"]
load = partial(_datasets.load, batch_size=3, shuffle=None, tail="pad")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The tokenizer.json of a tokenizer of these texts."""
    write_tokenizer(tmp_path / "tokenizer.json", TEXTS)
    return tmp_path / "tokenizer.json"


def captions(**options: Any) -> shardio.Dataset:
    """A photo with each text."""
    rows = [{"image": jpeg(16, 16, seed=number), "caption": text} for number, text in enumerate(TEXTS)]
    return shardio.from_samples(rows, {"image": "image", "caption": shardio.Field("text", **options)})


def plain(path: Path, texts: list[str], eod: str | None = None) -> list[list[int]]:
    """The tokens of each text, by a plain loop."""
    made = tokenizers.Tokenizer.from_file(str(path))
    return [made.encode(text).ids + ([] if eod is None else [made.token_to_id(eod)]) for text in texts]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verify": True},
        {"map": dict},
        {"map": dict, "map_by": "sample"},
        pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("eod", [None, EOD])
@pytest.mark.parametrize("given", [str, tokenizers.Tokenizer.from_file])
def test_images_and_captions_arrive_as_tensors(options: Any, eod: str | None, given: Any, path: Path) -> None:
    """Tokens are those of a plain loop, padded, beside the image; nothing is cut off that PadTo does not cut."""
    step = shardio.Tokenize(given(str(path)), shardio.PadTo(6, value=-100, cut="end"), eod)
    transforms = {"image": [shardio.CenterCrop(8)], "caption": [step]}
    seen = []
    for batch in load(captions(), transforms=transforms, **options):
        assert batch["image"].shape == (3, 8, 8, 3)
        assert (batch["caption"].dtype, batch["caption"].shape) == (torch.int64, (3, 6))
        for row, length, index in zip(batch["caption"], batch["caption_length"], batch["index"], strict=True):
            (expected,) = plain(path, [TEXTS[index]], eod)
            assert row[:length].tolist() == expected[:6]
            assert row[length:].tolist() == [-100] * (6 - len(expected[:6]))
            seen.append(int(index))
    assert set(seen) == set(range(len(TEXTS)))


def test_a_list_and_values_end_to_end(path: Path) -> None:
    """Without a rule tokens are a list of tensors; Ragged lays them end to end. Two names share a text."""
    fields = {"listed": "caption", "flat": "caption", "text": "caption"}
    transforms = {"listed": [shardio.Tokenize(path)], "flat": [shardio.Tokenize(path, shardio.Ragged())]}
    for batch in load(captions(), fields=fields, transforms=transforms):
        expected = plain(path, batch["text"])
        assert [tokens.tolist() for tokens in batch["listed"]] == expected
        assert [part.tolist() for part in batch["flat"].split(batch["flat_offsets"].diff().tolist())] == expected


def test_a_missing_text_has_no_tokens(path: Path) -> None:
    """A missing caption has length 0, unlike an empty one that ends, and `_present` says so."""
    rows = [{"caption": "it was"}, {"caption": None}, {"caption": ""}]
    data = shardio.from_samples(rows, {"caption": shardio.Field("text", optional=True)})
    (batch,) = load(data, transforms={"caption": [shardio.Tokenize(path, shardio.PadTo(), EOD)]})
    assert batch["caption_length"].tolist() == [len(tokens) for tokens in plain(path, ["it was"], EOD)] + [0, 1]
    assert batch["caption_present"].tolist() == [True, False, True]


def test_the_tokenizer_is_as_it_was(path: Path) -> None:
    """Truncation and padding that a tokenizer asks for are left to PadTo, and the one that was given stays as it is."""
    made = tokenizers.Tokenizer.from_file(str(path))
    made.enable_truncation(2)
    step = pickle.loads(pickle.dumps(shardio.Tokenize(made)))  # noqa: S301
    path.unlink()
    (batch, *_) = load(captions(), fields=["caption"], transforms={"caption": [step]})
    assert len(batch["caption"][0]) > 2
    assert made.truncation["max_length"] == 2


def test_a_text_that_cannot_be_encoded_is_a_bad_sample(path: Path) -> None:
    """A tokenizer without a token for unknown words names the sample that has one, which may be masked."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"it": 0, "was": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transforms = {"caption": [shardio.Tokenize(words, shardio.PadTo())]}
    with pytest.raises(BadSample, match=r"row 0 .*'caption': the tokenizer refuses it"):
        list(load(captions(), fields=["caption"], transforms=transforms))
    options: Any = {"on_bad_sample": "mask", "max_bad": 9, "tail": "drop"}
    loader = load(captions(), fields=["caption"], transforms=transforms, **options)
    lengths = [length for batch in loader for length in batch["caption_length"].tolist()]
    assert lengths == [0, 0, 0, 2, 0, 0]


def listed(values: list[Any]) -> shardio.Dataset:
    return shardio.from_samples([{"captions": value} for value in values], {"captions": "json"})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threads": 1, "prefetch": 1, "shuffle": "global"},
        {"map": dict, "map_by": "sample"},
        pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    ],
)
def test_one_text_of_each_list_is_chosen_at_random(options: Any, path: Path) -> None:
    """Each text comes about as often, others in each epoch and under another name; the sample alone decides which."""
    choices = [TEXTS[-2:], TEXTS[:1], TEXTS[:2], TEXTS[3:6]] * 100
    step = [shardio.RandomItem(), shardio.Tokenize(path, shardio.Ragged(), EOD)]
    transforms = {"a": step, "b": step}
    rows = [{"captions": texts, "n": n} for n, texts in enumerate(choices)]
    data = shardio.from_samples(rows, {"captions": "json", "n": "int64"})

    def chosen(name: str, **others: Any) -> dict[int, int]:
        given = {"fields": {"a": "captions", "b": "captions", "n": "n"}, "transforms": transforms, "seed": 5}
        made = {}
        for batch in load(data, **given | options | others):
            parts = batch[name].split(batch[f"{name}_offsets"].diff().tolist())
            for number, tokens in zip(batch["n"].tolist(), parts, strict=True):
                made[number] = plain(path, choices[number], EOD).index(tokens.tolist())
        return made

    first = chosen("a")
    assert len(first) == len(choices)
    assert first == chosen("a", batch_size=32)
    assert first != chosen("b")
    assert first != chosen("a", seed=6)
    for kind in range(4):
        found = np.bincount([item for number, item in first.items() if number % 4 == kind])
        assert len(found) == len(choices[kind])
        assert found.min() > 60 / len(found)


@pytest.mark.parametrize("value", ["it was", [], ["it", 3], {"it": "was"}, None])
def test_what_is_no_list_of_texts_is_a_bad_sample(value: Any, path: Path) -> None:
    """The error names the sample and shows what it has in place of a list."""
    transforms = {"captions": [shardio.RandomItem(), shardio.Tokenize(path, shardio.PadTo())]}
    with pytest.raises(BadSample, match=r"row 1 .*'captions': RandomItem takes a list of strings, got"):
        list(load(listed([["it"], value, ["was"]]), transforms=transforms))


def test_what_does_not_suit_is_refused(path: Path) -> None:
    """A tokenizer that is none, a token that it lacks, other fields, and other steps beside it are errors."""
    make: Any = shardio.Tokenize
    step = make(path)
    with pytest.raises(ConfigError, match=r"tokenizer must be a tokenizer\.json: .*gone\.json: No such file"):
        shardio.Tokenize(path.parent / "gone.json")
    with pytest.raises(ConfigError, match=r"tokenizer must be the path of a .*, got object"):
        make(object())
    with pytest.raises(ConfigError, match=r"eod must be in the vocabulary of .*tokenizer\.json, got '</s>'"):
        shardio.Tokenize(path, eod="</s>")
    with pytest.raises(ConfigError, match="then must be a PadTo or Ragged, got 3"):
        make(path, then=3)
    with pytest.raises(ConfigError, match="texts only Tokenize"):
        load(captions(), transforms={"caption": [step, shardio.PadTo()]})
    with pytest.raises(ConfigError, match="a text field takes one Tokenize"):
        load(captions(), transforms={"caption": [step, step]})
    with pytest.raises(ConfigError, match="must be a shardio image transform"):
        load(captions(), transforms={"image": [step]})
    arrays = shardio.from_samples([{"x": np.zeros(3)}] * 4)
    with pytest.raises(ConfigError, match="must be a shardio array transform"):
        load(arrays, transforms={"x": [step]})
    with pytest.raises(ConfigError, match=r"texts only Tokenize, .* behind RandomItem\(\) for lists of texts"):
        load(captions(), transforms={"caption": [shardio.RandomItem(), step]})
    for steps in ([step], [shardio.RandomItem()], [shardio.RandomItem(), shardio.RandomItem(), step]):
        with pytest.raises(ConfigError, match="a field of JSON takes RandomItem and then one Tokenize"):
            load(listed([["it"]]), transforms={"captions": steps})

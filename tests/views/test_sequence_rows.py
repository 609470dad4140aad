"""Rows of one length made of documents: no token lost, none twice, over any ranks and resumed by any others."""

import itertools
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import load, packed
from _jobs import Job, exact_over_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.dataset.dataset import Dataset
from shardio.errors import BadSample, ConfigError, ShardCorrupt, StateMismatch
from shardio.format.fields import length_column

LENGTHS = st.lists(st.integers(0, 3) | st.integers(0, 30), max_size=30)
COLUMNS = {"positions": True, "documents": True, "cu_seqlens": True}


def corpus(lengths: list[int], shard_samples: int = 7) -> Dataset:
    """Documents of some lengths, whose tokens are numbered through."""
    ends = list(itertools.accumulate(lengths, initial=0))
    rows = [{"tokens": np.arange(a, b, dtype=np.uint32), "n": n} for n, (a, b) in enumerate(itertools.pairwise(ends))]
    return shardio.from_samples(rows, {"tokens": ("uint32", (None,)), "n": "int64"}, shard_samples=shard_samples)


def own_documents(lengths: list[int]) -> list[int]:
    """The document of each token of a corpus."""
    return [document for document, length in enumerate(lengths) for _ in range(length)]


def columns_of(documents: list[int]) -> tuple[list[int], list[int], list[int]]:
    """The places, the documents and the lengths of segments in a row, by the document of each entry, -1 in padding."""
    places: list[int] = []
    numbers: list[int] = []
    lengths: list[int] = []
    for number, (document, group) in enumerate(itertools.groupby(documents)):
        count = len(list(group))
        places += range(count) if document >= 0 else [0] * count
        numbers += [number if document >= 0 else -1] * count
        lengths.append(count)
    return places, numbers, lengths


@given(LENGTHS, st.integers(1, 12), st.data())
def test_a_cut_row_is_what_follows_a_place_on_the_ring(lengths: list[int], length: int, data: st.DataObject) -> None:
    """From any place, a row is the tokens that follow, over the end to the beginning, with their documents."""
    rows = corpus(lengths).cut("tokens", length, **COLUMNS)
    total, own = sum(lengths), own_documents(lengths)
    assert (len(rows), rows.padding) == (total // length, 0.0)
    assert rows.numbers == (total if total >= length else 0)
    if not len(rows):
        with pytest.raises(ConfigError, match="at least one sample"):
            load(rows, 1)
        return
    places = data.draw(st.lists(st.integers(0, total - 1), max_size=6))
    read = rows.read(places)
    expected = [[(place + n) % total for n in range(length)] for place in places]
    assert read["tokens"].tolist() == expected
    assert read["tokens"].dtype == np.int64
    assert rows.origin(places).tolist() == [[own[token] for token in row] for row in expected]
    for row, tokens in enumerate(expected):
        # A document that a row both ends and begins with counts as two.
        documents = [own[token] + len(lengths) * (token < tokens[0]) for token in tokens]
        positions, numbers, segments = columns_of(documents)
        assert read["tokens_position"][row].tolist() == positions
        assert read["tokens_document"][row].tolist() == numbers
        assert read["tokens_cu_seqlens"][row].tolist() == segments


@given(LENGTHS, st.integers(1, 12))
def test_packed_rows_have_each_token_once(lengths: list[int], length: int) -> None:
    """Documents stay whole unless they are longer than a row, whose pieces fill rows; what is left has padding."""
    rows = corpus(lengths).packed("tokens", length, value=-7, **COLUMNS)
    read = rows.read(range(len(rows)))
    own, origins = own_documents(lengths), rows.origin(range(len(rows))).tolist()
    there: list[int] = []
    pieces: Counter[int] = Counter()
    for row, tokens in enumerate(read["tokens"].tolist()):
        count = int(read["tokens_length"][row])
        there += tokens[:count]
        assert tokens[count:] == [-7] * (length - count)
        documents = [own[token] for token in tokens[:count]] + [-1] * (length - count)
        assert origins[row] == documents
        pieces.update({*documents} - {-1})
        positions, numbers, segments = columns_of(documents)
        assert read["tokens_position"][row].tolist() == positions
        assert read["tokens_document"][row].tolist() == numbers
        assert read["tokens_cu_seqlens"][row].tolist() == segments
    assert sorted(there) == list(range(len(own)))
    assert all(pieces[document] == -(-count // length) for document, count in enumerate(lengths))
    full = sum(count // length for count in lengths)
    assert read["tokens_length"][:full].tolist() == [length] * full
    if len(rows):
        assert rows.padding == pytest.approx(1 - len(own) / (len(rows) * length))


def tokens_of(batches: Any) -> list[int]:
    """The tokens of batches, without padding."""
    got: list[int] = []
    for batch in batches:
        for row in np.flatnonzero(batch["valid"].numpy()).tolist():
            tokens = batch["tokens"][row].tolist()
            got += tokens[: int(batch["tokens_length"][row])] if "tokens_length" in batch else tokens
    return got


@settings(max_examples=40)
@given(
    LENGTHS, st.integers(1, 12), st.booleans(), st.integers(1, 3), st.integers(1, 5),
    st.sampled_from(["global", "block", None]), st.integers(0, 3), st.data(),
)  # fmt: skip
def test_an_epoch_is_exact_over_any_ranks(
    lengths: list[int], length: int, whole: bool, size: int, batch: int, shuffle: Any, epoch: int, data: st.DataObject
) -> None:
    """Any world delivers each token of packed rows once, of cut ones all but fewer than a row; any other resumes it."""
    documents = corpus(lengths)
    view = documents.packed("tokens", length) if whole else documents.cut("tokens", length)
    if not len(view):
        return

    options: dict[str, Any] = {"shuffle": shuffle, "block": 3, "window": 2, "seed": 1}
    ends = Job(view, 1, 4, **options)
    ends.loaders[0].set_epoch(epoch)
    start = ends.loaders[0].state_dict()
    ends.run()
    expected = sorted(tokens_of(ends.batches))
    assert len(expected) == len({*expected}) == (sum(lengths) if whole else len(view) * length)
    assert sum(lengths) - len(expected) < length
    assert sorted(exact_over_ranks(view, size, batch, data, tokens_of, start=start, **options)) == expected


@pytest.mark.parametrize("container", ["hdf5", "tar", "lmdb", "memory"])
@pytest.mark.parametrize("whole", [False, True])
def test_containers_give_the_same_rows(tmp_path: Path, container: str, whole: bool) -> None:
    """Rows are the same from any container, with threads and with processes, and after pickling."""
    lengths = np.random.default_rng(3).integers(0, 90, 60).tolist()
    source = corpus(lengths)
    dataset = source
    if container != "memory":
        dataset = packed(tmp_path / "d", list(source), source.fields, container=container, shard_size=2000)
    rows, expected = (
        each.packed("tokens", 40, **COLUMNS) if whole else each.cut("tokens", 40, **COLUMNS)
        for each in (dataset, source)
    )
    assert len(rows) == len(expected)
    numbers = range(0, rows.numbers, 3)
    for read in (rows.read(numbers), pickle.loads(pickle.dumps(rows)).read(numbers)):  # noqa: S301  # our own
        for name, values in expected.read(numbers).items():
            assert all(map(np.array_equal, read[name], values))
    first, second = (
        [batch["tokens"].tolist() for batch in load(each, 5, threads=2, isolate=isolate, verify=True)]
        for each, isolate in ((rows, container == "hdf5"), (expected, False))
    )
    assert first == second


def test_whole_numbers_of_up_to_32_bits_become_int64() -> None:
    """Rows have the documents' dtype and the shape of their entries; small integers become int64."""
    for dtype, expected in {"uint16": "int64", "int8": "int64", "uint32": "int64", "uint64": "uint64"}.items():
        data = shardio.from_samples([{"t": np.arange(9, dtype=dtype)}], {"t": (dtype, (None,))})
        assert data.cut("t", 4).fields["t"] == shardio.Field("array", expected, (4,), window=True)
        assert data.cut("t", 4)[1]["t"].tolist() == [4, 5, 6, 7]
    points = shardio.from_samples(
        [{"t": np.full((n, 3), n, np.float32)} for n in range(5)], {"t": ("float32", (None, 3))}
    )
    for rows in (points.cut("t", 4), points.packed("t", 4, value=0.5)):
        assert rows.fields["t"].shape == (4, 3)
        assert rows.read(range(2))["t"].dtype == np.float32
    packed_points = points.packed("t", 4, value=0.5)
    read = packed_points.read(range(len(packed_points)))["t"]
    assert read[..., 0].tolist() == [[4, 4, 4, 4], [3, 3, 3, 1], [2, 2, 0.5, 0.5]]
    with pytest.raises(ConfigError, match="rows are made of documents"):
        packed_points.cut("t", 2)
    with pytest.raises(ConfigError, match="windows are made of rows"):
        packed_points.windows(2, within="dataset")


def test_views_of_rows_and_rows_of_views() -> None:
    """Rows are made of chosen or joined documents; packed rows are chosen, split and weighed, cut ones are mixed."""
    data = corpus([10, 3, 8, 25, 1, 0, 13])
    odd = data.select([1, 3, 5])
    assert sorted(odd.packed("tokens", 8).read(range(4))["tokens"].reshape(-1).tolist())[4:] == [
        10,
        11,
        12,
        *range(21, 46),
    ]
    joined = shardio.concat({"one": odd, "other": data})
    assert len(joined.cut("tokens", 8)) == (28 + 60) // 8
    assert joined.cut("tokens", 8)[3]["tokens"].tolist() == [*range(42, 46), *range(4)]
    rows = data.packed("tokens", 8)
    full = rows.where("tokens_length == 8")
    assert full.read(range(len(full)))["tokens_length"].tolist() == [8] * len(full)
    assert 0 < len(full) < len(rows)
    assert len(rows.weighted("tokens_length", 30)) == 30
    parts = rows.split({"a": 0.5, "b": 0.5})
    assert len(parts["a"]) + len(parts["b"]) == len(rows)
    assert len(shardio.concat({"rows": rows, "again": rows})) == 2 * len(rows)

    cut = data.cut("tokens", 8)
    for refused in (lambda: cut.where("tokens_length > 3"), lambda: cut.select([0]), lambda: cut[:2]):
        with pytest.raises(ConfigError, match="draws them anew in each epoch: choose first"):
            refused()
    with pytest.raises(ConfigError, match="cannot be joined"):
        shardio.concat({"cut": cut})
    mixed = shardio.mix({"web": cut, "code": odd.cut("tokens", 8)}, {"web": 2, "code": 1}, samples=9)
    batches = list(load(mixed, 3))
    sources = np.concatenate([batch["source"].numpy() for batch in batches])
    tokens = np.concatenate([batch["tokens"].numpy() for batch in batches])
    assert np.bincount(sources).tolist() == [6, 3]
    for source, total in ((0, 60), (1, 28)):
        held = tokens[sources == source].reshape(-1)
        assert len({*held.tolist()}) == len(held) <= total  # each source keeps its own ring


def test_rows_are_told() -> None:
    """What rows hold, and how much of it is padding, is in their text; equal rows have equal digests."""
    data = corpus([5, 5, 3])
    rows = data.packed("tokens", 8)
    assert rows.padding == 1 - 13 / 16
    assert repr(rows).startswith('<SequenceRows {"packed": "tokens", "length": 8}: 2, 18.75% padding of ')
    assert repr(data.cut("tokens", 8)).startswith('<SequenceRows {"cut": "tokens", "length": 8}: 1 an epoch of ')
    assert "cannot be shown" not in rows._repr_html_()
    assert rows.digest == corpus([5, 5, 3]).packed("tokens", 8).digest
    others = (
        data.packed("tokens", 9),
        data.packed("tokens", 8, value=1),
        data.cut("tokens", 8),
        data[1:].packed("tokens", 8),
    )
    assert len({rows.digest, *(other.digest for other in others)}) == 5
    assert (rows.shard_means == 64).all()
    assert rows.locate(0).index == 0
    with pytest.raises(StateMismatch, match="digest"):
        load(others[0], 1).load_state_dict(load(rows, 1).state_dict())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda data: data.cut("n", 8), r"rows are made of documents, .*'n' is scalar, int64; there are tokens \("),
        (lambda data: data.cut("other", 8), "no field 'other'"),
        (lambda data: data.cut("tokens", 0), "length must be an integer of at least 1, got 0"),
        (lambda data: data.packed("tokens", 1 << 31), "length must be below 2147483648"),
        (lambda data: data.packed("tokens", 8, value=0.5), "value must be one that int64 holds, got 0.5"),
        (lambda data: data.packed("tokens", 8, value=float("nan")), "value must be a number below 2"),
        (lambda data: data.packed("tokens", 8, value="0"), "value must be a number"),
    ],
)
def test_what_makes_no_rows_is_refused(make: Any, told: str) -> None:
    """Other fields and lengths, and padding that rows cannot hold, are refused in words."""
    with pytest.raises(ConfigError, match=told):
        make(corpus([3, 4]))


def test_text_is_told_what_makes_tokens_of_it() -> None:
    """A text field is no documents of tokens yet."""
    texts = shardio.from_samples([{"text": "a b"}])
    with pytest.raises(ConfigError, match="'text' is text: shardio convert text --tokenizer"):
        texts.packed("text", 8)


def test_a_token_beyond_the_vocabulary_is_a_bad_sample() -> None:
    """The error names the document's shard and row, the token and its place; the loader replaces or masks its row."""
    field = shardio.Field("array", "uint16", (None,), attributes={"vocabulary": 50})
    documents = [np.arange(n, n + 9, dtype=np.uint16) for n in (0, 1, 42, 3)]
    data = shardio.from_samples([{"tokens": tokens} for tokens in documents], {"tokens": field}, shard_samples=2)
    for rows in (data.cut("tokens", 9), data.packed("tokens", 9)):
        place = r"row 0 \(sample 2\), field 'tokens': token 50 at place 8 is not in the vocabulary, which has 50 tokens"
        with pytest.raises(BadSample, match=place):
            rows.read([18] if rows.orders_itself else range(4))
        loader = load(rows, 2, on_bad_sample="replace", max_bad=3, shuffle=None)
        assert all((batch["tokens"] < 50).all() for batch in loader)
        assert "token 50 at place 8" in str(loader.quarantine()[0])


def test_padding_that_a_float_cannot_hold_is_refused() -> None:
    """It would become infinite without a word."""
    data = shardio.from_samples([{"x": np.ones(3, np.float16)}], {"x": ("float16", (None,))})
    assert data.packed("x", 4, value=0.5).read([0])["x"].tolist() == [[1, 1, 1, 0.5]]
    with pytest.raises(ConfigError, match="value must be one that float16 holds, got 1000000"):
        data.packed("x", 4, value=1e6)


def test_a_negative_token_is_a_bad_sample() -> None:
    """No vocabulary has it, in rows as in padded values."""
    field = shardio.Field("array", "int32", (None,), attributes={"vocabulary": 50})
    data = shardio.from_samples([{"tokens": np.array([1, -5, 60], np.int32)}], {"tokens": field})
    for rows in (data.cut("tokens", 3), data.packed("tokens", 3)):
        with pytest.raises(BadSample, match="token -5 at place 1 is not in the vocabulary, which has 50 tokens"):
            rows.read([0])
    with pytest.raises(BadSample, match="token -5"):
        list(load(data, 1, transforms={"tokens": [shardio.PadTo()]}))


def test_a_batch_has_the_boundaries_of_its_documents() -> None:
    """They count on over the rows of the batch, laid end to end; padding and a masked row are segments of their own."""
    field = shardio.Field("array", "uint16", (None,), attributes={"vocabulary": 50})
    documents = [np.full(length, 50 * (length == 4), np.uint16) for length in (6, 3, 2, 4, 1)]
    data = shardio.from_samples([{"tokens": tokens} for tokens in documents], {"tokens": field})
    rows = data.packed("tokens", 6, cu_seqlens=True)
    for options in ({}, {"isolate": True, "threads": 1}):
        loader = load(rows, 3, on_bad_sample="mask", max_bad=3, shuffle=None, **options)
        (batch,) = loader
        assert batch["tokens_cu_seqlens"].dtype == torch.int32
        # Rows: 6; 4 + 2, masked as one of 6; 3 + 1 and 2 of padding.
        assert batch["tokens_cu_seqlens"].tolist() == [0, 6, 12, 15, 16, 18]
        assert batch["valid"].tolist() == [True, False, True]
    with pytest.raises(ConfigError, match="lengths of segments take no transforms"):
        load(rows, 3, transforms={"tokens_cu_seqlens": [shardio.PadTo()]})


@pytest.mark.parametrize("make", [Dataset.cut, Dataset.packed])
def test_targets_that_begin_a_document_have_position_0(make: Any) -> None:
    """A token's target is the next one of its document: what positions leave is exactly what documents have."""
    view = make(corpus([5, 3, 0, 3, 17, 1, 1, 6]), "tokens", 8, positions=True, documents=True)
    masked = []
    for batch in shardio.Loader(view, 2, shuffle=None):
        tokens, numbers = batch["tokens"], batch["tokens_document"]
        targets = tokens.masked_fill(batch["tokens_position"] == 0, -100)[:, 1:]
        within = (numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] >= 0)
        assert torch.equal(targets, tokens[:, 1:].masked_fill(~within, -100))
        masked.append(bool((targets == -100).any()))
    assert any(masked)


def test_damage_is_told_with_row_and_document(tmp_path: Path) -> None:
    """With verify=True a changed document is named with the row that holds it; each document is checked once."""
    dataset = packed(tmp_path / "d", list(corpus([9, 9, 9])), corpus([1]).fields, container="tar")
    shard = tmp_path / "d" / dataset.manifest.shards.names[0]
    data = shard.read_bytes()
    wrong = data.replace(np.uint32(13).tobytes(), np.uint32(14).tobytes(), 1)
    assert wrong != data
    shard.write_bytes(wrong)
    rows = shardio.open(tmp_path / "d").packed("tokens", 20)
    with pytest.raises(ShardCorrupt, match=r"row 0: .*row 1 \(sample 1\).*checksum"):
        list(load(rows, 1, verify=True, shuffle=None))


def test_lengths_that_no_value_has_are_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative length, or one that no value may have, is named by its document before any memory is taken."""
    data = corpus([3, 4, 5], shard_samples=2)
    real = type(data.selection(np.arange(1))).column
    for wrong in (-1, 1 << 40):

        def column(self: Any, name: str, out: Any = None, wrong: int = wrong) -> Any:
            values = real(self, name, out)
            if name == length_column("tokens"):
                values[2:] = wrong
            return values

        with monkeypatch.context() as patched:
            patched.setattr(type(data.selection(np.arange(1))), "column", column)
            for make in (data.cut, data.packed):
                with pytest.raises(ShardCorrupt, match=rf"row 0 \(sample 2\), field 'tokens': has a length of {wrong}"):
                    make("tokens", 4)

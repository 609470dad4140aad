"""Conditions: on numbers of any type, texts, names of classes and missing values; no text does any harm."""

import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _datasets import packed
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardio
from shardio.containers.packed_values import PackedValues
from shardio.errors import ConfigError
from shardio.format.fields import Field, as_fields
from shardio.source import Source
from shardio.views.expression import Expression

Columns = Mapping[str, "NDArray[Any] | Sequence[str]"]


def chosen(text: str, columns: Columns, metadata: Mapping[str, Any] | None = None) -> list[int]:
    """Return for which rows of columns a condition holds, as 0 and 1."""
    fields = {
        name: Field("scalar", dtype=column.dtype.name) if isinstance(column, np.ndarray) else Field("text")
        for name, column in columns.items()
    }
    condition = Expression(text).bind(fields, metadata or {})
    count = len(next(iter(columns.values())))
    stored = {n: c if isinstance(c, np.ndarray) else [text.encode() for text in c] for n, c in columns.items()}
    return condition(count, stored).astype(int).tolist()


VALUES = {
    "label": np.array([3, 0, 12, 9, 5]),
    "score": np.array([0.5, -1.0, 2.0, np.nan, 0.0]),
    "good": np.array([True, False, True, True, False]),
    "meta.age": np.array([10, 20, 30, 40, 50], np.uint8),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label < 10", [1, 1, 0, 1, 1]),
        ("3 <= label < 10", [1, 0, 0, 1, 1]),
        ("label not in [3, 12]", [0, 1, 0, 1, 1]),
        ("good and not label == 3", [0, 0, 1, 1, 0]),
        ("score > 0 or label == 0", [1, 1, 1, 0, 0]),
        ("score == score", [1, 1, 1, 0, 1]),
        ("label % 2 == 1", [1, 0, 0, 1, 1]),
        ("label // 2 + 1 > -score * 2", [1, 0, 1, 0, 1]),
        ("label / 0 > 1", [1, 0, 1, 1, 1]),
        ("meta.age + meta.age > 70 and -label != 1", [0, 0, 0, 1, 1]),
        ("good == True", [1, 0, 1, 1, 0]),
        ("label < 99999999999999999999999", [1, 1, 1, 1, 1]),
        ("True and label < 4", [1, 1, 0, 0, 0]),
    ],
)
def test_conditions(text: str, expected: list[int]) -> None:
    """A condition selects the samples that Python and NumPy select."""
    with np.errstate(all="raise"):
        assert chosen(text, VALUES) == expected


NARROW = {
    "w": np.array([2000, 1000, 60000], np.uint16),
    "a": np.array([5, 200, 3], np.uint8),
    "b": np.array([4, 100, 200], np.uint8),
    "t": np.array([-128, 100, 0], np.int8),
    "score": np.array([0.7, 0.1, 2.0], np.float32),
    "half": np.array([300.0, 0.1, 1.0], np.float16),
    "id": np.array([2**53 + 1, 2**53, 0], np.int64),
    "big": np.array([2**64 - 1, 2**63, 1], np.uint64),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("w * w > 1000000", [1, 0, 1]),  # 16 bits would give 2304 for the first
        ("b - a > 0", [0, 0, 1]),  # without a sign, all would be
        ("a + b == 300", [0, 1, 0]),  # 8 bits hold no 300
        ("-t == 128", [1, 0, 0]),  # int8 has no 128
        ("a * 1000 > 100000", [0, 1, 0]),  # nor uint8 a 1000
        ("score == 0.7", [1, 0, 0]),  # float64's 0.7 is another number
        ("-score == -0.7", [1, 0, 0]),
        ("score - 0.1 == 0", [0, 1, 0]),
        ("score in (0.1, 0.7)", [1, 1, 0]),
        ("half * half > 80000", [1, 0, 0]),  # float16 ends at 65504
        ("half < 1e9", [1, 1, 1]),
        ("id * id * id == 730750818665451702490757660178213618792745926657", [1, 0, 0]),  # far beyond int64
        ("big + 1 == 18446744073709551616", [1, 0, 0]),
        ("a + 99999999999999999999 > 0", [1, 1, 1]),
        ("id == 9007199254740993", [1, 0, 0]),
        ("id == 9007199254740992.0", [0, 1, 0]),  # float64 rounds the first to it
        ("id / 1 > 0", [1, 1, 0]),
        ("big > 9223372036854775807", [1, 1, 0]),
        ("big == 18446744073709551615", [1, 0, 0]),
        ("big > id", [1, 1, 1]),
        ("score < 10000000000000000000000000000000000000000000000000", [1, 1, 1]),  # more than float32 holds
        ("t != 0 and a % t >= 0 or a == 3", [0, 1, 1]),  # a divisor of 0 is kept from the division
        ("t == 0 or a // t > 0", [0, 1, 1]),
        (f"{' * '.join(['big'] * 60)} > {2**3800}", [1, 0, 0]),
    ],
)
def test_conditions_on_narrow_numbers(text: str, expected: list[int]) -> None:
    """Integers do not wrap around, and a float32 field is compared with what float32 holds of the written number."""
    assert chosen(text, NARROW) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a % t > 0", "'a % t' cannot be computed, in 'a % t > 0': integer"),
        ("a > 1 / 0", "'1 / 0' cannot be computed, in 'a > 1 / 0': .*division by zero"),
        (f"a > {10**400} / 3", "cannot be computed, .*: int too large to convert to float"),
        (
            f"({' * '.join(['big'] * 50)}) * ({' * '.join(['big'] * 50)}) > 0",
            "its integers may have more than 4,096 bits",
        ),
        (f"a + {2**4097} > 0", "its integers may have more than 4,096 bits"),
    ],
)
def test_what_cannot_be_computed_is_refused(text: str, message: str) -> None:
    """Divisions of integers by zero, integers beyond float64 or of too many bits are errors that name the operation."""
    with pytest.raises(ConfigError, match=message):
        chosen(text, NARROW)


@pytest.mark.parametrize(
    "text",
    [
        "", "label <", "1 < 2", "label", "label + 1", "__import__('os').system('true')", "label.__class__ < 3()",
        "label[0] < 1", "lambda: label", "label if good else score", "label == 'cat'", "[x for x in label]",
        "label < 1; good", "label ** 99 > 1", "label << 2 > 1", "label is 3", "label in 3", "label in ()",
        "(label, 1) < 3", "f'{label}' < 1", "good and label", "not label", "(label := 3) < 4", "await label",
        "label @ label < 1", "~label < 1", "label < None", "label < 1j", "-" * 100 + "label < 1",
        "(" * 300 + "label" + ")" * 300 + " < 1", "label < 1 " * 1000, "label < \x00", "label in (label for x in 3)",
        "*label < 3", "print(label) < 3", "label.age.__init__() < 1", "...", "label < ...", "label < b'a'",
        "key.startswith()", "key.startswith(3)", "key.startswith(('a', 3))", "key.startswith(('a'), 1)",
        "key.startswith(prefix='a')", "key.startswith(*['a'])", "key.startswith(f'{key}')", "key.startswith(key)",
        "key.endswith('a')", "key.startswith", "key.startswith.a('a')", "'a'.startswith(key)", "(key).lower() == 'a'",
        "key.startswith('a').real == 1", "getattr(key, 'startswith')('a')", "key.__class__.startswith('a')",
        "key['a'] == 'a'", "key % 'a' == 'a'", "key + 'a' == 'aa'", "key * 99999999 == 'a'", "'%s' % key == 'a'",
        "key < 'a'", "'a' < key < 'b'", "key == 3", "key in (3, 'a')", "key in 'a'", "'a' in 'abc'",
        "'a' in ('a', 'b')",
        "key == key", "key in (key, 'a')", "'a' == 'a' and good", "key", "not key", "key and good", "'a' and good",
        "'a' in label", "label.startswith('a')", "'a' in good", "1 in key", "label in key", "'\\ud800' in key",
        "key == '\\ud800'", "key.startswith('\\udc00')", "key == u'a' 'b' f''", "key == ('a', 'b')", "label == ('a',)",
        "key in ('a' if good else 'b', 'c')", "key == 'a' + 'b'", "key in {'a'}", "key in {'a': 1}", "key is 'a'",
        "'a' is None", "None in key", "label < 'a'", "score == 'cat'", "key in ()", "key == b'a'", "()", "('a',)",
        "key.startswith('a', 'b')", "x" * 5000, "key == '" + "x" * 5000 + "'", "a" + ".b" * 2000 + " < 1",
        "(" * 4000, "-" * 4000 + "label < 1", "not " * 1000 + "good", "label < 1" + " + 1" * 900,
        "'a' in " * 500 + "key",
    ],
)  # fmt: skip
def test_no_conditions(text: str) -> None:
    """Text that is not a condition on fields is refused, and no part of it is run."""
    with pytest.raises(ConfigError, match=r"condition|takes|a list may|a dot may|a text is|only a text|has no names"):
        chosen(text, VALUES | {"key": ["a"] * 5})


TOKENS = [
    "label", "score", "key", "note", "'a'", '"val/"', "1", "0.5", "None", "True", "(", ")", "[", "]", ",", " in ",
    " not ", " is ", " and ", " or ", " == ", " != ", " < ", "+", "-", "*", "/", "//", "%", ".startswith(", ".", "f'",
    "'", "\\", "{", "lambda ", ":", "=", "__class__", "print(", "\\ud800", "\n", "#", ";", "é", "\x00",
]  # fmt: skip


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)))
def test_no_text_does_harm(text: str) -> None:
    """Any text is either a condition or a ConfigError."""
    fields = {"label": Field("scalar", dtype="int64"), "score": Field("scalar", dtype="float32"), "key": Field("text")}
    values = {"label": np.arange(3), "score": np.zeros(3, np.float32), "key": [b"a", b"", b"val/\xff"]}
    with contextlib.suppress(ConfigError):
        assert Expression(text).bind(fields, {"classes": ["a"]})(3, values).shape == (3,)


KEYS = ["val/a", "train/val", "", "vál/ü", "val/", "train/b/val/", "val/ab", "aval/"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key == 'val/a'", [1, 0, 0, 0, 0, 0, 0, 0]),
        ("'val/a' == key", [1, 0, 0, 0, 0, 0, 0, 0]),
        ("key != 'val/a'", [0, 1, 1, 1, 1, 1, 1, 1]),
        ("key == ''", [0, 0, 1, 0, 0, 0, 0, 0]),
        ("key in ('val/a', 'vál/ü', 'no')", [1, 0, 0, 1, 0, 0, 0, 0]),
        ("key not in ['val/a', '']", [0, 1, 0, 1, 1, 1, 1, 1]),
        ("'val/' in key", [1, 0, 0, 0, 1, 1, 1, 1]),
        ("'val/' not in key", [0, 1, 1, 1, 0, 0, 0, 0]),
        ("'' in key", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("'á' in key", [0, 0, 0, 1, 0, 0, 0, 0]),
        ("key.startswith('val/')", [1, 0, 0, 0, 1, 0, 1, 0]),
        ("not key.startswith(('val/', 'train/'))", [0, 0, 1, 1, 0, 0, 0, 1]),
        ("key.startswith('')", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("'val' in key and key.startswith('train') and n != 1", [0, 0, 0, 0, 0, 1, 0, 0]),
        ("n < 2 or 'b' in key", [1, 1, 0, 0, 0, 1, 1, 0]),
        ("('val/' in key) == (n > 3)", [0, 1, 1, 1, 1, 1, 1, 1]),
        ("'v' in key != 'val/a'", [0, 1, 0, 1, 1, 1, 1, 1]),  # chained, as in Python
        ("meta.key == 'x' 'y'", [0, 1, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_texts(text: str, expected: list[int]) -> None:
    """Texts are found by equality, lists, parts and prefixes, as Python finds them."""
    other = ["x", "xy", "yx", "xyy", "", "X", "XY", "y"]
    assert chosen(text, {"key": KEYS, "n": np.arange(8), "meta.key": other}) == expected


LABELS = {"label": np.array([0, 1, 2, 3, -1], np.int16), "kind": np.array([1, 0, 1, 0, 7], np.uint8)}
METADATA = {"classes": ["cat", "dog", "crane", "crane"], "classes.kind": ["wild", "tame"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label == 'cat'", [1, 0, 0, 0, 0]),
        ("'cat' != label", [0, 1, 1, 1, 1]),
        ("label in ('cat', 'dog', -1)", [1, 1, 0, 0, 1]),
        ("label not in ('cat', 'dog')", [0, 0, 1, 1, 1]),
        ("label == 'crane'", [0, 0, 1, 1, 0]),  # two classes of one name
        ("label != 'crane'", [1, 1, 0, 0, 1]),
        ("label == 'crane' and kind == 'tame'", [0, 0, 1, 0, 0]),
    ],
)
def test_names_of_classes(text: str, expected: list[int]) -> None:
    """A text that a number is compared with is the number of the class of that name, or of all that share it."""
    assert chosen(text, LABELS, METADATA) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label == 'catt'", r"'label' has no class 'catt', in \"label == 'catt'\"; there are 4, such as 'cat'$"),
        ("label in ('cat', 'zzz')", "no class 'zzz', .* there are 4, such as 'cat', 'dog', 'crane', '...'"),
        ("kind == 'Wild'", "there are 2, such as 'wild'"),
        ("n == 'cat'", "'n' has no names of classes, got 'cat'"),
        ("image == 1", r"on scalar and text fields \(label, kind, n, key\), got 'image' in"),
        ("image is None and lable == 1", r"got 'lable'"),
        ("picture is None", r"on fields \(label, kind, n, key, image\), got 'picture' in"),
    ],
)
def test_what_does_not_fit_fields_and_classes(text: str, message: str) -> None:
    """A name that is no field, no field to compare or no class is refused with those that there are."""
    fields = {name: Field("scalar", dtype="int64") for name in ("label", "kind", "n")}
    fields |= {"key": Field("text"), "image": Field("image")}
    with pytest.raises(ConfigError, match=message):
        Expression(text).bind(fields, METADATA)


Truth = bool | None
Row = dict[str, Any]
Part = tuple[str, Callable[[Row], Any]]
ROW_FIELDS = {
    "a": Field("scalar", dtype="uint8"),
    "b": Field("scalar", dtype="int64", optional=True),
    "c": Field("scalar", dtype="uint64"),
    "s": Field("scalar", dtype="float32", optional=True),
    "key": Field("text"),
    "note": Field("text", optional=True),
    "label": Field("scalar", dtype="int16", optional=True),
}
NAMED = ["cat", "dog", "cat", "cow"]
SCALARS, TEXTS = ["a", "b", "c", "s", "label"], ["key", "note"]
texts = st.text("ab/é", max_size=14)
values = {
    "a": st.integers(0, 255),
    "b": st.none() | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, -1, 0, 1, 7]),
    "c": st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    "s": st.none() | st.sampled_from([-1.5, 0.0, 0.25, 7.0]),
    "key": texts | st.sampled_from(["ab/" * 9, "é" * 30]),
    "note": st.none() | texts,
    "label": st.none() | st.integers(-1, 3),
}


def calculation(symbol: str, left: Part, right: Part) -> Part:
    def value(row: Row) -> Any:
        first, second = left[1](row), right[1](row)
        if first is None or second is None:
            return None
        return {"+": lambda: first + second, "-": lambda: first - second, "*": lambda: first * second}[symbol]()

    return f"({left[0]} {symbol} {right[0]})", value


def comparison(symbol: str, left: Part, right: Part) -> Part:
    def truth(row: Row) -> Truth:
        first, second = left[1](row), right[1](row)
        if first is None or second is None:
            return None
        return {"==": first == second, "!=": first != second, "<": first < second, ">=": first >= second}[symbol]

    return f"{left[0]} {symbol} {right[0]}", truth


def known(name: str, source: str, found: Callable[[Any], bool]) -> Part:
    return source, lambda row: None if row[name] is None else found(row[name])


def negated(part: Part) -> Part:
    return f"(not {part[0]})", lambda row: None if (value := part[1](row)) is None else not value


def joined(word: str, parts: list[Part]) -> Part:
    def truth(row: Row) -> Truth:
        found = [part[1](row) for part in parts]
        decided = word == "or"
        return decided if decided in found else None if None in found else not decided

    return "(" + f" {word} ".join(part[0] for part in parts) + ")", truth


def literal(value: Any) -> Part:
    return repr(value), lambda row: value


def column(name: str) -> Part:
    return name, lambda row: row[name]


wholes = st.sampled_from(["a", "b", "c", "label"]).map(column)
whole = st.recursive(
    wholes | st.integers(-(2**65), 2**65).map(literal),
    lambda parts: st.builds(calculation, st.sampled_from("+-*"), parts, parts),
    max_leaves=4,
)
symbols = st.sampled_from(["==", "!=", "<", ">="])
text_names, few_texts = st.sampled_from(TEXTS), st.lists(texts, min_size=1, max_size=3)
atoms = st.one_of(
    st.builds(comparison, symbols, whole, wholes),
    st.builds(comparison, symbols, st.just(column("s")), st.sampled_from([0, 0.25, 7]).map(literal)),
    st.builds(comparison, st.sampled_from(["==", "!="]), text_names.map(column), texts.map(literal)),
    st.builds(lambda n, t: known(n, f"{t!r} in {n}", lambda value: t in value), text_names, texts),
    st.builds(lambda n, t: known(n, f"{n}.startswith({t!r})", lambda value: value.startswith(t)), text_names, texts),
    st.builds(lambda n, t: known(n, f"{n} not in {t!r}", lambda value: value not in t), text_names, few_texts),
    st.builds(
        lambda t: known("label", f"label in {t!r}", lambda value: value >= 0 and NAMED[value] in t),
        st.lists(st.sampled_from(NAMED), min_size=1, max_size=3),
    ),
    st.sampled_from([*SCALARS, *TEXTS]).map(lambda name: (f"{name} is None", lambda row: row[name] is None)),
)
conditions = st.recursive(
    atoms,
    lambda parts: st.one_of(
        parts.map(negated), st.builds(joined, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=3))
    ),
    max_leaves=5,
)


@given(conditions, st.lists(st.fixed_dictionaries(values), max_size=12), st.booleans())
def test_conditions_are_those_of_rows(part: Part, rows: list[Row], packed: bool) -> None:
    """Columns give what Python gives row by row, where a missing value is unknown, as in SQL; pickled, too."""
    text, truth = part
    condition = pickle.loads(pickle.dumps(Expression(text).bind(ROW_FIELDS, {"classes": NAMED})))  # noqa: S301
    columns: dict[str, Any] = {}
    for name in condition.scalars | condition.texts:
        field = ROW_FIELDS[name]
        stored = [field.blank if row[name] is None else bytes(field.encode(row[name])) for row in rows]
        sizes = np.array([len(value) for value in stored], np.int64)
        whole_data = np.frombuffer(b"".join(stored), np.uint8)
        if field.kind == "scalar":
            columns[name] = whole_data.view(field.row_dtype)
        else:
            columns[name] = PackedValues(whole_data, np.cumsum(sizes) - sizes, sizes) if packed else stored
    present = {name: np.array([row[name] is not None for row in rows], np.bool_) for name in condition.optional}
    assert condition(len(rows), columns, present).tolist() == [truth(row) is True for row in rows]


@given(st.lists(st.text("ab", max_size=5), max_size=30), st.text("ab", min_size=1, max_size=11), st.integers(1, 9))
def test_a_part_that_reaches_into_the_next_text(found: list[str], part: str, at_once: int) -> None:
    """Texts lie end to end; a part is found within one of them alone, wherever the search pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardio.views.text_column._BYTES_AT_ONCE", at_once)
        assert chosen(f"{part!r} in key and n >= 0", {"key": found, "n": np.arange(len(found))}) == [
            int(part in value) for value in found
        ]


RAGGED: dict[str, Any] = {
    "boxes": Field("array", "float32", (None, 4), optional=True),
    "tokens": ("uint16", (None,)),
    "frames": ("image", (None,)),
    "count": "int64",
    "any": Field("array", dtype="int32"),
}


def ragged(number: int) -> dict[str, Any]:
    """A sample whose values have as many entries as its number says; every fourth has no value of `boxes`."""
    return {
        "boxes": None if number % 4 == 3 else np.zeros((number % 4, 4), np.float32),
        "tokens": np.arange(number, dtype=np.uint16),
        "frames": [jpeg(8, 8)] * (number % 3),
        "count": number,
        "any": np.zeros((number, 1), np.int32),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(boxes) > 0", [1, 2, 5, 6]),
        ("not count(boxes) > 0", [0, 4]),  # neither has a sample that lacks the value
        ("boxes is None or count(boxes) == 2", [2, 3, 6, 7]),
        ("count(tokens) - count(boxes) == 4", [4, 5, 6]),
        ("1 <= count(frames) and count(tokens) in (4, 5, 6)", [4, 5]),
        ("count == 3 or count(tokens) == 1", [1, 3]),  # a field may have the name
    ],
)
@pytest.mark.parametrize("container", ["tar", "hdf5"])
def test_numbers_of_entries(text: str, expected: list[int], container: str, tmp_path: Path) -> None:
    """`count` takes the number of entries of ragged values and lists, of datasets and of samples that are converted."""
    data = packed(tmp_path / "in", map(ragged, range(8)), RAGGED, container=container)
    assert data.where(text).origin(range(len(expected))).tolist() == expected
    assert len(data.where(text)) == len(expected)
    condition = Expression(text).bind(data.fields)
    rows = [ragged(number) for number in range(8)]
    values = {
        name: np.array([0 if row[name] is None else len(row[name]) for row in rows])
        if name in condition.counted
        else np.array([row[name] for row in rows])
        for name in condition.counted | condition.scalars
    }
    present = {"boxes": np.array([row["boxes"] is not None for row in rows])}
    assert np.flatnonzero(condition(8, values, present)).tolist() == expected


class Samples(Source):
    """These samples, which can only be read whole."""

    fields = as_fields(RAGGED)
    metadata: Mapping[str, Any] = {}

    def sizes(self) -> NDArray[np.int64]:
        return np.ones(8, np.int64)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return ragged(index)


@pytest.mark.parametrize("condition", ["count(tokens) > 5", "count(boxes) == 1 or boxes is None"])
def test_conversions_choose_by_numbers_of_entries(condition: str, tmp_path: Path) -> None:
    """A source that gives whole samples is asked for them, and chooses as the dataset does."""
    data = packed(tmp_path / "in", map(ragged, range(8)), RAGGED)
    shardio.convert(Samples(), tmp_path / "out", where=condition)
    given, view = shardio.open(tmp_path / "out"), data.where(condition)
    assert [row["count"] for row in given] == view.origin(range(len(view))).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count(count) > 0", r"count takes arrays of any length and lists \(boxes, tokens, frames\), got 'count'"),
        ("count(any) > 0", "got 'any'"),  # its lengths are in no column
        ("count(nothing) > 0", "got 'nothing'"),
        ("count(boxes)", "is a number"),
        ("boxes > 0", "on scalar and text fields"),
        ("count(boxes) > 0 and boxes > 0", r"takes only count\(boxes\)"),
        ("count(boxes) == 'cat'", "no names of classes"),
        ("count(boxes, tokens) > 0", "a condition is made of"),
        ("count('boxes') > 0", "a condition is made of"),
        ("len(boxes) > 0", "a condition is made of"),
        ("count(boxes).real > 0", "a dot may only occur"),
    ],
)
def test_what_has_no_number_of_entries_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Expression(text).bind(as_fields(RAGGED))

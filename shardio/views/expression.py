"""Conditions on the values of samples, such as `label < 10 and "val/" in key`: parsed by Python, but evaluated here.

Only the operators in the tables below exist, `NAME.startswith(TEXT)` and `count(NAME)`: no other calls, no attributes,
no indexing, so text from anywhere is harmless.

Values may be missing. As in SQL, a comparison of a missing value is neither true nor false, so neither `score > 3` nor
`not score > 3` chooses the sample; `score is None` does.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard, final

import numpy as np
from numpy.typing import NDArray

from ..containers.packed_values import Scratch
from ..errors import ConfigError
from ..format.fields import Field, length_column, present_column
from ..system.types import Buffer
from .classes import names_by_field
from .exact_numbers import Term, calculated, compared, is_float, is_member
from .readable import SelectedSamples
from .text_column import TextColumn

Values: TypeAlias = NDArray[Any] | Sequence[Buffer]
"""The values of a field: an array [n] of scalars or of numbers of entries, or n stored strings."""

_MOST_LETTERS = 4096
_MOST_LEVELS = 64  # of brackets and signs within each other
_NEAREST = 3  # classes that a message names

_EQUALITY = (ast.Eq, ast.NotEq)
_MEMBERSHIP = (ast.In, ast.NotIn)
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SYNTAX: tuple[type[ast.AST], ...] = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.Load, ast.And, ast.Or, ast.Not, ast.USub,
    ast.UAdd, *_MEMBERSHIP, *_COMPARISONS, *_ARITHMETIC,
)  # fmt: skip


@final
class Expression:
    """A condition, parsed and checked.

    It consists of field names, numbers, strings, True, False, comparisons (also chained), `in (1, 2)`, `TEXT in NAME`,
    `NAME.startswith(TEXT)`, `count(NAME)`, `and`, `or`, `not`, `+ - * / // %`, `NAME is None` and `NAME is not None`.

    Args:
        text: the condition, such as `"label < 10"`.

    Attributes:
        names: the fields whose values the condition takes or counts.
        counted: the fields of which it takes the number of entries.
        tested: the fields that it only tests for a value.

    Raises ConfigError for anything else.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(
                f"a condition is a text, such as 'label == 3', got {type(text).__name__}; to choose by your own code, "
                "give select a mask"
            )
        self.text = text
        if len(text) > _MOST_LETTERS:
            raise ConfigError(f"a condition has at most {_MOST_LETTERS} letters, got {len(text)}")
        try:
            self.tree = ast.parse(text.strip(), mode="eval").body
            self._check(self.tree)
            tested = {_name(node.left) for node in ast.walk(self.tree) if _is_test(node)}
            self.names = frozenset(_names(self.tree))
            self.counted = frozenset(name for node in ast.walk(self.tree) if (name := _counted(node)) is not None)
            self.tested = frozenset(tested) - self.names
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise ConfigError(
                f"not a condition: {text!r}: {reason}; write it as in Python, with ==, and, or, not"
            ) from error
        if not (self.names or self.tested):
            raise ConfigError(f"a condition must name a field, got {text!r}")

    @property
    def members(self) -> tuple[str, Sequence[str]] | None:
        """The field and the texts, if the condition is that a field is one of some texts; else None."""
        match self.tree:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                field, texts = (right, [left]) if _text(left) is not None else (left, [right])
            case ast.Compare(left=field, ops=[ast.In()], comparators=[ast.Tuple(elts=texts) | ast.List(elts=texts)]):
                pass
            case _:
                return None
        is_field = isinstance(field, ast.Name | ast.Attribute) and len(_texts(texts)) == len(texts)
        return (_name(field), _texts(texts)) if is_field else None

    def bind(self, fields: Mapping[str, Field], metadata: Mapping[str, Any] = MappingProxyType({})) -> Condition:
        """Return the condition on samples of these fields.

        Args:
            fields: the fields of every sample.
            metadata: the dataset's or the source's, which names classes.

        Raises ConfigError for fields that do not exist or are neither scalars nor text, for `count` of others than
        lists and arrays whose first axis has any length, for text and numbers that do not meet, for names that are no
        classes, and where the result is no truth value.
        """
        return Condition(self, fields, names_by_field(metadata, fields))

    def _check(self, node: ast.AST, depth: int = 0) -> None:
        """Raise ConfigError for syntax that a condition does not have."""
        match node:
            case ast.Name() | ast.Attribute():
                _name(node)
                return
            case ast.Constant(value=bool() | int() | float()):
                return
            case ast.Constant(value=str() as text):
                text.encode()  # ValueError for half of a surrogate pair
                return
            case ast.Call(func=ast.Attribute(value=field)) if prefixes := _prefixes(node):
                _name(field)
                "".join(prefixes).encode()
                return
            case ast.Call() if _counted(node) is not None:
                return
            case ast.Compare() if _is_test(node):
                return
            case ast.Compare(left=left, ops=ops, comparators=others):
                for first, op, other in zip([left, *others], ops, others, strict=False):
                    if isinstance(op, _MEMBERSHIP) and not (getattr(other, "elts", ()) or _finds(first, other)):
                        raise ConfigError(
                            "`in` takes a list, such as label in (1, 2), or a text on its left and a field on its "
                            f"right, such as 'val/' in key; got {self.text!r}"
                        )
        if depth > _MOST_LEVELS:
            raise ConfigError(f"a condition is at most {_MOST_LEVELS} levels deep, got {self.text!r}")
        if not isinstance(node, _SYNTAX):
            found = ast.get_source_segment(self.text.strip(), node) if isinstance(node, ast.expr) else None
            raise ConfigError(
                "a condition is made of fields, numbers, texts, comparisons, `in (1, 2)`, `'val/' in key`, "
                "`key.startswith('val/')`, `count(boxes)`, `is None`, and, or, not, + - * / // %; "
                f"got {found or type(node).__name__!r} in {self.text!r}"
            )
        for child in ast.iter_child_nodes(node):
            self._check(child, depth + 1)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The values of `count` samples by field; for optional fields, also which samples have one, bool [n]."""

    values: Mapping[str, NDArray[Any] | TextColumn]
    present: Mapping[str, NDArray[np.bool_]]
    count: int

    def where(self, mask: NDArray[np.bool_], node: ast.expr) -> _Rows:
        """Return what a part of the condition takes of some samples."""
        names = {_name(name) for name in ast.walk(node) if isinstance(name, (ast.Name, ast.Attribute))}
        values = {
            name: column.where(mask) if isinstance(column, TextColumn) else column[mask]
            for name, column in self.values.items()
            if name in names
        }
        present = {name: column[mask] for name, column in self.present.items() if name in names}
        return _Rows(values, present, int(np.count_nonzero(mask)))


@final
class Condition:
    """A condition on samples of known fields; `Expression.bind` returns it. It can be pickled.

    Attributes:
        scalars: the scalar fields whose values it takes.
        texts: the text fields whose values it takes.
        counted: the fields of which it takes the number of entries.
        fields: these, and the fields that it only tests for a value.
        optional: the fields that samples may lack, among `fields`.
        class_numbers: the numbers that names of classes stand for in it, by field and name.
    """

    def __init__(
        self, expression: Expression, fields: Mapping[str, Field], classes: Mapping[str, Sequence[str]]
    ) -> None:
        self.text, self._tree = expression.text, expression.tree
        names, text = expression.names, self.text
        countable = [name for name, field in fields.items() if field.has_lengths and field.role != "segments"]
        if wrong := sorted(expression.counted - {*countable}):
            known = ", ".join(countable) or "none"
            raise ConfigError(f"count takes arrays of any length and lists ({known}), got {wrong[0]!r} in {text!r}")
        for name in sorted(names - expression.counted):
            if name not in fields or fields[name].kind not in ("scalar", "text"):
                known = ", ".join(n for n, field in fields.items() if field.kind in ("scalar", "text")) or "none"
                raise ConfigError(f"a condition is on scalar and text fields ({known}), got {name!r} in {text!r}")
        if unknown := sorted(expression.tested - fields.keys()):
            raise ConfigError(f"a condition is on fields ({', '.join(fields)}), got {unknown[0]!r} in {text!r}")
        self.texts = frozenset(name for name in names if fields[name].kind == "text")
        self.counted = expression.counted
        self.scalars = names - self.texts - self.counted
        self.fields = names | expression.tested
        self.optional = frozenset(name for name in self.fields if fields[name].optional)
        literals = {literal for node in ast.walk(self._tree) if (literal := _text(node)) is not None}
        self._classes = {name: tuple(classes.get(name, ())) for name in self.scalars if literals}
        self._numbers = {
            (name, literal): tuple(number for number, known in enumerate(listed) if known == literal)
            for name, listed in self._classes.items()
            for literal in literals
        }
        self.class_numbers = {
            f"{name} == {literal!r}": [*numbers]
            for (name, literal), numbers in sorted(self._numbers.items())
            if numbers
        }
        # Without a sample: it raises what any samples would.
        dtypes = {n: np.dtype(np.int64) if n in self.counted else fields[n].row_dtype for n in names - self.texts}
        self(0, {n: [] if n in self.texts else np.empty(0, dtypes[n]) for n in names})

    def __call__(
        self, count: int, values: Mapping[str, Values], present: Mapping[str, NDArray[np.bool_]] = MappingProxyType({})
    ) -> NDArray[np.bool_]:
        """Return for which samples the condition holds, bool [n].

        Args:
            count: the number of samples, n.
            values: the values of the fields in `scalars`, [n], the number of entries of those in `counted`, int64 [n],
                and the stored values of those in `texts`, best as `PackedValues`. Blanks of missing values may be
                anything.
            present: of the fields in `optional`, which samples have a value, bool [n]; all have one of any other field.

        Raises ConfigError where an integer is divided by zero.
        """
        columns: dict[str, NDArray[Any] | TextColumn] = {
            name: column if isinstance(column, np.ndarray) else TextColumn.of(column) for name, column in values.items()
        }
        with np.errstate(all="ignore"):  # a float divided by zero is no number, and no number is below 10
            return self._holds(self._tree, _Rows(columns, present, count), True)

    def of(self, selected: SelectedSamples, count: int) -> NDArray[np.bool_]:
        """Return for which of `count` selected samples the condition holds; reads only the fields that it names."""
        names = self.scalars | self.texts
        with selected.fetch([*names, *map(length_column, self.counted), *map(present_column, self.optional)]):
            values: dict[str, Values] = {name: selected.stored(name, scratch=Scratch()) for name in names}
            values |= {name: selected.column(length_column(name)) for name in self.counted}
            present = {name: selected.column(present_column(name)) for name in self.optional}
        return self(count, values, present)

    def _holds(self, node: ast.expr, rows: _Rows, wanted: bool) -> NDArray[np.bool_]:
        """Return for which samples a condition is certainly true, or if that is not `wanted`, certainly false."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._holds(operand, rows, not wanted)
            case ast.BoolOp(op=op, values=parts):
                every = isinstance(op, ast.And) is wanted
                result = self._holds(parts[0], rows, wanted)
                for part in parts[1:]:
                    if self._is_cheap(part):
                        other = self._holds(part, rows, wanted)
                        result = result & other if every else result | other
                        continue
                    # As in Python, it only sees the samples that the parts before have not decided.
                    open_ones = result if every else ~result
                    result[open_ones] = self._holds(part, rows.where(open_ones, part), wanted)
                return result
        known = [rows.present[name] for name in _names(node) if name in rows.present]
        if not known:
            return self._is(node, rows, wanted)
        everywhere: NDArray[np.bool_] = np.logical_and.reduce(known)
        if self._is_cheap(node):
            return self._is(node, rows, wanted) & everywhere
        result = np.zeros(rows.count, np.bool_)
        result[everywhere] = self._is(node, rows.where(everywhere, node), wanted)
        return result

    def _is(self, node: ast.expr, rows: _Rows, wanted: bool) -> NDArray[np.bool_]:
        """Return where a condition on values that are all there is what is wanted; a new array."""
        value = np.asarray(self._value(node, rows))
        if value.dtype != np.bool_:
            rule = "a condition must be true or false" if node is self._tree else "and, or, not take conditions"
            raise ConfigError(f"{rule}, {ast.unparse(node)!r} is a number")
        return np.asarray(np.broadcast_to(value, rows.count) ^ (not wanted))

    def _is_cheap(self, node: ast.expr) -> bool:
        """Return whether a part may as well see all samples: it divides none by zero, and searches no text."""
        return not any(isinstance(part, ast.BinOp) or self._is_text(part) for part in ast.walk(node))

    def _value(self, node: ast.AST, rows: _Rows) -> Term:
        match node:
            case ast.Compare(left=left, ops=[op]) if _is_test(node):
                present = rows.present.get(_name(left), np.ones(rows.count, np.bool_))
                return present ^ isinstance(op, ast.Is)
            case ast.Call(func=ast.Attribute(value=field)) if prefixes := _prefixes(node):
                return self._texts_of(field, rows).begin_with_one_of(prefixes)
            case ast.Name() | ast.Attribute():
                column = rows.values[_name(node)]
                if _name(node) in self.counted:
                    raise ConfigError(
                        f"a condition takes only count({_name(node)}) of {_name(node)!r}, in {self.text!r}"
                    )
                if isinstance(column, TextColumn):
                    raise ConfigError(
                        f"a text is compared with texts by ==, !=, in, not in and startswith, got {_name(node)!r} in "
                        f"{self.text!r}"
                    )
                return column
            case ast.Call(args=[ast.Name() | ast.Attribute() as field]):
                return rows.values[_name(field)]  # type: ignore[return-value]  # the number of entries, never a text
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.Constant(value=text):
                raise ConfigError(
                    f"a text is compared by ==, !=, in and not in with a field of text or of classes, got {text!r} in "
                    f"{self.text!r}"
                )
            case ast.Compare(left=left, ops=ops, comparators=others):
                terms = [left, *others]
                result = self._compare(left, ops[0], others[0], rows)
                for i, op in enumerate(ops[1:], 1):
                    result = result & self._compare(terms[i], op, terms[i + 1], rows)
                return result
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._holds(node, rows, True)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                number = self._number(operand, rows)
                return -number if is_float(number) else self._calculate(node, operator.sub, 0, number)
            case ast.UnaryOp(operand=operand):
                return self._number(operand, rows)
            case ast.BinOp(left=left, op=op, right=right):
                first, second = self._number(left, rows), self._number(right, rows)
                return self._calculate(node, _ARITHMETIC[type(op)], first, second)
        raise ConfigError(f"a list may only follow `in`, got {self.text!r}")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, rows: _Rows) -> NDArray[np.bool_]:
        negated = isinstance(op, ast.NotIn | ast.NotEq)
        if isinstance(op, _MEMBERSHIP) and _finds(left, right):
            return self._texts_of(right, rows).contain(str(_text(left)).encode()) ^ negated
        if not isinstance(op, _MEMBERSHIP + _EQUALITY):
            return compared(_COMPARISONS[type(op)], self._value(left, rows), self._value(right, rows))
        if isinstance(op, _EQUALITY) and _text(left) is not None:
            left, right = right, left
        members: Sequence[ast.expr] = right.elts if isinstance(op, _MEMBERSHIP) else [right]  # type: ignore[attr-defined]
        if self._is_text(left) and len(texts := _texts(members)) == len(members):
            return self._texts_of(left, rows).begin_with_one_of(texts, whole=True) ^ negated
        value, numbers = self._value(left, rows), list[Term]()
        for member in members:
            text = _text(member)
            numbers += [self._value(member, rows)] if text is None else self._class_numbers(left, text)
        return is_member(value, numbers) ^ negated

    def _is_text(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and _name(node) in self.texts

    def _texts_of(self, field: ast.expr, rows: _Rows) -> TextColumn:
        column = rows.values[_name(field)]
        if not isinstance(column, TextColumn):
            raise ConfigError(
                f"only a text field can contain a text or start with one, {_name(field)!r} is a number in {self.text!r}"
            )
        return column

    def _class_numbers(self, field: ast.expr, text: str) -> tuple[int, ...]:
        """Return the numbers of the classes that have a name: mostly one."""
        name = ast.unparse(field)
        if not self._classes.get(name):
            raise ConfigError(f"{name!r} has no names of classes, got {text!r} in {self.text!r}")
        if numbers := self._numbers[name, text]:
            return numbers
        known = self._classes[name]
        near = difflib.get_close_matches(text[:40], known, _NEAREST) or [*known[:_NEAREST], "..."][: len(known)]
        raise ConfigError(
            f"{name!r} has no class {text!r}, in {self.text!r}; there are {len(known)}, such as "
            f"{', '.join(map(repr, near))}"
        )

    def _number(self, node: ast.expr, rows: _Rows) -> Term:
        """Return a value to compute with, integers as Python's: True + True is 2."""
        value = self._value(node, rows)
        if not isinstance(value, np.ndarray):
            return +value
        if value.dtype.kind == "c":
            raise ConfigError(f"a condition computes with real numbers, {ast.unparse(node)!r} is {value.dtype}")
        return value.astype(np.int64) if value.dtype.kind == "b" else value

    def _calculate(self, node: ast.AST, op: Callable[[Any, Any], Any], left: Term, right: Term) -> Term:
        try:
            return calculated(op, left, right)
        except ArithmeticError as error:
            raise ConfigError(f"{ast.unparse(node)!r} cannot be computed, in {self.text!r}: {error}") from error


def _name(node: ast.expr) -> str:
    """Return a field's name; it may have dots."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=last):
            return f"{_name(value)}.{last}"
    raise ConfigError(f"a dot may only occur within a field's name, got {ast.unparse(node)!r}")


def _names(node: ast.AST) -> set[str]:
    """Return the fields whose values a part of a condition takes."""
    match node:
        case ast.Name() | ast.Attribute():
            return {_name(node)}
        case ast.Call(func=ast.Attribute(value=field)):
            return {_name(field)}
        case ast.Call(args=[field]):
            return {_name(field)}
        case ast.Compare() if _is_test(node):
            return set()
    return {name for child in ast.iter_child_nodes(node) for name in _names(child)}


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _finds(left: ast.expr, right: ast.expr) -> bool:
    """Return whether an operand of `in` is a text, and the other one a field."""
    return _text(left) is not None and isinstance(right, ast.Name | ast.Attribute)


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [text for node in nodes if (text := _text(node)) is not None]


def _prefixes(node: ast.AST) -> list[str]:
    """Return the texts of `NAME.startswith(TEXT)`, or of one with several; none of any other node."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name() | ast.Attribute(), attr="startswith"), args=[given], keywords=[]
        ):
            parts = given.elts if isinstance(given, ast.Tuple) else [given]
            return texts if len(texts := _texts(parts)) == len(parts) else []
    return []


def _counted(node: ast.AST) -> str | None:
    """Return the field of `count(NAME)`; None for any other node."""
    match node:
        case ast.Call(func=ast.Name(id="count"), args=[ast.Name() | ast.Attribute() as field], keywords=[]):
            return _name(field)
    return None


def _is_test(node: ast.AST) -> TypeGuard[ast.Compare]:
    """Return whether a node is `NAME is None` or `NAME is not None`."""
    match node:
        case ast.Compare(
            left=ast.Name() | ast.Attribute(), ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]
        ):
            return True
    return False

"""Conditions on scalar fields, such as `label < 10 and not hidden`: parsed by Python, but evaluated here.

Only the operators in the tables below exist: no calls, no attributes, no indexing, so text from anywhere is harmless.

Arithmetic is in Python's integers, which have no end, and in float64, whatever the fields store, so a product of two
uint8 fields does not wrap around. A number in the text that meets a float32 or float16 field is rounded to that type
first: `score == 0.7` holds for what was stored as 0.7.

Values may be missing. As in SQL, a comparison of a missing value is neither true nor false, so neither `score > 3` nor
`not score > 3` chooses the sample; `score is None` does.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

_Values = Mapping[str, NDArray[Any]]
_Term: TypeAlias = int | float | NDArray[Any]
"""A number of the text, or the values of all samples: as stored, or Python's integers as computed (dtype object)."""

_MOST_LETTERS = 4096
_MOST_LEVELS = 64  # of brackets and signs within each other
_EXACT_FLOATS = 2**53  # integers up to it are exact as float64

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
    ast.UAdd, ast.In, ast.NotIn, *_COMPARISONS, *_ARITHMETIC,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rows:
    """Values of `count` samples by field [n], and which samples have one, bool [n]."""

    values: _Values
    present: _Values
    count: int

    def where(self, mask: NDArray[np.bool_]) -> _Rows:
        values, present = (
            {name: column[mask] for name, column in columns.items()} for columns in (self.values, self.present)
        )
        return _Rows(values, present, int(np.count_nonzero(mask)))


@final
class Expression:
    """A condition, parsed and checked.

    It consists of field names, numbers, True, False, comparisons (chained too), `in (1, 2)`, `and`, `or`, `not`, and
    `+ - * / // %`, and of `NAME is None` and `NAME is not None`.

    Args:
        text: the condition, such as `"label < 10"`.

    Attributes:
        names: the fields whose values the condition takes.
        tested: the fields of which it only asks whether there is a value.

    Raises ConfigError for anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MOST_LETTERS:
            raise ConfigError(f"a condition has at most {_MOST_LETTERS} letters, got {len(text)}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            tested = {self._name(node.left) for node in ast.walk(self._tree) if _is_test(node)}
            self.names = frozenset(self._names(self._tree))
            self.tested = frozenset(tested) - self.names
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise ConfigError(f"not a condition: {text!r}: {reason}") from error
        if not (self.names or self.tested):
            raise ConfigError(f"a condition must name a field, got {text!r}")

    def __call__(self, values: _Values, present: _Values | None = None) -> NDArray[np.bool_]:
        """Return for which samples the condition holds, bool [n].

        Args:
            values: the values of each field in `names`, numbers or bools [n].
            present: of fields that samples may lack, which of them have a value, bool [n]; all do of any other field.

        Raises ConfigError where the result is no truth value, or an integer is divided by zero.
        """
        count = len(next(iter((*values.values(), *(present or {}).values()))))
        every = dict.fromkeys(self.names | self.tested, np.ones(count, np.bool_))
        with np.errstate(all="ignore"):  # a float divided by zero is no number, and no number is below 10
            return self._holds(self._tree, _Rows(values, every | dict(present or {}), count), True)

    def _names(self, node: ast.AST, depth: int = 0) -> set[str]:
        """Return the names below a node; raise ConfigError for syntax that a condition does not have."""
        match node:
            case ast.Name() | ast.Attribute():
                return {self._name(node)}
            case ast.Constant(value=bool() | int() | float()):
                return set()
            case ast.Compare() if _is_test(node):
                return set()
            case ast.Compare(ops=ops, comparators=others):
                for op, other in zip(ops, others, strict=True):
                    if isinstance(op, (ast.In, ast.NotIn)) and not getattr(other, "elts", ()):
                        raise ConfigError(f"`in` takes a list of numbers, such as label in (1, 2); got {self.text!r}")
        if depth > _MOST_LEVELS:
            raise ConfigError(f"a condition is at most {_MOST_LEVELS} levels deep, got {self.text!r}")
        if not isinstance(node, _SYNTAX):
            found = ast.get_source_segment(self.text.strip(), node) if isinstance(node, ast.expr) else None
            raise ConfigError(
                "a condition is made of fields, numbers, comparisons, `in (1, 2)`, `is None`, and, or, not, + - * / // "
                f"%; got {found or type(node).__name__!r} in {self.text!r}"
            )
        return {name for child in ast.iter_child_nodes(node) for name in self._names(child, depth + 1)}

    def _name(self, node: ast.expr) -> str:
        """Return a field's name, which may have dots in it."""
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=value, attr=last):
                return f"{self._name(value)}.{last}"
        raise ConfigError(f"a dot may only occur within a field's name, got {self.text!r}")

    def _holds(self, node: ast.expr, rows: _Rows, wanted: bool) -> NDArray[np.bool_]:
        """Return for which samples a condition is certainly true, or if that is not `wanted`, certainly false."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._holds(operand, rows, not wanted)
            case ast.BoolOp(op=op, values=parts):
                # As in Python, the next part only sees the samples that the parts before have not decided.
                every = isinstance(op, ast.And) is wanted
                result = self._holds(parts[0], rows, wanted)
                for part in parts[1:]:
                    open_ones = result if every else ~result
                    result[open_ones] = self._holds(part, rows.where(open_ones), wanted)
                return result
        known, result = np.ones(rows.count, np.bool_), np.zeros(rows.count, np.bool_)
        for name in self._names(node):
            known &= rows.present[name]
        result[known] = self._truth(node, rows.where(known)) == wanted
        return result

    def _value(self, node: ast.AST, rows: _Rows) -> _Term:
        match node:
            case ast.Compare(left=left, ops=[op]) if _is_test(node):
                return rows.present[self._name(left)] ^ isinstance(op, ast.Is)
            case ast.Name() | ast.Attribute():
                return rows.values[self._name(node)]
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.Compare(left=left, ops=ops, comparators=others):
                terms = [left, *others]
                results = [self._compare(terms[i], op, terms[i + 1], rows) for i, op in enumerate(ops)]
                return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*results)))
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._holds(node, rows, True)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand, rows)
            case ast.UnaryOp(operand=operand):
                return self._number(operand, rows)
            case ast.BinOp(left=left, op=op, right=right):
                return self._calculate(node, op, self._number(left, rows), self._number(right, rows))
        raise ConfigError(f"a list of numbers may only follow `in`, got {self.text!r}")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, rows: _Rows) -> NDArray[np.bool_]:
        value = self._value(left, rows)
        if isinstance(op, (ast.In, ast.NotIn)):
            # `_names` has checked that these are members of a tuple or a list.
            members = [self._value(member, rows) for member in right.elts]  # type: ignore[attr-defined]
            found = np.logical_or.reduce(np.broadcast_arrays(*(_compared(operator.eq, value, m) for m in members)))
            return np.asarray(found) ^ isinstance(op, ast.NotIn)
        return _compared(_COMPARISONS[type(op)], value, self._value(right, rows))

    def _truth(self, node: ast.expr, rows: _Rows) -> NDArray[np.bool_]:
        value = np.asarray(self._value(node, rows))
        if value.dtype != np.bool_:
            rule = "a condition must be true or false" if node is self._tree else "and, or, not take conditions"
            raise ConfigError(f"{rule}, {ast.unparse(node)!r} is a number")
        return np.broadcast_to(value, rows.count)

    def _number(self, node: ast.expr, rows: _Rows) -> _Term:
        """Return a value to compute with, whole numbers as Python's: True + True is 2."""
        value = self._value(node, rows)
        if not isinstance(value, np.ndarray):
            return +value
        if value.dtype.kind == "c":
            raise ConfigError(f"a condition computes with real numbers, {ast.unparse(node)!r} is {value.dtype}")
        return value if value.dtype.kind == "f" else value.astype(object)

    def _calculate(self, node: ast.AST, op: ast.operator, left: _Term, right: _Term) -> _Term:
        left, right = _met(left, right)
        try:
            if isinstance(op, ast.Div) or _is_float(left) or _is_float(right):
                left, right = _as_float64(left), _as_float64(right)
            result: _Term = _ARITHMETIC[type(op)](left, right)
        except ArithmeticError as error:
            raise ConfigError(f"{ast.unparse(node)!r} cannot be computed, in {self.text!r}: {error}") from error
        return result


def _is_test(node: ast.AST) -> TypeGuard[ast.Compare]:
    """Return whether a node is `NAME is None` or `NAME is not None`."""
    match node:
        case ast.Compare(
            left=ast.Name() | ast.Attribute(), ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]
        ):
            return True
    return False


def _is_float(term: _Term) -> bool:
    return term.dtype.kind == "f" if isinstance(term, np.ndarray) else isinstance(term, float)


def _as_float64(term: _Term) -> _Term:
    return term.astype(np.float64) if isinstance(term, np.ndarray) else float(term)


def _met(left: _Term, right: _Term) -> tuple[_Term, _Term]:
    """Return two terms, one of which may be a number that meets narrow floats and is rounded to their type."""
    return _rounded(left, right), _rounded(right, left)


def _rounded(term: _Term, other: _Term) -> _Term:
    if isinstance(term, np.ndarray) or not isinstance(other, np.ndarray) or other.dtype.char not in "ef":
        return term
    try:
        rounded: NDArray[Any] = np.asarray(term, other.dtype)
    except OverflowError:  # an integer beyond float64
        return term
    return rounded if np.isfinite(rounded) else term


def _compared(compare: Callable[[Any, Any], Any], left: _Term, right: _Term) -> NDArray[np.bool_]:
    """Compare two terms, integers with floats too without rounding either."""
    first, second = (np.asarray(term) for term in _met(left, right))
    if {first.dtype.kind, second.dtype.kind} == {"c", "O"} and compare not in (operator.eq, operator.ne):
        raise ConfigError("a condition computes with real numbers, and compares these with complex ones")
    if {first.dtype.kind, second.dtype.kind} > {"f"} and not (_is_exact(first) and _is_exact(second)):
        first, second = first.astype(object), second.astype(object)
    return np.asarray(compare(first, second), np.bool_)


def _is_exact(term: NDArray[Any]) -> bool:
    """Return whether float64 holds all values exactly."""
    return term.dtype.kind in "fb" or not np.any((term > _EXACT_FLOATS) | (term < -_EXACT_FLOATS))

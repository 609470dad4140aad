"""Numbers that conditions compute and compare: integers of up to 4,096 bits, and float64.

Arithmetic is in Python's integers and in float64, whatever the fields store, so a product of two uint8 fields does not
wrap around. Where the operands prove that int64 holds every result, it is in int64.

A number in a condition that meets a float32 or float16 field is rounded to that type first: `score == 0.7` holds for
values that were stored as 0.7.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

Term: TypeAlias = int | float | NDArray[Any]
"""A number in a condition, or the values of all samples, stored or computed: int64, float64, Python's integers."""

_INT64 = np.iinfo(np.int64)
_EXACT_FLOATS = 2**53  # integers up to it are exact as float64
_MOST_BITS = 4096  # of an integer: a product has as many as its factors together, per sample
_FEW = 8  # members that are compared one by one


def calculated(op: Callable[[Any, Any], Any], left: Term, right: Term) -> Term:
    """Return `left op right`, for an operator of Python's arithmetic; neither is bool or complex.

    Raises ArithmeticError where an integer is divided by zero, cannot be a float64, or may exceed `_MOST_BITS` bits.
    """
    left, right = _met(left, right)
    result: Term
    if op is operator.truediv or is_float(left) or is_float(right):
        result = op(_as_float64(left), _as_float64(right))
    else:
        if op in (operator.floordiv, operator.mod) and np.any(np.equal(right, 0)):
            raise ZeroDivisionError("integer division or modulo by zero")
        bounds = _all_bounds(op, left, right)
        if max(bound.bit_length() for bound in bounds) > _MOST_BITS:
            raise OverflowError(f"its integers may have more than {_MOST_BITS:,} bits")
        if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
            dtype = np.int64 if all(_INT64.min <= bound <= _INT64.max for bound in bounds) else object
            left, right = np.asarray(left, dtype), np.asarray(right, dtype)
        result = op(left, right)
    return result


def compared(op: Callable[[Any, Any], Any], left: Term, right: Term) -> NDArray[np.bool_]:
    """Compare two terms. An integer and a float are compared without rounding either."""
    left, right = _met(left, right)
    first, second = _typed(left, right), _typed(right, left)
    kinds = {first.dtype.kind, second.dtype.kind}
    if "c" in kinds and op not in (operator.eq, operator.ne):
        raise ConfigError("a condition computes with real numbers, and compares these with complex ones")
    if kinds > {"f"} and not (_is_exact(first) and _is_exact(second)):
        first, second = first.astype(object), second.astype(object)
    return np.asarray(op(first, second), np.bool_)


def is_member(value: Term, members: Sequence[Term]) -> NDArray[np.bool_]:
    """Return where a value equals one of some others."""
    if len(members) > _FEW and isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        typed = [_typed(member, value) for member in members]
        if all(member.dtype == value.dtype and not member.ndim for member in typed):
            return np.isin(value, np.array(typed, value.dtype))
    found = compared(operator.eq, value, members[0])
    for member in members[1:]:
        found = found | compared(operator.eq, value, member)
    return found


def is_float(term: Term) -> bool:
    return term.dtype.kind == "f" if isinstance(term, np.ndarray) else isinstance(term, float)


def _as_float64(term: Term) -> Term:
    return term.astype(np.float64) if isinstance(term, np.ndarray) else float(term)


def _met(left: Term, right: Term) -> tuple[Term, Term]:
    """Return two terms; a number that meets narrow floats is rounded to their type."""
    return _rounded(left, right), _rounded(right, left)


def _rounded(term: Term, other: Term) -> Term:
    if isinstance(term, np.ndarray) or not isinstance(other, np.ndarray) or other.dtype.char not in "ef":
        return term
    try:
        rounded: NDArray[Any] = np.asarray(term, other.dtype)
    except OverflowError:  # an integer beyond float64
        return term
    return rounded if np.isfinite(rounded) else term


def _typed(term: Term, other: Term) -> NDArray[Any]:
    """Return a term as an array, an integer in the type of those that it meets, so that NumPy casts none."""
    if isinstance(term, int) and isinstance(other, np.ndarray) and other.dtype.kind in "iu":
        bounds = np.iinfo(other.dtype)
        if bounds.min <= term <= bounds.max:
            return np.asarray(term, other.dtype)
    return np.asarray(term)


def _is_exact(term: NDArray[Any]) -> bool:
    """Return whether float64 holds all values exactly."""
    narrow = term.dtype.kind in "iu" and term.itemsize <= 4
    return narrow or term.dtype.kind in "fbc" or not np.any((term > _EXACT_FLOATS) | (term < -_EXACT_FLOATS))


def _all_bounds(op: Callable[[Any, Any], Any], left: Term, right: Term) -> list[int]:
    """Return the bounds of both operands, and of the result whatever they are within theirs."""
    (low, high), others = _bounds(left), _bounds(right)
    if op in (operator.floordiv, operator.mod):  # of two that int64 holds only -2^63 // -1 is beyond it
        results = [-low, -high]
    else:
        results = [op(value, other) for value in (low, high) for other in others]
    return [low, high, *others, *results]


def _bounds(term: Term) -> tuple[int, int]:
    if not isinstance(term, np.ndarray):
        return int(term), int(term)
    return (int(term.min()), int(term.max())) if term.size else (0, 0)

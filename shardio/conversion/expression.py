"""Conditions on scalar fields, such as `label < 10 and not hidden`: parsed by Python, but evaluated here.

Only the operators in the tables below exist: no calls, no attributes, no indexing, so text from anywhere is harmless.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

_Values = Mapping[str, NDArray[Any]]
_MOST_LETTERS = 4096
_MOST_LEVELS = 64  # of brackets and signs within each other

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


@final
class Expression:
    """A condition, parsed and checked.

    It consists of field names, numbers, True, False, comparisons (chained too), `in (1, 2)`, `and`, `or`, `not`, and
    `+ - * / // %`.

    Args:
        text: the condition, such as `"label < 10"`.

    Attributes:
        names: the fields that the condition names.

    Raises ConfigError for anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MOST_LETTERS:
            raise ConfigError(f"a condition has at most {_MOST_LETTERS} letters, got {len(text)}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            self.names = frozenset(self._check(self._tree, 0))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise ConfigError(f"not a condition: {text!r}: {reason}") from error
        if not self.names:
            raise ConfigError(f"a condition must name a field, got {text!r}")

    def __call__(self, values: _Values) -> NDArray[np.bool_]:
        """Return for which samples the condition holds, bool [n].

        Args:
            values: the values of each field that the condition names, numbers or bools [n].

        Raises ConfigError where the result is no truth value.
        """
        with np.errstate(all="ignore"):  # a division by zero is no number, and no number is below 10
            result = np.asarray(self._value(self._tree, values))
        if result.dtype != np.bool_:
            raise ConfigError(f"a condition must be true or false, {self.text!r} is {result.dtype}")
        return np.broadcast_to(result, np.shape(next(iter(values.values()))))

    def _check(self, node: ast.AST, depth: int) -> set[str]:
        """Return the names below a node; raise ConfigError for syntax that a condition does not have."""
        if depth > _MOST_LEVELS:
            raise ConfigError(f"a condition is at most {_MOST_LEVELS} levels deep, got {self.text!r}")
        match node:
            case ast.Name() | ast.Attribute():
                return {self._name(node)}
            case ast.Constant(value=bool() | int() | float()):
                return set()
            case ast.Compare(left=left, ops=ops, comparators=others):
                for op, other in zip(ops, others, strict=True):
                    if isinstance(op, (ast.In, ast.NotIn)):
                        self._check_members(other)
                    elif type(op) not in _COMPARISONS:
                        raise ConfigError(f"a condition has no {type(op).__name__.lower()}, got {self.text!r}")
                return self._check_all([left, *others], depth)
            case ast.BoolOp(values=parts):
                return self._check_all(parts, depth)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd(), operand=operand):
                return self._check(operand, depth + 1)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._check_all([left, right], depth)
            case ast.Tuple(elts=members) | ast.List(elts=members):
                return self._check_all(members, depth)
        found = ast.get_source_segment(self.text.strip(), node) if isinstance(node, ast.expr) else None
        raise ConfigError(
            f"a condition is made of fields, numbers, comparisons, `in (1, 2)`, and, or, not, + - * / // %;"
            f" got {found or type(node).__name__!r} in {self.text!r}"
        )

    def _name(self, node: ast.expr) -> str:
        """Return a field's name, which may have dots in it."""
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=value, attr=last):
                return f"{self._name(value)}.{last}"
        raise ConfigError(f"a dot may only occur within a field's name, got {self.text!r}")

    def _check_all(self, nodes: list[ast.expr], depth: int) -> set[str]:
        return {name for node in nodes for name in self._check(node, depth + 1)}

    def _check_members(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.Tuple, ast.List)) or not node.elts:
            raise ConfigError(f"`in` takes a list of numbers, such as label in (1, 2); got {self.text!r}")

    def _value(self, node: ast.AST, values: _Values) -> Any:
        match node:
            case ast.Name() | ast.Attribute():
                return values[self._name(node)]
            case ast.Constant(value=value):
                # As an array, so that numbers beyond 64 bits are objects or floats, and never an overflow.
                return np.asarray(value)
            case ast.Compare(left=left, ops=ops, comparators=others):
                terms = [left, *others]
                results = [self._compare(terms[i], op, terms[i + 1], values) for i, op in enumerate(ops)]
                return np.logical_and.reduce(np.broadcast_arrays(*results))
            case ast.BoolOp(op=op, values=parts):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(np.broadcast_arrays(*(self._truth(part, values) for part in parts)))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self._truth(operand, values)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._number(operand, values) * -1
            case ast.UnaryOp(operand=operand):
                return self._number(operand, values)
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](self._number(left, values), self._number(right, values))
        raise ConfigError(f"a list of numbers may only follow `in`, got {self.text!r}")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, values: _Values) -> NDArray[np.bool_]:
        if isinstance(op, (ast.In, ast.NotIn)):
            # `_check_members` has checked that these are members of a tuple or a list.
            members = [self._value(member, values) for member in right.elts]  # type: ignore[attr-defined]
            wanted = self._value(left, values)
            found: NDArray[np.bool_] = np.logical_or.reduce(np.broadcast_arrays(*(wanted == m for m in members)))
            return ~found if isinstance(op, ast.NotIn) else found
        return np.asarray(_COMPARISONS[type(op)](self._value(left, values), self._value(right, values)), np.bool_)

    def _truth(self, node: ast.expr, values: _Values) -> NDArray[np.bool_]:
        value = np.asarray(self._value(node, values))
        if value.dtype != np.bool_:
            raise ConfigError(f"and, or, not take conditions, got {ast.unparse(node)!r} ({value.dtype})")
        return value

    def _number(self, node: ast.expr, values: _Values) -> Any:
        value = self._value(node, values)
        return value.astype(np.int64) if value.dtype == np.bool_ else value  # True + True is 2

"""The accepted forms of a filter: a pyarrow expression, tuples as in `pyarrow.parquet.read_table`, or a `Condition`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Never, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core.predicate import NEGATED, And, Comparison, Condition, In, Not, Operator, Or, to_arrow
from weft.storage.errors import InvalidInput
from weft.storage.read.request.arrow_expression import read_expression

Tuples: TypeAlias = Sequence[tuple[str, str, Any]]
Filter: TypeAlias = pc.Expression | Condition | Tuples | Sequence[Tuples]
"""A filter of a caller. ``[(column, operator, value), ...]`` joins by AND, a list of such lists by OR."""

_OPERATORS: Final[dict[str, Operator]] = {"=": "==", **{operator: operator for operator in NEGATED}}


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    """A filter of rows.

    Attributes:
        expression: What Arrow evaluates.
        condition: The same for pruning; None if the expression could not be read, and may use any column.
    """

    expression: pc.Expression
    condition: Condition | None


def parse_filter(given: Filter | None) -> ParsedFilter | None:
    """Parse the filter of a caller; None for all rows. Done once for each read, when its request is made.

    Raises:
        InvalidInput: It is not a filter.
    """
    if given is None:
        return None
    if isinstance(given, pc.Expression):
        return ParsedFilter(given, read_expression(given))
    try:
        condition = given if isinstance(given, Condition) else _of_tuples(given)
        return ParsedFilter(to_arrow(condition), condition)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"the filter {given!r} is not valid: {error}", hint=_HINT) from error


_HINT: Final = (
    "give a pyarrow expression, or [(column, operator, value), ...] with one of the operators "
    f"{', '.join(_OPERATORS)}, in, not in; for null: pc.field(column).is_null()"
)


def _of_tuples(given: Any) -> Condition:
    if not isinstance(given, list | tuple) or not given:
        _refuse(given)
    if all(isinstance(one, tuple) and one and isinstance(one[0], str) for one in given):
        return And(tuple(map(_of_tuple, given)))
    return Or(tuple(_of_tuples(one) for one in given))


def _of_tuple(given: tuple[Any, ...]) -> Condition:
    if len(given) != 3:
        _refuse(given)
    column, operator, value = given
    if operator in {"in", "not in"}:
        if isinstance(value, str | bytes):
            _refuse(given)
        array = value if isinstance(value, pa.Array) else pa.array(list(value))
        found = In.of(column, array, of_null=array.null_count > 0)
        return found if operator == "in" else Not(found)
    if operator not in _OPERATORS or value is None:
        _refuse(given)
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return Comparison(column, _OPERATORS[operator], scalar.as_py(), scalar.type)


def _refuse(given: object) -> Never:
    raise ValueError(f"{given!r} is not a condition")

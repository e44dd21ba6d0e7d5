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
        expression: The filter as an expression that Arrow evaluates.
        condition: The filter as a condition, for pruning; None if the expression could not be parsed, so that it may
            use any column.
    """

    expression: pc.Expression
    condition: Condition | None


def parse_filter(value: Filter | None) -> ParsedFilter | None:
    """Parse the filter of a caller; None for all rows. Called once for each read, when its request is created.

    Raises:
        InvalidInput: The value is not a filter.
    """
    if value is None:
        return None
    if isinstance(value, pc.Expression):
        return ParsedFilter(value, read_expression(value))
    try:
        condition = value if isinstance(value, Condition) else _from_tuples(value)
        return ParsedFilter(to_arrow(condition), condition)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"the filter {value!r} is not valid: {error}", hint=_HINT) from error


_HINT: Final = (
    "use a pyarrow expression, or [(column, operator, value), ...] with one of the operators "
    f"{', '.join(_OPERATORS)}, in, not in; for null: pc.field(column).is_null()"
)


def _from_tuples(tuples: Any) -> Condition:
    if not isinstance(tuples, list | tuple) or not tuples:
        _refuse(tuples)
    if all(isinstance(item, tuple) and item and isinstance(item[0], str) for item in tuples):
        return And(tuple(map(_from_tuple, tuples)))
    return Or(tuple(_from_tuples(item) for item in tuples))


def _from_tuple(comparison: tuple[Any, ...]) -> Condition:
    if len(comparison) != 3:
        _refuse(comparison)
    column, operator, value = comparison
    if operator in {"in", "not in"}:
        if isinstance(value, str | bytes):
            _refuse(comparison)
        array = value if isinstance(value, pa.Array) else pa.array(list(value))
        condition = In.of(column, array, of_null=array.null_count > 0)
        return condition if operator == "in" else Not(condition)
    if operator not in _OPERATORS or value is None:
        _refuse(comparison)
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return Comparison(column, _OPERATORS[operator], scalar.as_py(), scalar.type)


def _refuse(value: object) -> Never:
    raise ValueError(f"{value!r} is not a condition")

"""Projection: a checked request - columns, a filter on merged rows, and groups that must be present."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from weft.storage.core import names
from weft.storage.core.model import Group
from weft.storage.core.predicate import Condition, columns_of
from weft.storage.core.schema.state_columns import StateColumn, state_columns
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.read.request.filter_input import ParsedFilter
from weft.storage.read.request.scan_request import ScanRequest

_DOES_NOT_FIT: Final = (pa.ArrowException, ValueError, TypeError)  # raised by Arrow for such a filter


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns, filter and required groups of a read, checked against the schema.

    Attributes:
        columns: Columns of the result, in this order, including state columns.
        filter: Condition on merged rows, evaluated by Arrow; None for all rows.
        predicate: ``filter`` as a condition, for pruning; None if there is no filter, or if it could not be read.
        filter_columns: Columns of the table that ``filter`` uses.
        require: Names of the groups that must be present in a row.
        arrivals: Ids of the groups whose arrival is appended to the result, ascending.
        shown: State columns of the result (`weft.storage.core.schema.state_columns`).
        filtered: State columns that ``filter`` uses.
    """

    columns: tuple[str, ...]
    filter: pc.Expression | None
    predicate: Condition | None
    filter_columns: tuple[str, ...]
    require: tuple[str, ...]
    arrivals: tuple[int, ...]
    shown: tuple[StateColumn, ...] = ()
    filtered: tuple[StateColumn, ...] = ()

    def values(self, schema: TableSchema) -> tuple[str, ...]:
        """All columns of the table that must be stitched, in table order."""
        wanted = {*self.columns, *self.filter_columns}
        return tuple(column.name for column in schema.columns if column.name in wanted)

    def states(self, schema: TableSchema) -> set[str]:
        """Names of the hidden arrival columns that the result needs, including those of required groups."""
        required = {schema.group_by_name[name].id for name in self.require}
        return {names.arrival(group) for group in {*required, *self.arrival_groups}}

    @property
    def arrival_groups(self) -> tuple[int, ...]:
        """Ids of the groups whose arrival is in the result or used by the filter, ascending."""
        return tuple(sorted({*self.arrivals, *(column.group for column in (*self.shown, *self.filtered))}))

    def groups(self, schema: TableSchema) -> tuple[Group, ...]:
        """Groups whose values or presence are needed to compute the result, in order of the schema."""
        wanted = {schema.group_of_column[name].id for name in self.values(schema) if name in schema.group_of_column}
        wanted.update((schema.group_by_name[name].id for name in self.require), self.arrival_groups)
        return tuple(group for group in schema.groups if group.id in wanted)

    @property
    def output(self) -> tuple[str, ...]:
        """Names of the columns of the result, arrivals included."""
        return (*self.columns, *map(names.arrival, self.arrivals))

    def arrow(self, schema: TableSchema) -> pa.Schema:
        """Schema of the result; keys are not nullable."""
        states = {column.name: column.field for column in self.shown}
        fields = [states.get(name) or schema.field(name).remove_metadata() for name in self.columns]
        fields += [pa.field(names.arrival(group), pa.int64()) for group in self.arrivals]
        return pa.schema(fields)


def make_projection(schema: TableSchema, request: ScanRequest) -> Projection:
    """Check a request against the schema of the snapshot.

    Raises:
        NotFound: The table has no such column or group; the hint lists those that it has.
        InvalidInput: The filter is not a condition.
    """
    columns = tuple(request.columns) if request.columns is not None else tuple(schema.arrow.names)
    states = state_columns(schema)
    of_references = [name for reference in schema.references for name in reference.shown]
    for name in columns:
        if name not in states and name not in schema.column_by_name:
            known = [*schema.column_by_name, *(other for other in of_references if other != name)]
            raise NotFound(f"the table has no column {name!r}", hint=f"columns: {', '.join(known)}")
    required = tuple(dict.fromkeys(request.require or ()))
    check_required(schema, required)
    for name in required:
        schema.group(name)
    shown = tuple(states[name] for name in dict.fromkeys(columns) if name in states)
    arrivals: tuple[int, ...] = ()
    if request.arrivals:
        groups = {schema.group_of_column[name].id for name in columns if name in schema.group_of_column}
        arrivals = tuple(sorted(groups.union(schema.group_by_name[name].id for name in required)))
    if request.filter is None:
        return Projection(columns, None, None, (), required, arrivals, shown)
    condition, predicate = request.filter.expression, request.filter.condition
    with_states = check_filter(schema.arrow, request.filter, states.values(), of_references)
    # A filter that could not be read may use any column.
    seen = columns_of(predicate) if predicate is not None else frozenset((*schema.arrow.names, *states))
    filter_columns = tuple(name for name in schema.arrow.names if name in seen)
    filtered = tuple(column for name, column in states.items() if name in seen) if with_states else ()
    return Projection(columns, condition, predicate, filter_columns, required, arrivals, shown, filtered)


def check_required(schema: TableSchema, required: Sequence[str]) -> None:
    """Check that the groups and references exist that rows must have.

    Raises:
        NotFound: One does not; the hint lists those that do.
    """
    for name in required:
        if name not in schema.group_by_name and name not in schema.reference_by_name:
            groups = f"groups: {', '.join(schema.group_by_name)}"
            if not schema.references:
                raise NotFound(f"the table has no group {name!r}", hint=groups)
            hint = f"{groups}; references: {', '.join(schema.reference_by_name)}"
            raise NotFound(f"the table has no group or reference {name!r}", hint=hint)


def check_filter(
    fields: pa.Schema, parsed: ParsedFilter, states: Iterable[StateColumn], others: Sequence[str] = ()
) -> bool:
    """Whether a filter on columns with these fields uses state columns.

    Args:
        fields: The columns of the rows.
        parsed: The filter.
        states: State columns that it may use.
        others: Columns that the table has besides, for the hint.

    Raises:
        NotFound: The filter uses a column that the table does not have, or compares a column with another type.
        InvalidInput: The filter is not a condition.
    """
    with_states = False
    try:
        found = _type_of(fields, parsed.expression)
    except _DOES_NOT_FIT as error:
        try:
            found = _type_of(pa.schema([*fields, *(column.field for column in states)]), parsed.expression)
        except _DOES_NOT_FIT:
            raise NotFound(
                f"the filter does not fit the table: {str(error).splitlines()[0]}",
                hint=_advice(fields, parsed.condition, others),
            ) from None
        with_states = True
    if not pa.types.is_boolean(found):
        raise InvalidInput(f"the filter is not a condition, its values are {found}", hint="compare it with a value")
    return with_states


def _advice(fields: pa.Schema, predicate: Condition | None, others: Sequence[str]) -> str:
    """The types of the columns of a filter that Arrow refuses; all columns if it uses one that does not exist."""
    used = sorted(columns_of(predicate)) if predicate is not None else []
    if used and all(name in fields.names for name in used):
        typed = ", ".join(f"{name} is {fields.field(name).type}" for name in used)
        return f"{typed}: compare with values of the same type"
    return f"columns: {', '.join([*fields.names, *others])}"


def _type_of(fields: pa.Schema, condition: pc.Expression) -> pa.DataType:
    scanner = ds.dataset(fields.empty_table()).scanner(columns={"condition": condition}, filter=condition)
    (found,) = scanner.projected_schema.types
    return found

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

_DOES_NOT_FIT: Final = (
    pa.ArrowException,
    ValueError,
    TypeError,
)  # Arrow raises these if a filter does not fit the columns


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns, filter and required groups of a read, checked against the schema.

    Attributes:
        columns: Columns of the result, in this order, including state columns.
        filter: Condition on merged rows, evaluated by Arrow; None for all rows.
        predicate: ``filter`` as a condition, for pruning; None without a filter, or if it could not be parsed.
        filter_columns: Columns of the table that ``filter`` uses.
        require: Names of the groups that must be present in a row.
        arrivals: Ids of the groups whose arrival is appended to the result, ascending.
        result_states: State columns of the result (`weft.storage.core.schema.state_columns`).
        filter_states: State columns that ``filter`` uses.
    """

    columns: tuple[str, ...]
    filter: pc.Expression | None
    predicate: Condition | None
    filter_columns: tuple[str, ...]
    require: tuple[str, ...]
    arrivals: tuple[int, ...]
    result_states: tuple[StateColumn, ...] = ()
    filter_states: tuple[StateColumn, ...] = ()

    def values(self, schema: TableSchema) -> tuple[str, ...]:
        """All columns of the table to stitch, in table order."""
        used = {*self.columns, *self.filter_columns}
        return tuple(column.name for column in schema.columns if column.name in used)

    def states(self, schema: TableSchema) -> set[str]:
        """Names of the hidden arrival columns that the result needs, including those of required groups."""
        required = {schema.group_by_name[name].id for name in self.require}
        return {names.arrival(group) for group in {*required, *self.arrival_groups}}

    @property
    def arrival_groups(self) -> tuple[int, ...]:
        """Ids of the groups whose arrival is in the result or used by the filter, ascending."""
        return tuple(sorted({*self.arrivals, *(column.group for column in (*self.result_states, *self.filter_states))}))

    def groups(self, schema: TableSchema) -> tuple[Group, ...]:
        """Groups whose values or presence are needed to compute the result, in order of the schema."""
        used = {schema.group_of_column[name].id for name in self.values(schema) if name in schema.group_of_column}
        used.update((schema.group_by_name[name].id for name in self.require), self.arrival_groups)
        return tuple(group for group in schema.groups if group.id in used)

    @property
    def output(self) -> tuple[str, ...]:
        """Names of the columns of the result, arrivals included."""
        return (*self.columns, *map(names.arrival, self.arrivals))

    def arrow(self, schema: TableSchema) -> pa.Schema:
        """Schema of the result; keys are not nullable."""
        states = {column.name: column.field for column in self.result_states}
        fields = [states.get(name) or schema.field(name).remove_metadata() for name in self.columns]
        fields += [pa.field(names.arrival(group), pa.int64()) for group in self.arrivals]
        return pa.schema(fields)


def make_projection(schema: TableSchema, request: ScanRequest) -> Projection:
    """Check a request against the schema of the snapshot.

    Raises:
        NotFound: A column or group does not exist; the hint lists those that exist.
        InvalidInput: The filter is not a condition.
    """
    columns = tuple(request.columns) if request.columns is not None else tuple(schema.arrow.names)
    states = state_columns(schema)
    referenced_columns = [name for reference in schema.references for name in reference.shown_names]
    for name in columns:
        if name not in states and name not in schema.column_by_name:
            existing = [*schema.column_by_name, *(other for other in referenced_columns if other != name)]
            raise NotFound(f"the table has no column {name!r}", hint=f"columns: {', '.join(existing)}")
    required = tuple(dict.fromkeys(request.require or ()))
    check_required(schema, required)
    for name in required:
        schema.group(name)
    result_states = tuple(states[name] for name in dict.fromkeys(columns) if name in states)
    arrivals: tuple[int, ...] = ()
    if request.arrivals:
        groups = {schema.group_of_column[name].id for name in columns if name in schema.group_of_column}
        arrivals = tuple(sorted(groups.union(schema.group_by_name[name].id for name in required)))
    if request.filter is None:
        return Projection(columns, None, None, (), required, arrivals, result_states)
    condition, predicate = request.filter.expression, request.filter.condition
    with_states = check_filter(schema.arrow, request.filter, states.values(), referenced_columns)
    # A filter that could not be parsed may use any column.
    used = columns_of(predicate) if predicate is not None else frozenset((*schema.arrow.names, *states))
    filter_columns = tuple(name for name in schema.arrow.names if name in used)
    filter_states = tuple(column for name, column in states.items() if name in used) if with_states else ()
    return Projection(columns, condition, predicate, filter_columns, required, arrivals, result_states, filter_states)


def check_required(schema: TableSchema, required: Sequence[str]) -> None:
    """Check that required groups and references exist.

    Raises:
        NotFound: A name does not exist; the hint lists those that exist.
    """
    for name in required:
        if name not in schema.group_by_name and name not in schema.reference_by_name:
            groups = f"groups: {', '.join(schema.group_by_name)}"
            if not schema.references:
                raise NotFound(f"the table has no group {name!r}", hint=groups)
            hint = f"{groups}; references: {', '.join(schema.reference_by_name)}"
            raise NotFound(f"the table has no group or reference {name!r}", hint=hint)


def check_filter(
    fields: pa.Schema, parsed: ParsedFilter, states: Iterable[StateColumn], more_columns: Sequence[str] = ()
) -> bool:
    """Check that a filter fits columns, and return whether it uses state columns.

    Args:
        fields: The columns of the rows.
        parsed: The filter.
        states: State columns that it may use.
        more_columns: Other columns of the table, for the hint.

    Raises:
        NotFound: The filter uses a column that the table does not have, or compares a column with another type.
        InvalidInput: The filter is not a condition.
    """
    with_states = False
    try:
        filter_type = _type_of(fields, parsed.expression)
    except _DOES_NOT_FIT as error:
        try:
            filter_type = _type_of(pa.schema([*fields, *(column.field for column in states)]), parsed.expression)
        except _DOES_NOT_FIT:
            raise NotFound(
                f"the filter does not fit the table: {str(error).splitlines()[0]}",
                hint=_advice(fields, parsed.condition, more_columns),
            ) from None
        with_states = True
    if not pa.types.is_boolean(filter_type):
        raise InvalidInput(
            f"the filter is not a condition, its values are {filter_type}", hint="compare it with a value"
        )
    return with_states


def _advice(fields: pa.Schema, predicate: Condition | None, more_columns: Sequence[str]) -> str:
    """Hint for a filter that Arrow refuses: types of its columns, or all columns if one does not exist."""
    used = sorted(columns_of(predicate)) if predicate is not None else []
    if used and all(name in fields.names for name in used):
        typed = ", ".join(f"{name} is {fields.field(name).type}" for name in used)
        return f"{typed}: compare with values of the same type"
    return f"columns: {', '.join([*fields.names, *more_columns])}"


def _type_of(fields: pa.Schema, condition: pc.Expression) -> pa.DataType:
    scanner = ds.dataset(fields.empty_table()).scanner(columns={"condition": condition}, filter=condition)
    (filter_type,) = scanner.projected_schema.types
    return filter_type

"""Projection: what a read asks for - columns, a filter over merged rows, groups that must be present."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.core import names
from storage.core.model import Group
from storage.core.predicate import Condition, columns_of
from storage.core.schema.state_columns import StateColumn, state_columns
from storage.core.schema.table_schema import TableSchema
from storage.errors import InvalidInput, NotFound
from storage.read.filter_input import parse_filter
from storage.read.scan_request import ScanRequest

_UNFIT: Final = (pa.ArrowException, ValueError, TypeError)  # what Arrow raises for a filter that does not fit


@dataclass(frozen=True, slots=True)
class Projection:
    """What is read.

    Attributes:
        columns: Of the answer, in its order; those of ``shown`` among them.
        filter: Over the table's columns, applied to merged rows; None for all rows.
        predicate: What ``filter`` says, where it could be read: for not reading what cannot match.
        filter_columns: Columns that ``filter`` looks at.
        require: Names of groups.
        arrivals: Ids of the groups of which the answer also says where they are present.
        shown: State columns of the answer (`storage.core.schema.state_columns`).
        filtered: Those that ``filter`` looks at.
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
        """All user columns that must be stitched."""
        wanted = {*self.columns, *self.filter_columns}
        return tuple(column.name for column in schema.columns if column.name in wanted)

    def states(self, schema: TableSchema) -> set[str]:
        """Hidden columns that say whether a group is present, of all groups of which that is asked."""
        required = {schema.group_by_name[name].id for name in self.require}
        return {names.arrival(group) for group in {*required, *self.told}}

    @property
    def told(self) -> tuple[int, ...]:
        """Ids of the groups whose arrival is looked at, ascending."""
        return tuple(sorted({*self.arrivals, *(column.group for column in (*self.shown, *self.filtered))}))

    def groups(self, schema: TableSchema) -> tuple[Group, ...]:
        """Groups whose values or presence are asked for."""
        asked = {schema.group_of_column[name].id for name in self.values(schema) if name in schema.group_of_column}
        asked.update((schema.group_by_name[name].id for name in self.require), self.told)
        return tuple(group for group in schema.groups if group.id in asked)

    @property
    def output(self) -> tuple[str, ...]:
        """Columns of the answer, arrivals included."""
        return (*self.columns, *map(names.arrival, self.arrivals))

    def arrow(self, schema: TableSchema) -> pa.Schema:
        """Schema of the answer; keys not nullable."""
        states = {column.name: column.field for column in self.shown}
        fields = [states.get(name) or schema.field(name).remove_metadata() for name in self.columns]
        fields += [pa.field(names.arrival(group), pa.int64()) for group in self.arrivals]
        return pa.schema(fields)


def make_projection(schema: TableSchema, request: ScanRequest) -> Projection:
    """Check what a reader asks for, against the schema of the snapshot.

    Raises:
        NotFound: The table has no such column or group; the hint lists those that it has.
        InvalidInput: The filter is not a condition.
    """
    wanted = tuple(request.columns) if request.columns is not None else tuple(schema.arrow.names)
    states = state_columns(schema)
    for name in wanted:
        if name not in states:
            schema.column(name)
    required = tuple(dict.fromkeys(request.require or ()))
    for name in required:
        schema.group(name)
    shown = tuple(states[name] for name in dict.fromkeys(wanted) if name in states)
    predicate, looked_at = None, ()
    filtered: tuple[StateColumn, ...] = ()
    condition = None
    if request.filter is not None:
        condition, predicate = parse_filter(request.filter)
        with_states = _check_filter(schema, condition, states.values())
        # A filter that cannot be read may look at anything.
        seen = columns_of(predicate) if predicate is not None else frozenset((*schema.arrow.names, *states))
        looked_at = tuple(name for name in schema.arrow.names if name in seen)
        if with_states:
            filtered = tuple(column for name, column in states.items() if name in seen)
            predicate = None  # files have no statistics of states
    own = {schema.group_of_column[name].id for name in wanted if name in schema.group_of_column}
    own.update(schema.group_by_name[name].id for name in required)
    told = tuple(sorted(own)) if request.arrivals else ()
    return Projection(wanted, condition, predicate, looked_at, required, told, shown, filtered)


def _check_filter(schema: TableSchema, condition: pc.Expression, states: Iterable[StateColumn]) -> bool:
    """Whether the filter looks at state columns.

    Raises:
        NotFound: It looks at a column that the table does not have, or does not fit its type.
        InvalidInput: It is no condition.
    """
    fields = schema.arrow
    looked_at = False
    try:
        found = _type_of(fields, condition)
    except _UNFIT as error:
        try:
            found = _type_of(pa.schema([*fields, *(column.field for column in states)]), condition)
        except _UNFIT:
            raise NotFound(
                f"the filter does not fit the table: {str(error).splitlines()[0]}",
                hint=f"columns: {', '.join(fields.names)}",
            ) from None
        looked_at = True
    if not pa.types.is_boolean(found):
        raise InvalidInput(f"the filter is no condition, but {found}", hint="compare it with something")
    return looked_at


def _type_of(fields: pa.Schema, condition: pc.Expression) -> pa.DataType:
    scanner = ds.dataset(fields.empty_table()).scanner(columns={"condition": condition}, filter=condition)
    (found,) = scanner.projected_schema.types
    return found

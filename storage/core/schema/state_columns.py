"""Columns of an answer that a table does not store as such: whether a group is present in a row, and its arrival.

    _present_<group>   boolean, never null: the row has an event of the group that no delete has taken back
    _arrival_<group>   int64, null where the group is absent: the arrival of what the row shows of the group

A reader names them; nobody gets them unasked. A table's own column of such a name goes before; new tables have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from storage.core.schema.table_schema import TableSchema

PRESENT: Final = "_present_"
ARRIVAL: Final = "_arrival_"


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column that tells the state of a group.

    Attributes:
        name: In the answer.
        group: Id of the group.
        presence: Whether it tells the presence; else the arrival.
    """

    name: str
    group: int
    presence: bool

    @property
    def field(self) -> pa.Field:
        """As in an answer."""
        return pa.field(self.name, pa.bool_() if self.presence else pa.int64(), nullable=not self.presence)

    def of(self, arrival: pa.Array) -> pa.Array:
        """Its values, by the group's arrival in each row, which is null where the group is absent."""
        return arrival.is_valid() if self.presence else arrival


def state_columns(schema: TableSchema) -> dict[str, StateColumn]:
    """All that a reader of the table may ask for, by name."""
    found = (
        StateColumn(f"{prefix}{group.name}", group.id, presence=prefix == PRESENT)
        for group in schema.groups
        for prefix in (PRESENT, ARRIVAL)
    )
    return {column.name: column for column in found if column.name not in schema.column_by_name}

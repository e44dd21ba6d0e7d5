"""State columns: whether a column group is present in a row, and the arrival of its values.

    _present_<group>   boolean, never NULL
    _arrival_<group>   int64, NULL where the group is absent

A read returns them only on request. A user column with such a name takes precedence; new tables cannot have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weft.storage.core.schema.table_schema import TableSchema

PRESENT: Final = "_present_"
ARRIVAL: Final = "_arrival_"


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A state column of a column group.

    Attributes:
        name: The column's name in the result.
        group: Id of the column group.
        presence: True for the presence, False for the arrival.
    """

    name: str
    group: int
    presence: bool

    @property
    def field(self) -> pa.Field:
        """The column's field in the result."""
        return pa.field(self.name, pa.bool_() if self.presence else pa.int64(), nullable=not self.presence)

    def of(self, arrival: pa.Array) -> pa.Array:
        """Compute the column's values from the group's arrival in each row, which is NULL where the group is absent."""
        return arrival.is_valid() if self.presence else arrival


def state_columns(schema: TableSchema) -> dict[str, StateColumn]:
    """All state columns of a table, by name."""
    candidates = (
        StateColumn(f"{prefix}{group.name}", group.id, presence=prefix == PRESENT)
        for group in schema.groups
        for prefix in (PRESENT, ARRIVAL)
    )
    return {column.name: column for column in candidates if column.name not in schema.column_by_name}

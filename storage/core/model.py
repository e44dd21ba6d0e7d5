"""Columns, groups and streams: the frozen values that a schema is made of. Ids never change and are never reused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import pyarrow as pa

from storage.core.names import StreamName

FIELD_ID: Final = b"PARQUET:field_id"


class Op(IntEnum):
    """Operation of an event as stored (int8), also the kind of a floor.

    RETRACT is an update-before row: an aggregate group takes its values back, other groups do not see it.
    """

    UPSERT = 0
    DELETE_GROUP = 1
    DELETE_ROW = 2
    RETRACT = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One user column.

    Attributes:
        id: Never changes, never used again.
        name: As the user gave it.
        type: Arrow type.
        default: Shown where the column's group is absent (None: NULL).
        since: Slot of the entry that added it; 1 is the CREATE.
        changed: Slot of the newest entry that added it, or changed its type or default.
    """

    id: int
    name: str
    type: pa.DataType
    default: Any = None
    since: int = 1
    changed: int = 1

    @property
    def field(self) -> pa.Field:
        return make_field(self.name, self.type, self.id)


@dataclass(frozen=True, slots=True)
class Function:
    """What an aggregate group does with one of its columns. ``delimiter`` is listagg's."""

    column: str
    name: str
    delimiter: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Columns that change together: the unit of ordering and merging.

    ``columns`` are in table order. ``functions`` are those of an aggregate group, one per column outside ``ordering``;
    ``state`` the declared state columns of a custom merger, (name, type name).
    """

    id: int
    name: str
    columns: tuple[str, ...]
    ordering: tuple[str, ...]
    merge: str
    functions: tuple[Function, ...] = ()
    state: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that do not order events."""
        return tuple(name for name in self.columns if name not in self.ordering)


@dataclass(frozen=True, slots=True)
class Stream:
    """A declared producer of one or more groups. ``on_delete``: group, row or ignore."""

    id: int
    name: StreamName
    groups: tuple[str, ...]
    on_delete: str


def make_field(name: str, arrow_type: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    """A field that files carry by id."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={FIELD_ID: str(field_id).encode()})

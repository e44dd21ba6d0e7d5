"""Columns, column groups and streams: the parts of a schema. Ids never change and are never reused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final

import pyarrow as pa
from pydantic import SkipValidation

from weft.storage.core.names import StreamName

FIELD_ID: Final = b"PARQUET:field_id"


class Op(IntEnum):
    """Operation of an event as stored (int8), and the kind of a delete floor.

    RETRACT is an update-before row: aggregate groups take its values back, other groups ignore it.
    """

    UPSERT = 0
    DELETE_GROUP = 1
    DELETE_ROW = 2
    RETRACT = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One user column.

    Attributes:
        id: Never changes, and is never reused.
        name: Name that the user chose.
        type: Arrow type.
        default: Value to show where the column's group is absent; None for NULL.
        since: Slot of the table-lane entry that added the column; 1 is the CREATE.
        changed: Slot of the newest entry that added the column, or changed its type or default.
        comment: What the column means, for people; empty for none.
    """

    id: int
    name: str
    type: Annotated[pa.DataType, SkipValidation]
    default: Any = None
    since: int = 1
    changed: int = 1
    comment: str = ""

    @property
    def field(self) -> pa.Field:
        """The column as a nullable Arrow field with its id."""
        return make_field(self.name, self.type, self.id)


@dataclass(frozen=True, slots=True)
class Function:
    """The function of one column of an aggregate group; ``delimiter`` is the option of listagg."""

    column: str
    name: str
    delimiter: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A column group: columns that change together, the unit of ordering and merging.

    Attributes:
        id: Never changes, and is never reused.
        name: Name that the user chose.
        columns: Names of all columns of the group, in table order.
        ordering: Names of the columns that order events, left to right; empty for commit order.
        merge: Merge mode, as in the configuration.
        functions: Functions of an aggregate group, one per value column; empty in other modes.
        state: Declared state columns of a custom merger: (name, type name).
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
        """The columns outside ``ordering``."""
        return tuple(name for name in self.columns if name not in self.ordering)


@dataclass(frozen=True, slots=True)
class Stream:
    """A declared producer of one or more column groups.

    Attributes:
        id: Never changes, and is never reused.
        name: Name that the user chose; also the name of its default lane.
        groups: Names of the groups that it writes.
        on_delete: What its deletes mean: group, row or ignore.
    """

    id: int
    name: StreamName
    groups: tuple[str, ...]
    on_delete: str


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long rows and deletes of a table are kept, in milliseconds (MERGE.md, "Time to live").

    Attributes:
        rows_ms: Age at which a row expires; None if rows do not expire.
        by: The column that holds the time of a row; "" for the time of its last event.
        unit: Unit of an integer column: ``seconds``, ``milliseconds`` or ``microseconds``; "" for other columns.
        deletes_ms: A delete is kept for at least this long after its commit.
        within_ms: Expired rows and deletes are removed within this time.
    """

    rows_ms: int | None
    by: str
    unit: str
    deletes_ms: int
    within_ms: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: columns of the table that hold the key of another table, whose columns are shown beside them.

    Attributes:
        name: Unique among the references and groups of the table.
        table: Location of the referenced table: an absolute path or URL, or a path relative to this table's location.
        on: Columns of this table, one for each key column of the referenced table, in the order of that key.
        columns: Columns of the referenced table to show, in order.
        prefix: Prefix of their names in this table.
        table_id: Id of the referenced table, to detect another table at its location; empty in a schema that was not
            resolved (`weft.storage.services.schema.resolve_references`).
    """

    name: str
    table: str
    on: tuple[str, ...]
    columns: tuple[str, ...]
    prefix: str
    table_id: str = ""

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of `columns` in this table, in the same order."""
        return tuple(f"{self.prefix}{name}" for name in self.columns)


def make_field(name: str, arrow_type: pa.DataType, field_id: int, *, nullable: bool = True) -> pa.Field:
    """Build an Arrow field with an id; Parquet files are read by these ids."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={FIELD_ID: str(field_id).encode()})

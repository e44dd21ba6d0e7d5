"""The snapshot of a referenced table that belongs to a snapshot of a table, or why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from weft.storage.core.model import Reference
from weft.storage.core.plan.completeness import check_complete
from weft.storage.core.plan.watermarks import Value
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput, NotComplete, NotFound, OffsetExpired, OffsetInvalidated, TableError
from weft.storage.plural import counted
from weft.storage.read.lane_watermarks import read_watermarks
from weft.storage.read.snapshot_files import SnapshotFiles


@dataclass(frozen=True, slots=True)
class ReferencedTable:
    """A reference of a snapshot.

    Attributes:
        reference: The reference.
        found: The snapshot of the referenced table; or the error of taking it, which is raised only for reads that
            use columns of the reference.
    """

    reference: Reference
    found: SnapshotFiles | TableError

    @property
    def files(self) -> SnapshotFiles:
        """The snapshot of the referenced table.

        Raises:
            TableError: The error of taking it.
        """
        if isinstance(self.found, TableError):
            hint = f"{self.found.hint}; columns outside of the reference can be read"
            raise type(self.found)(f"reference {self.reference.name!r}: {self.found.message}", hint=hint)
        return self.found

    def check_complete(self, through: Value | str) -> None:
        """Check that the groups of the reference's columns are complete, as `Snapshot.check_complete` does it.

        Raises:
            NotComplete: A stream of the referenced table lags.
            TableError: There is no snapshot of the referenced table.
        """
        schema = self.files.table_schema
        groups = {schema.group_of_column[name].name for name in self.reference.columns if name not in schema.key}
        watermarks = read_watermarks(self.files.table_log.commit_log, self.files.state, self.files.at)
        with naming(self.reference):
            check_complete(watermarks, schema, through, sorted(groups))

    def fields(self) -> list[pa.Field]:
        """The columns of the reference as they are shown; all are nullable.

        Raises:
            TableError: There is no snapshot of the referenced table.
        """
        schema = self.files.table_schema
        shown = zip(self.reference.columns, self.reference.shown, strict=True)
        return [pa.field(name, schema.column_by_name[column].type) for column, name in shown]


@contextlib.contextmanager
def naming(reference: Reference) -> Iterator[None]:
    """Name the reference in errors about what is read of its table."""
    try:
        yield
    except (InvalidInput, NotComplete, OffsetExpired, OffsetInvalidated) as error:
        raise type(error)(f"reference {reference.name!r}: {error.message}", hint=error.hint) from error


def check_table_id(reference: Reference, table_id: str) -> None:
    """Check that a table is the one that a reference was made for, and not another one at its location.

    Raises:
        NotFound: It is another one.
    """
    if table_id != reference.table_id:
        raise NotFound(
            f"another table is at {reference.table} than the one that the reference was made for",
            hint="put the former table back, or drop the reference and add it again to use the new one",
        )


def check_reference(schema: TableSchema, reference: Reference, referenced: TableSchema) -> None:
    """Check that a referenced table has the key and the columns of a reference.

    Args:
        schema: The schema of the table with the reference.
        reference: One of its references.
        referenced: The schema of the referenced table.

    Raises:
        InvalidInput: The foreign key does not fit the key of the referenced table.
        NotFound: The referenced table has no such column.
    """
    field = f"references.{reference.name}"
    key = ", ".join(f"{name} {format_type(referenced.column_by_name[name].type)}" for name in referenced.key)
    if len(reference.on) != len(referenced.key):
        raise InvalidInput(
            f"{field}.on: {counted(len(reference.on), 'column')}, "
            f"and the key of {reference.table} has {len(referenced.key)}",
            hint=f"name one column for each of ({key})",
        )
    for name, target in zip(reference.on, referenced.key, strict=True):
        foreign_type, key_type = schema.column_by_name[name].type, referenced.column_by_name[target].type
        if not _comparable(foreign_type, key_type):
            raise InvalidInput(
                f"{field}.on: column {name!r} is {format_type(foreign_type)}, and {target!r} of {reference.table} is "
                f"{format_type(key_type)}",
                hint="the types must be equal; only integers may differ in width, and decimals in their digits before "
                "the point",
            )
    for name in reference.columns:
        if name in {shown for other in referenced.references for shown in other.shown}:
            raise InvalidInput(
                f"{field}.columns: {name!r} is a column of a reference of {reference.table}",
                hint="a reference of a reference is not supported: add a second reference to this table",
            )
        if name not in referenced.column_by_name:
            raise NotFound(
                f"{field}.columns: {reference.table} has no column {name!r}",
                hint=f"its columns: {', '.join(referenced.column_by_name)}",
            )


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale)
    return bool(one == other or (pa.types.is_integer(one) and pa.types.is_integer(other)))

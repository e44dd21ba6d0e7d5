"""The snapshot of a referenced table that belongs to a snapshot of a table, or the error of taking it."""

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
        snapshot_or_error: The snapshot of the referenced table; or the error of taking it, which is raised only for
            reads that use columns of the reference.
    """

    reference: Reference
    snapshot_or_error: SnapshotFiles | TableError

    @property
    def files(self) -> SnapshotFiles:
        """The snapshot of the referenced table.

        Raises:
            TableError: The error of taking it.
        """
        result = self.snapshot_or_error
        if isinstance(result, TableError):
            hint = f"{result.hint}; columns outside of the reference can be read"
            raise type(result)(f"reference {self.reference.name!r}: {result.message}", hint=hint)
        return result

    def check_complete(self, through: Value | str) -> None:
        """Check that the groups of the reference's columns are complete, as `Snapshot.check_complete` does.

        Raises:
            NotComplete: A stream of the referenced table lags.
            TableError: The snapshot of the referenced table could not be taken.
        """
        schema = self.files.table_schema
        groups = {schema.group_of_column[name].name for name in self.reference.columns if name not in schema.key}
        watermarks = read_watermarks(self.files.table_log.commit_log, self.files.state, self.files.at)
        with naming(self.reference):
            check_complete(watermarks, schema, through, sorted(groups))

    def fields(self) -> list[pa.Field]:
        """The columns of the reference with their names in the table; all are nullable.

        Raises:
            TableError: The snapshot of the referenced table could not be taken.
        """
        schema = self.files.table_schema
        shown_columns = zip(self.reference.columns, self.reference.shown_names, strict=True)
        return [pa.field(name, schema.column_by_name[column].type) for column, name in shown_columns]


@contextlib.contextmanager
def naming(reference: Reference) -> Iterator[None]:
    """Name the reference in errors of reads of its table."""
    try:
        yield
    except (InvalidInput, NotComplete, OffsetExpired, OffsetInvalidated) as error:
        raise type(error)(f"reference {reference.name!r}: {error.message}", hint=error.hint) from error


def check_table_id(reference: Reference, table_id: str) -> None:
    """Check that a table is the one that a reference was created for, and not another table at its location.

    Raises:
        NotFound: It is another table.
    """
    if table_id != reference.table_id:
        raise NotFound(
            f"the table at {reference.table} is not the one that the reference was created for",
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
        NotFound: A column of the reference does not exist in the referenced table.
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
        if name in {shown for other in referenced.references for shown in other.shown_names}:
            raise InvalidInput(
                f"{field}.columns: {name!r} is a column of a reference of {reference.table}",
                hint="a reference of a reference is not supported: add a second reference to this table",
            )
        if name not in referenced.column_by_name:
            raise NotFound(
                f"{field}.columns: {reference.table} has no column {name!r}",
                hint=f"its columns: {', '.join(referenced.column_by_name)}",
            )


def _comparable(left: pa.DataType, right: pa.DataType) -> bool:
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return bool(left.scale == right.scale)
    return bool(left == right or (pa.types.is_integer(left) and pa.types.is_integer(right)))

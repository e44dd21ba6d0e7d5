"""A table of another format: its declaration, and a stream of its rows. Opened with the reader of its format."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from weft.storage.errors import InvalidInput, TableError
from weft.storage.imports.column_types import column_types
from weft.storage.imports.translate import Format
from weft.storage.imports.translation import Declaration

BATCH_ROWS: Final = 64 * 1024
"""Rows of a batch, if the reader accepts a size."""

_READERS: Final[Mapping[Format, tuple[str, str]]] = {
    "parquet": ("parquet_reader", ""),
    "delta": ("delta_reader", "deltalake"),
    "iceberg": ("iceberg_reader", "pyiceberg"),
    "hudi": ("hudi_reader", "hudi"),
    "paimon": ("paimon_reader", "pypaimon_rust"),
}
"""Module and required package of each format. The extra of weft has the name of the format."""

_ADVICE: Final[Mapping[Format, str]] = {
    "parquet": "check that every file is complete",
    "delta": "if the table has a feature that the reader lacks, remove it in Delta (ALTER TABLE ... DROP FEATURE)",
    "iceberg": "if the reader cannot apply its deletes, rewrite its files in Spark (CALL "
    "system.rewrite_data_files(table => '...', options => map('delete-file-threshold', '1')))",
    "hudi": "if the reader cannot read it as it is, import a Parquet export of what Hudi's reader shows",
    "paimon": "if the reader cannot read it as it is, rewrite it with 'file.format' = 'parquet', or import an export",
}
"""What to do if the library does not support something in an intact table."""

_PANIC: Final = "PanicException"
"""Name of the error of a failed Rust library. It is not an `Exception`, and its class cannot be imported."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table of another format, at one version.

    Attributes:
        kind: The format.
        location: Path or URL of the table, or its name in a catalog.
        version: The version that is read, as the format names it.
        schema: Its columns, without columns that only the format itself uses.
        batches: Reads all rows, in batches with the requested columns.
        rows: Number of rows from the metadata of the format; None if it has no such number.
        key, partition_by, options, comments, comment: As in `Declaration`.
    """

    kind: Format
    location: str
    version: str
    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    rows: int | None = None
    key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comments: Mapping[str, str | None] = field(default_factory=dict)
    comment: str | None = None

    def declaration(self, leave_out: Sequence[str] = ()) -> Declaration:
        """The declaration of the table, without the columns in ``leave_out``.

        Raises:
            InvalidInput: A column to leave out does not exist, or a column has a type that weft cannot store.
        """
        for name in leave_out:
            if name not in self.schema.names:
                raise InvalidInput(
                    f"--leave-out: the source has no column {name!r}", hint=f"columns: {', '.join(self.schema.names)}"
                )
        schema = pa.schema([column for column in self.schema if column.name not in leave_out])
        return Declaration(
            column_types(schema),
            tuple(self.key),
            tuple(self.partition_by),
            dict(self.options),
            comments={name: text for name, text in self.comments.items() if text},
            comment=self.comment or "",
        )

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read all rows, in batches with these columns in this order.

        Raises:
            InvalidInput: A file is missing or damaged.
        """
        with _read_errors(self.kind, self.location):
            for batch in self.batches(columns):
                yield batch.select(list(columns))


def open_foreign(
    kind: Format, location: str, *, version: str | None = None, options: Mapping[str, Any] | None = None
) -> ForeignTable:
    """Open a table of another format.

    Args:
        kind: The format.
        location: A path or URL. For Iceberg: the metadata file, or the name of the table in a catalog. For Paimon: the
            folder ``<warehouse>/<database>.db/<table>``.
        version: Version (Delta), snapshot id (Iceberg) or commit time (Hudi) to read; the newest by default.
        options: Options of the reader: for the store, and for Iceberg properties of the catalog.

    Raises:
        InvalidInput: The reader is not installed, or the table or version does not exist.
    """
    module, package = _READERS[kind]
    if package and importlib.util.find_spec(package) is None:
        raise InvalidInput(f"reading {kind} needs {package}", hint=f"install it: pip install 'weft[{kind}]'")
    reader = importlib.import_module(f"weft.storage.imports.{module}")
    with _read_errors(kind, location):
        foreign_table: ForeignTable = reader.open_table(location, version, dict(options or {}))
    return foreign_table


@contextmanager
def _read_errors(kind: Format, location: str) -> Iterator[None]:
    """Turn every error of a reader into `InvalidInput`, because each library has its own error classes."""
    try:
        yield
    except (TableError, MemoryError, AssertionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        text = str(error).strip() or type(error).__name__
        if isinstance(error, FileNotFoundError):
            text = f"there is no such file or folder ({text})"
        raise InvalidInput(
            f"the {kind} table at {location} cannot be read: {text}",
            hint=f"check the location, its format, the version and the options of the store; {_ADVICE[kind]}",
        ) from error


def refuse_version(kind: Format, version: str | None) -> None:
    """Refuse a version for a format whose reader cannot read older versions.

    Raises:
        InvalidInput: ``version`` is not None.
    """
    if version is not None:
        raise InvalidInput(f"--source-version: {kind} is read as it is now", hint="leave the option out")

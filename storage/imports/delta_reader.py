"""Reads a Delta table with deltalake, including deletion vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import ForeignTable


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table at a version. ``options``: deltalake's storage options."""
    if version is not None and not version.isdigit():
        raise InvalidInput(f"--source-version: {version!r} is not a version of Delta", hint="give a number such as 7")
    number = None if version is None else int(version)
    storage_options = {name: str(value) for name, value in options.items()} or None
    table = DeltaTable(location, version=number, storage_options=storage_options)

    def query(sql: str) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("source", table).execute(sql))

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        yield from query(f"SELECT {names} FROM source")  # noqa: S608 - quoted names

    metadata = table.metadata()
    return ForeignTable(
        kind="delta",
        location=location,
        version=str(table.version()),
        schema=query("SELECT * FROM source LIMIT 0").schema,
        batches=batches,
        rows=_count(table),
        partition_by=metadata.partition_columns,
        options={name: str(value) for name, value in metadata.configuration.items()},
        comments={column.name: column.metadata.get("comment") for column in table.schema().fields},
        comment=metadata.description,
    )


def _count(table: DeltaTable) -> int | None:
    """Number of rows that deletion vectors do not hide; None if a file does not record its number of rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return 0
    if "num_records" not in files.column_names or files["num_records"].null_count:
        return None
    rows = int(pc.sum(files["num_records"]).as_py())
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        selection = batch["selection_vector"].flatten()
        rows -= len(selection) - selection.true_count
    return rows

"""Reads a Hudi table with hudi-rs: a snapshot, with the log files of merge-on-read tables merged by its rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from hudi import HudiReadOptions, HudiTableBuilder

from storage.errors import InvalidInput
from storage.imports.foreign_table import BATCH_ROWS, ForeignTable
from storage.store.open_store import open_store


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table at a commit time; ``options`` are those of hudi-rs and of its store."""
    uri = location if "://" in location else open_store(location).uri
    given = {name: str(value) for name, value in options.items()}
    table = HudiTableBuilder.from_base_uri(uri).with_options(given).build()
    commit = table.get_timeline().get_latest_commit_timestamp()
    if commit is None:
        raise InvalidInput(f"the Hudi table at {location} has no commit", hint="there is nothing to import")
    at = commit if version is None else version

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        asked = HudiReadOptions().with_as_of_timestamp(at).with_projection(list(columns)).with_batch_size(BATCH_ROWS)
        yield from table.read_stream(asked)

    return ForeignTable(
        kind="hudi",
        location=location,
        version=at,
        schema=table.get_schema(),
        batches=batches,
        partition_by=list(table.get_partition_schema().names),
        options={name: value for name, value in table.hudi_options().items() if name != "hoodie.base.path"},
    )

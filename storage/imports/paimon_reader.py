"""Reads a Paimon table with Paimon's Rust library: its newest snapshot, merged by its merge engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import pyarrow as pa
from pypaimon_rust.datafusion import PaimonCatalog

from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import ForeignTable, refuse_version
from weft.storage.store.open_store import open_store

_DATABASE: Final = ".db"
_FALLBACK: Final = "scan.fallback-"
"""Prefix of options that name branches, whose rows fill partitions that the table lacks."""
_REMOVES: Final = (
    "partial-update.remove-record-on-delete",
    "partial-update.remove-record-on-sequence-group",
    "aggregation.remove-record-on-delete",
)
"""Options by which a delete removes a row. The library wrongly merges older values into a later insert of the key."""
_OTHER_ROWS: Final = frozenset({"branch", "incremental-between", "incremental-between-timestamp"})
"""Options of a table that change which rows its readers show, and that the library ignores."""


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table. ``options``: options of the catalog, such as credentials of the store."""
    refuse_version("paimon", version)
    uri = location.rstrip("/") if "://" in location else open_store(location).uri.removeprefix("file://")
    scheme, mark, path = uri.rpartition("://")
    folder = PurePosixPath(path)
    if not folder.parent.name.endswith(_DATABASE):
        raise InvalidInput(
            f"{location} is not the folder of a Paimon table", hint="give <warehouse>/<database>.db/<table>"
        )
    warehouse = f"{scheme}{mark}{folder.parent.parent}"
    catalog = PaimonCatalog({"warehouse": warehouse, **{name: str(value) for name, value in options.items()}})
    table = catalog.get_table((folder.parent.name.removesuffix(_DATABASE), folder.name))
    paimon_schema = table.schema()
    for name, value in paimon_schema.options().items():
        if name in _OTHER_ROWS or name.startswith(_FALLBACK):
            raise InvalidInput(
                f"the Paimon table at {location} has the option {name} = {value}, which this reader does not follow",
                hint="remove the option in Paimon (ALTER TABLE), or import a Parquet export of what its reader shows",
            )
    plan = table.new_read_builder().new_scan().plan()

    removes = next((name for name in _REMOVES if paimon_schema.options().get(name, "false") not in {"", "false"}), None)
    total = sum(split.row_count() for split in plan.splits())

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in table.new_read_builder().with_projection(list(columns)).new_read().read_arrow(plan.splits()):
            rows += len(batch)
            yield batch
        if removes is not None and rows != total:
            raise InvalidInput(
                f"the Paimon table at {location} has {removes}, and {total - rows} stored rows are not merged yet",
                hint="compact it in Paimon first (CALL sys.compact with compact_strategy => 'full'). The library shows "
                "values from before a delete",
            )

    empty = table.new_read_builder().new_read().read_arrow(plan.splits()[:1])
    first = next(iter(empty), None)
    if first is None:
        raise InvalidInput(
            f"the Paimon table at {location} has no rows",
            hint="compact it in Paimon if it is write-only with deletion vectors or first-row: rows show after that",
        )
    return ForeignTable(
        kind="paimon",
        location=location,
        version=str(plan.snapshot_id()),
        schema=first.schema.remove_metadata(),
        batches=batches,
        key=paimon_schema.primary_keys(),
        partition_by=paimon_schema.partition_keys(),
        options=dict(paimon_schema.options()),
        comments={column.name(): column.description() for column in paimon_schema.fields()},
        comment=paimon_schema.comment(),
    )

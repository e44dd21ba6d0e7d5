"""Reads an Iceberg table with pyiceberg, from a metadata file or from a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable, Table

from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import ForeignTable

_METADATA: Final = ".metadata.json"
_CATALOG: Final = "catalog"
_COMMENT: Final = "comment"


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table at a snapshot.

    Args:
        location: A metadata file (``*.metadata.json``), or ``namespace.table`` in a catalog.
        version: Id of a snapshot.
        options: Properties of the catalog or of the file access. ``catalog``: name of the catalog in the configuration
            of pyiceberg, by default ``default``.
    """
    properties = {name: str(value) for name, value in options.items() if name != _CATALOG}
    if location.endswith(_METADATA):
        table: Table = StaticTable.from_metadata(location, properties)
    else:
        _check_name(location)
        table = load_catalog(str(options.get(_CATALOG, "default")), **properties).load_table(location)
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(_number(version))
    if version is not None and snapshot is None:
        raise InvalidInput(
            f"--source-version: {location} has no snapshot {version}", hint="give the id of a snapshot in its history"
        )
    snapshot_id = None if snapshot is None else snapshot.snapshot_id

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from table.scan(selected_fields=tuple(columns), snapshot_id=snapshot_id).to_arrow_batch_reader()

    scan = table.scan(snapshot_id=snapshot_id)
    fields = {field.field_id: field.name for field in table.schema().fields}
    partitions = [fields.get(field.source_id) for field in table.spec().fields if str(field.transform) == "identity"]
    return ForeignTable(
        kind="iceberg",
        location=location,
        version=str(snapshot_id),
        schema=scan.to_arrow_batch_reader().schema,
        batches=batches,
        rows=scan.count(),
        key=sorted(table.schema().identifier_field_names(), key=list(fields.values()).index),
        partition_by=[name for name in partitions if name is not None],
        options={name: value for name, value in table.properties.items() if name != _COMMENT},
        comments={column.name: column.doc for column in table.schema().fields},
        comment=table.properties.get(_COMMENT),
    )


def _check_name(location: str) -> None:
    """Refuse a path or URL where a name in a catalog is expected.

    Raises:
        InvalidInput: It is a path or a URL. The hint names the newest metadata file of a local folder.
    """
    if "/" not in location and not Path(location).is_dir():
        return
    metadata_files = sorted(Path(location).glob(f"metadata/*{_METADATA}"), key=lambda path: path.stat().st_mtime)
    hint = (
        f"give its newest metadata file: {metadata_files[-1]}"
        if metadata_files
        else "give a metadata file below it, metadata/*.metadata.json"
    )
    raise InvalidInput(
        f"{location} is the folder of an Iceberg table, which does not say what its newest version is",
        hint=f"{hint}; or NAMESPACE.TABLE in a catalog, with --source-option uri=... (and type, warehouse, ...)",
    )


def _number(version: str) -> int:
    if not version.isdigit():
        raise InvalidInput(f"--source-version: {version!r} is not the id of a snapshot", hint="give its number")
    return int(version)

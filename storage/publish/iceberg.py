"""Publishes the base files of a table as an Iceberg table: metadata over the files as they are, no copy.

One publication is one commit of the catalog, so readers see all of it or nothing. The published table shows the rows of
`storage.read.read_optimized`. The order of the steps makes concurrent publications safe (decision 22 in DECISIONS.md):

1. List the savepoints of the weft table, then load the Iceberg table, then take the snapshot to publish. A publication
   that loaded the Iceberg table after another one had committed has a snapshot that is not older.
2. Make a savepoint of the snapshot, so that cleaning keeps its files.
3. Commit, on condition that the Iceberg table still has the snapshot that was loaded.
4. Release the savepoints that were listed in step 1 and that the Iceberg table does not need. Who made one of these
   loaded the Iceberg table before this commit, so its own commit fails.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from storage.core.log.cut import parse_cut
from storage.core.log.table_state import TableState
from storage.core.plan.current_files import CurrentFile, columns_that_differ, current_files
from storage.core.plan.slices import base_slices
from storage.errors import CommitUnknown, Conflict, InvalidInput, NotFound
from storage.files.base_file import read_footers
from storage.publish.iceberg_files import data_file, deletes_file, deletes_name, encode_deletes, unused_rows
from storage.publish.iceberg_schema import iceberg_schema
from storage.publish.iceberg_snapshot import Listed, SnapshotWriter
from storage.read.snapshot import Snapshot
from storage.services.savepoints import make_savepoint
from storage.table import Table

TABLE_ID: Final = "weft.table-id"
"""Property of a published table: the id of the weft table."""

CUT: Final = "weft.cut"
SAVEPOINT: Final = "weft.savepoint"
"""Properties of a snapshot of a published table: the snapshot of the weft table that it shows, and its savepoint."""

PROTECTED: Final = 2
"""The newest snapshots of the published table that have savepoints: the current one, and the one that readers which
planned before the last publication still read."""

_PROPERTIES: Final = {
    "format-version": "2",
    # The files belong to the weft table: other engines must not delete them with snapshots or with the Iceberg table.
    "gc.enabled": "false",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication.

    Attributes:
        cut: The snapshot of the weft table whose base files the published table shows.
        snapshot_id: Id of the current snapshot of the published table.
        changed: Whether there was anything to publish; otherwise the published table has the same snapshot as before.
        files: Files of the published table.
        added: Files that it did not have before.
        removed: Files that it no longer has.
        rows: Rows of the published table.
        unused_rows: Rows of the files that are not rows of the table: the published table lists them as deleted.
    """

    cut: str
    snapshot_id: int
    changed: bool
    files: int
    added: int
    removed: int
    rows: int
    unused_rows: int


def publish_iceberg(table: Table, catalog: Catalog, name: str, columns: Sequence[str] | None = None) -> Published:
    """Publish the base files of a table as an Iceberg table.

    Creates the Iceberg table and its namespace if they do not exist; it is empty until the commit. Publishing the same
    base files again changes nothing. What another engine has written to the Iceberg table is removed from it.

    Args:
        table: The weft table.
        catalog: The catalog of the Iceberg table. Its file system must reach the files of the weft table.
        name: Namespace and name of the Iceberg table, separated by dots.
        columns: Columns to publish, with all key columns; None for all columns of the table.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: A key column is missing; a column has a nested type; or some base files have an older schema, in
            which a column does not show what the table shows.
        Conflict: The Iceberg table is not published from this table, or somebody else changed it at the same time.
        CommitUnknown: The catalog did not say whether it has committed. Publish again.
        CorruptData: A base file is missing, or its footer is damaged.
    """
    savepoints = [made.name for made in table.savepoints()]
    target = _load(table, catalog, name, columns)
    snapshot = table.writable_snapshot()
    schema, files = _plan(snapshot.state, columns)
    publication = _Publication(table, catalog, target, snapshot, schema, files)
    result = publication.run()
    publication.release(savepoints)
    return result


def _plan(state: TableState, columns: Sequence[str] | None) -> tuple[Schema, list[CurrentFile]]:
    """The Iceberg schema and the files to publish; raises as `publish_iceberg` does."""
    table_schema = state.schema
    names = list(table_schema.arrow.names if columns is None else dict.fromkeys(columns))
    schema = iceberg_schema(table_schema, names, 0)
    files = current_files(base_slices(state))
    older = columns_that_differ(table_schema, files, names)
    if older:
        raise InvalidInput(
            f"base files of an older schema do not show what the table shows in column {', '.join(older)}",
            hint="name the other columns, or publish again when all base files were written anew",
        )
    return schema, files


def _load(table: Table, catalog: Catalog, name: str, columns: Sequence[str] | None) -> IcebergTable:
    """The Iceberg table; creates it if it does not exist."""
    state = table.state()
    try:
        target = catalog.load_table(name)
    except NoSuchTableError:
        schema, _ = _plan(state, columns)
        catalog.create_namespace_if_not_exists(catalog.namespace_from(name))
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(name, schema, properties={**_PROPERTIES, TABLE_ID: state.table_id})
        target = catalog.load_table(name)
    if target.properties.get(TABLE_ID) != state.table_id:
        raise Conflict(
            f"Iceberg table {name} is not published from the table at {table.uri}",
            hint="publish under another name, or drop the Iceberg table",
        )
    return target


class _Publication:
    """One publication: a snapshot of a weft table, and the Iceberg table as it was loaded before."""

    def __init__(
        self,
        table: Table,
        catalog: Catalog,
        target: IcebergTable,
        snapshot: Snapshot,
        schema: Schema,
        files: Sequence[CurrentFile],
    ) -> None:
        self._table, self._catalog, self._target, self._snapshot = table, catalog, target, snapshot
        self._schema, self._same_schema = _next_schema(target, schema)
        self._files = {table.env.store.url(current.file.path): current for current in files}
        self._prefix = f"iceberg-{target.metadata.table_uuid}-"

    def run(self) -> Published:
        """Commit what differs from the current snapshot of the Iceberg table."""
        metadata, io = self._target.metadata, self._target.io
        current = self._target.current_snapshot()
        listed = Listed.of(io, current)
        present = listed.paths
        kept = frozenset(present) & self._files.keys()
        added = [url for url in self._files if url not in kept]
        unused = unused_rows(self._files.items())
        encoded = encode_deletes(unused) if unused.num_rows else b""
        deletes_differ = not _lists_deletes(listed, encoded)
        changed = (
            current is None
            or bool(added)
            or sorted(present) != sorted(kept)
            or deletes_differ
            or not self._same_schema
            # Somebody has released it, or another engine has written the snapshot.
            or _property(current, SAVEPOINT) not in self._snapshot.state.savepoints
        )
        expired = [old for old in metadata.snapshots if old is not current and self._has_expired(old)]
        new = current
        updates: list[TableUpdate] = []
        writer = SnapshotWriter(self._target, self._schema, metadata.new_snapshot_id())
        savepoint = f"{self._prefix}{writer.snapshot_id}"
        if changed:
            # Base files have no columns of referenced tables, so the snapshot of this table alone is kept.
            note = f"published as {'.'.join(self._target.name())}"
            make_savepoint(self._table.writable(), savepoint, self._snapshot, note)
            new = self._write(writer, listed, kept, encoded if deletes_differ else None, unused, savepoint)
            if not self._same_schema:
                updates += [
                    AddSchemaUpdate(schema=self._schema),
                    SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
                ]
            updates += [
                AddSnapshotUpdate(snapshot=new),
                SetSnapshotRefUpdate.model_validate(
                    {"ref-name": "main", "type": "branch", "snapshot-id": new.snapshot_id}
                ),
            ]
        assert new is not None, "a table without a snapshot gets one"
        if expired:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [old.snapshot_id for old in expired]}))
        if updates:
            garbage = self._garbage(expired, [*(old for old in metadata.snapshots if old not in expired), new])
            self._commit(updates, writer, savepoint if changed else None)
            for place in garbage:
                with contextlib.suppress(FileNotFoundError):
                    io.delete(place)
        return Published(
            cut=str(self._snapshot.cut),
            snapshot_id=new.snapshot_id,
            changed=changed,
            files=len(self._files),
            added=len(added),
            removed=len(present) - len(kept),
            rows=sum(current.file.rows for current in self._files.values()) - unused.num_rows,
            unused_rows=unused.num_rows,
        )

    def release(self, listed: Iterable[str]) -> None:
        """Release those savepoints of earlier publications that no protected snapshot of the Iceberg table has.

        Args:
            listed: Savepoints that existed before the Iceberg table was loaded.
        """
        snapshots = sorted(self._target.refresh().metadata.snapshots, key=lambda old: old.sequence_number or 0)
        needed = {_property(old, SAVEPOINT) for old in snapshots[-PROTECTED:]}
        for name in listed:
            if name.startswith(self._prefix) and name not in needed:
                self._release(name)

    def _release(self, savepoint: str) -> None:
        with contextlib.suppress(NotFound):  # another publication has released it
            self._table.release_savepoint(savepoint)

    def _write(
        self,
        writer: SnapshotWriter,
        listed: Listed,
        kept: frozenset[str],
        encoded: bytes | None,
        unused: pa.Table,
        savepoint: str,
    ) -> IcebergSnapshot:
        """Write the new snapshot; ``encoded`` is a file of position deletes, None for the same as before."""
        added = [(url, current) for url, current in self._files.items() if url not in kept]
        footers = read_footers(self._table.env, [current.file for _, current in added])
        entries = [
            data_file(url, current, footer, self._snapshot.state.schema, self._schema)
            for (url, current), footer in zip(added, footers, strict=True)
        ]
        deletes = None
        if encoded is not None:
            deletes = []
            if encoded:
                name = f"{deletes_name(encoded)}-{uuid.uuid4()}.parquet"
                place = self._target.location_provider().new_data_location(name)
                writer.create(place, encoded)
                deletes.append(deletes_file(place, len(encoded), unused))
        properties = {TABLE_ID: self._snapshot.state.table_id, CUT: str(self._snapshot.cut), SAVEPOINT: savepoint}
        return writer.write(listed, kept, entries, deletes, properties)

    def _commit(self, updates: Sequence[TableUpdate], writer: SnapshotWriter, savepoint: str | None) -> None:
        metadata = self._target.metadata
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": metadata.current_snapshot_id}),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        )
        try:
            self._catalog.commit_table(self._target, requirements, tuple(updates))
        except CommitFailedException as error:
            writer.remove_written()
            if savepoint is not None:
                self._release(savepoint)
            raise Conflict(
                f"Iceberg table {'.'.join(self._target.name())} changed during the publication: {error}",
                hint="publish again",
            ) from error
        except CommitStateUnknownException as error:
            raise CommitUnknown(
                f"the catalog did not say whether it committed to {'.'.join(self._target.name())}: {error}",
                hint="publish again: what is published already is not published twice",
            ) from error

    def _garbage(self, expired: Sequence[IcebergSnapshot], rest: Sequence[IcebergSnapshot]) -> set[str]:
        """URLs of metadata and of position deletes that only expired snapshots have; never base files."""
        if not expired:
            return set()
        io = self._target.io
        return _metadata_of(io, expired) - _metadata_of(io, rest)

    def _has_expired(self, old: IcebergSnapshot) -> bool:
        """Whether the files of an earlier snapshot are no longer kept; one that weft did not write is not kept."""
        cut = _property(old, CUT)
        return cut is None or not self._snapshot.state.keeps(parse_cut(cut))


def _metadata_of(io: FileIO, snapshots: Iterable[IcebergSnapshot]) -> set[str]:
    """URLs of the manifest lists, manifests and delete files of snapshots."""
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        with contextlib.suppress(FileNotFoundError):  # an interrupted publication has removed it
            for manifest in snapshot.manifests(io):
                if manifest.content == ManifestContent.DELETES and manifest.manifest_path not in found:
                    found.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
                found.add(manifest.manifest_path)
    return found


def _next_schema(target: IcebergTable, wanted: Schema) -> tuple[Schema, bool]:
    """The schema to publish with its id, and whether it is the current schema of the Iceberg table."""
    current = target.schema()
    if current == wanted and set(current.identifier_field_ids) == set(wanted.identifier_field_ids):
        return current, True
    number = 1 + max(schema.schema_id for schema in target.metadata.schemas)
    return Schema(*wanted.fields, schema_id=number, identifier_field_ids=wanted.identifier_field_ids), False


def _lists_deletes(listed: Listed, unused: bytes) -> bool:
    """Whether the current snapshot has exactly these position deletes."""
    names = [path.rsplit("/", 1)[-1] for path in listed.delete_paths]
    return len(names) == bool(unused) and all(name.startswith(deletes_name(unused)) for name in names)


def _property(snapshot: IcebergSnapshot, name: str) -> str | None:
    """A property of the summary of a snapshot; None if another engine has written the snapshot."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)

"""Publishes the base files of a table as an Iceberg table: only metadata is written, no file is copied.

One publication is one commit of the catalog, so readers see all of it or nothing. The published table shows the rows of
`weft.storage.read.base_files.read_optimized`. The order of the steps makes concurrent publications safe (PROTOCOL.md,
"Published tables", and decision 22 in DECISIONS.md):

1. List the savepoints of the weft table, then load the Iceberg table, then take the snapshot to publish. A publication
   that loaded the Iceberg table after another one had committed has a snapshot that is not older.
2. Make a savepoint of the snapshot, so that cleaning keeps its files.
3. Commit, on condition that the Iceberg table still has the snapshot that was loaded. If nothing has changed, commit
   only if another publication may still commit, so that it fails.
4. Release the savepoints that were listed in step 1 and that the Iceberg table does not need. A publication that made
   one of them loaded the Iceberg table before this commit, so its own commit fails.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.types import BinaryType, NestedField

from weft.storage.core.log.cut import parse_cut
from weft.storage.core.model import FIELD_ID
from weft.storage.core.plan.current_files import CurrentFile
from weft.storage.core.plan.slices import base_slices
from weft.storage.errors import CommitUnknown, Conflict
from weft.storage.files.footers import Footer
from weft.storage.publish.iceberg_buckets import bucket_spec, files_of_one_bucket
from weft.storage.publish.iceberg_catalog import TABLE_ID, catalog_errors, create_table, find_table, has_no_answer
from weft.storage.publish.iceberg_files import (
    data_file,
    deletes_file,
    deletes_name,
    encode_deletes,
    name_of_deletes,
)
from weft.storage.publish.iceberg_names import name_mapping
from weft.storage.publish.iceberg_schema import iceberg_schema, iceberg_type
from weft.storage.publish.iceberg_snapshot import SnapshotFiles, SnapshotWriter
from weft.storage.publish.publication import (
    Published,
    columns_to_publish,
    describe_publication,
    files_to_publish,
    footers_reported,
    kept_by_savepoint,
    release_savepoint,
)
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.history.savepoints import PUBLISHED_AS, SavepointInfo, list_savepoints
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.table import Table

CUT: Final = "weft.cut"
SAVEPOINT: Final = "weft.savepoint"
COMMENT: Final = "comment"
"""Properties of a snapshot of a published table: the cut of the weft table that it shows, its savepoint; a comment."""

_SAVEPOINTS: Final = r"iceberg-[0-9a-f-]{36}-\d+"
PROTECTED: Final = 2
"""Number of newest snapshots of the published table that keep savepoints: the current one, and the previous one, which
readers that planned before the last publication still read."""


def publish_iceberg(
    table: Table, catalog: Catalog, name: str, columns: Sequence[str] | None = None, *, progress: OnStage = unobserved
) -> Published:
    """Publish the base files of a table as an Iceberg table.

    Creates the Iceberg table and its namespace if they do not exist; it is empty until the commit. Publishing the same
    base files again changes nothing. Rows that another engine has written to the Iceberg table are removed from it.

    Args:
        table: The weft table.
        catalog: The catalog of the Iceberg table. Its file system must reach the files of the weft table.
        name: Namespace and name of the Iceberg table, separated by dots.
        columns: Columns to publish, with all key columns; None for all columns of the table.
        progress: Called with the number of files whose footers were read.

    Raises:
        NotFound: The table has no such column, or an object of the Iceberg table is missing.
        InvalidInput: A key column is missing; a column has a nested type; or base files of an older schema have other
            values in a column than the table.
        Conflict: The Iceberg table is not published from this table, or another process changed it at the same time.
        StoreUnavailable: The catalog or its file system does not answer; `StoreRefused` if it refuses access.
        CommitUnknown: The catalog did not say whether it has committed. Publish again.
        CorruptData: A base file is missing, or its footer is damaged.
    """
    state = table.state()
    savepoints = list_savepoints(state)
    with catalog_errors(name):
        target = find_table(catalog, name, state.table_id)
        if target is None:
            names = columns_to_publish(state.schema, columns)
            files_to_publish(state, names)  # creates nothing if the table cannot be published
            target = create_table(catalog, name, iceberg_schema(state.schema, names, 0), state.table_id)
        publication = _Publication(table, catalog, target, table.writable_snapshot(), columns, progress)
        result = publication.run(savepoints)
        publication.release(savepoints)
    return result


class _Publication:
    """One publication: a snapshot of a weft table, and the Iceberg table as it was loaded before."""

    def __init__(
        self,
        table: Table,
        catalog: Catalog,
        target: IcebergTable,
        snapshot: Snapshot,
        columns: Sequence[str] | None,
        progress: OnStage,
    ) -> None:
        self._progress = progress
        self._table, self._catalog, self._target, self._snapshot = table, catalog, target, snapshot
        self._name = ".".join(target.name())
        schema = snapshot.state.schema
        names = columns_to_publish(schema, columns)
        files = files_to_publish(snapshot.state, names)
        self._schema = _with_id(target, iceberg_schema(schema, names, 0))
        self._files = {table.env.store.url(current.file.path): current for current in files}
        self._spec = bucket_spec(schema, self._schema, target.metadata)
        self._buckets = (
            {} if self._spec is None else files_of_one_bucket(base_slices(snapshot.state), schema.bucket_bits)
        )
        self._names = name_mapping(schema)
        self._prefix = f"iceberg-{target.metadata.table_uuid}-"
        self._note = f"{PUBLISHED_AS}{self._name} of catalog {catalog.name} in {target.location()}"

    def run(self, savepoints: Sequence[SavepointInfo]) -> Published:
        """Commit what differs from the current snapshot of the Iceberg table.

        Args:
            savepoints: Savepoints that existed before the Iceberg table was loaded. One that no snapshot needs
                is of a publication that died, or is slow and may still commit. Then this publication commits even if
                nothing differs, so that the other one fails: a restore may have rolled back what it shows.
        """
        current = self._target.current_snapshot()
        snapshot_files = SnapshotFiles.of(self._target.io, current)
        same_urls = frozenset(snapshot_files.paths) & self._files.keys()
        new_urls = [url for url in self._files if url not in same_urls]
        deletes = {url: encode_deletes(url, current) for url, current in self._files.items() if current.unused}
        places = {name_of_deletes(path): path for path in snapshot_files.delete_paths}
        # Position deletes do not apply to files that were added after them.
        same_deletes = {
            url: places[name] for url in same_urls & deletes.keys() if (name := deletes_name(deletes[url])) in places
        }
        new_deletes = {url: content for url, content in deletes.items() if url not in same_deletes}
        is_changed = (
            current is None
            or bool(new_urls)
            or sorted(snapshot_files.paths) != sorted(same_urls)
            or sorted(snapshot_files.delete_paths) != sorted(same_deletes.values())
            or bool(new_deletes)
            or self._schema.schema_id != self._target.metadata.current_schema_id
            # The savepoint was released, or another engine has written the snapshot.
            or _property(current, SAVEPOINT) not in self._snapshot.state.savepoints
            or bool(self._unneeded_savepoints(savepoints))
        )
        if is_changed:
            current = self._add_snapshot(snapshot_files, same_urls | frozenset(same_deletes.values()), new_deletes)
        else:
            self._commit([*self._schema_updates(), *self._property_updates()], None)
        assert current is not None, "a table without a snapshot gets one"
        paths = snapshot_files.paths
        return describe_publication(self._snapshot, self._files, paths, current.snapshot_id, changed=is_changed)

    def release(self, savepoints: Iterable[SavepointInfo]) -> None:
        """Release savepoints of earlier publications that no protected snapshot of the Iceberg table has.

        Includes savepoints of a dropped Iceberg table of the same name and location.

        Args:
            savepoints: Savepoints that existed before the Iceberg table was loaded.
        """
        self._target.refresh()
        for name in self._unneeded_savepoints(savepoints):
            release_savepoint(self._table, name)

    def _unneeded_savepoints(self, savepoints: Iterable[SavepointInfo]) -> list[str]:
        """Names of savepoints of this or a dropped Iceberg table that no protected snapshot has."""
        snapshots = sorted(self._target.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        in_use = {_property(snapshot, SAVEPOINT) for snapshot in snapshots[-PROTECTED:]}
        own_names = (item.name for item in savepoints if item.name.startswith(self._prefix) or item.note == self._note)
        return [name for name in own_names if re.fullmatch(_SAVEPOINTS, name) and name not in in_use]

    def _add_snapshot(
        self, snapshot_files: SnapshotFiles, kept_urls: frozenset[str], new_deletes: Mapping[str, bytes]
    ) -> IcebergSnapshot:
        """Make a savepoint, write a snapshot, and commit it. A failure that is certain leaves nothing behind.

        Args:
            snapshot_files: The files of the current snapshot.
            kept_urls: URLs of data files and delete files of the current snapshot that the new snapshot keeps.
            new_deletes: Content of new delete files by URL of their data file.
        """
        metadata = self._target.metadata
        specs = {spec.spec_id: spec for spec in (*metadata.partition_specs, *self._new_specs())}
        writer = SnapshotWriter(self._target, self._schema, specs, metadata.new_snapshot_id())
        savepoint = f"{self._prefix}{writer.snapshot_id}"
        with kept_by_savepoint(self._table, savepoint, self._snapshot, self._note, writer.remove_written):
            new_snapshot = self._write(writer, snapshot_files, kept_urls, new_deletes, savepoint)
            specs_to_add = [AddPartitionSpecUpdate(spec=spec) for spec in self._new_specs()]
            updates = [*self._schema_updates(), *self._property_updates(), *specs_to_add]
            self._commit([*updates, *_snapshot_updates(new_snapshot)], new_snapshot)
        return new_snapshot

    def _new_specs(self) -> list[PartitionSpec]:
        """The partition specs that the Iceberg table lacks."""
        spec_ids = {spec.spec_id for spec in self._target.metadata.partition_specs}
        return [] if self._spec is None or self._spec.spec_id in spec_ids else [self._spec]

    def _schema_updates(self) -> list[TableUpdate]:
        metadata, number = self._target.metadata, self._schema.schema_id
        updates: list[TableUpdate] = []
        if number != metadata.current_schema_id:
            has_schema = any(has_schema.schema_id == number for has_schema in metadata.schemas)
            updates += [] if has_schema else [AddSchemaUpdate(schema=self._schema)]
            updates.append(SetCurrentSchemaUpdate.model_validate({"schema-id": number if has_schema else -1}))
        # Catalogs may number schemas themselves; snapshots have the number that was free before.
        return [*updates, *self._hidden_columns()]

    def _hidden_columns(self) -> list[TableUpdate]:
        """Add a schema that is never current, with the last hidden column of base files, unless the metadata has it.

        Base files have more columns than the table. Readers such as ClickHouse report a field id above the last one in
        the metadata as damage, and take a smaller one for a column that was dropped.
        """
        metadata = self._target.metadata
        number, hidden = max((int(field.metadata[FIELD_ID]), field) for field in self._snapshot.state.schema.slice)
        if number <= metadata.last_column_id:
            return []
        placeholder = NestedField(number, hidden.name, iceberg_type(hidden.type) or BinaryType(), required=False)
        schema_id = 1 + max(self._schema.schema_id, *(schema.schema_id for schema in metadata.schemas))
        return [AddSchemaUpdate(schema=Schema(*self._schema.fields, placeholder, schema_id=schema_id))]

    def _property_updates(self) -> list[TableUpdate]:
        """Updates of the name mapping and the comment, if they have changed."""
        current_properties, comment = self._target.properties, self._snapshot.state.schema.comment
        properties = {TableProperties.DEFAULT_NAME_MAPPING: self._names, COMMENT: comment or None}
        changes = {
            name: value
            for name, value in properties.items()
            if value is not None and current_properties.get(name) != value
        }
        updates: list[TableUpdate] = [SetPropertiesUpdate(updates=changes)] if changes else []
        if not comment and COMMENT in current_properties:
            updates.append(RemovePropertiesUpdate(removals=[COMMENT]))
        return updates

    def _write(
        self,
        writer: SnapshotWriter,
        snapshot_files: SnapshotFiles,
        kept_urls: frozenset[str],
        new_deletes: Mapping[str, bytes],
        savepoint: str,
    ) -> IcebergSnapshot:
        """Write the new snapshot, see `_add_snapshot`."""
        new_files = [(url, current) for url, current in self._files.items() if url not in kept_urls]
        footers = footers_reported(self._table.env, [current.file for _, current in new_files], self._progress)
        entries = [self._data_file(*file, footer) for file, footer in zip(new_files, footers, strict=True)]
        locations = self._target.location_provider()
        deletes = {
            locations.new_data_location(f"{deletes_name(content)}-{uuid.uuid4()}.parquet"): (url, content)
            for url, content in new_deletes.items()
        }
        writer.create({place: content for place, (_, content) in deletes.items()})
        delete_entries = [
            deletes_file(place, len(content), url, self._files[url]) for place, (url, content) in deletes.items()
        ]
        properties = {TABLE_ID: self._snapshot.state.table_id, CUT: str(self._snapshot.cut), SAVEPOINT: savepoint}
        return writer.write(snapshot_files, kept_urls, entries, delete_entries, properties)

    def _data_file(self, url: str, current: CurrentFile, footer: Footer) -> DataFile:
        bucket = self._buckets.get(current.file.path)
        spec = UNPARTITIONED_PARTITION_SPEC if bucket is None or self._spec is None else self._spec
        return data_file(url, current, footer, self._snapshot.state.schema, self._schema, spec.spec_id, bucket)

    def _commit(self, updates: Sequence[TableUpdate], new_snapshot: IcebergSnapshot | None) -> None:
        """Commit updates, and remove the snapshots that have expired, with their metadata.

        Args:
            updates: The updates.
            new_snapshot: The snapshot that the updates add; None if they add none.

        Raises:
            Conflict: The Iceberg table has changed since it was loaded.
            CommitUnknown: The catalog did not answer, and does not show the commit.
        """
        metadata = self._target.metadata
        current = metadata.current_snapshot_id
        # The replaced current snapshot may have expired too, if an erase has released its savepoint.
        stays = current if new_snapshot is None else new_snapshot.snapshot_id
        expired_snapshots = [old for old in metadata.snapshots if old.snapshot_id != stays and self._has_expired(old)]
        remaining = [snapshot for snapshot in metadata.snapshots if snapshot not in expired_snapshots]
        garbage = self._garbage(expired_snapshots, remaining if new_snapshot is None else [*remaining, new_snapshot])
        if expired_snapshots:
            ids = [snapshot.snapshot_id for snapshot in expired_snapshots]
            updates = [*updates, RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids})]
        if not updates:
            return
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": current}),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": metadata.last_partition_id}),
        )
        try:
            self._catalog.commit_table(self._target, requirements, tuple(updates))
        except CommitFailedException as error:
            raise self._concurrent_change(error) from error
        except ValueError as error:
            # Another publication has removed the same snapshots: no requirement names them.
            if self._catalog.load_table(self._target.name()).metadata_location == self._target.metadata_location:
                raise
            raise self._concurrent_change(error) from error
        except Exception as error:
            if not has_no_answer(error):
                raise
            if new_snapshot is None or not self._has_committed(new_snapshot):
                raise CommitUnknown(
                    f"the catalog did not say whether it committed to {self._name}: {type(error).__name__}: {error}",
                    hint="publish again: what is published already is not published twice",
                ) from error
        for url in garbage:
            with contextlib.suppress(OSError):  # it is missing, or stays as garbage
                self._target.io.delete(url)

    def _concurrent_change(self, error: Exception) -> Conflict:
        return Conflict(f"Iceberg table {self._name} changed during the publication: {error}", hint="publish again")

    def _has_committed(self, new_snapshot: IcebergSnapshot) -> bool:
        """Whether the catalog shows a snapshot after a commit without an answer."""
        try:
            table = self._catalog.load_table(self._target.name())
        except Exception:
            return False
        return table.metadata.snapshot_by_id(new_snapshot.snapshot_id) is not None

    def _garbage(self, expired_snapshots: Sequence[IcebergSnapshot], remaining: Sequence[IcebergSnapshot]) -> set[str]:
        """URLs of metadata and position deletes that only expired snapshots have. Never base files."""
        if not expired_snapshots:
            return set()
        io = self._target.io
        return _metadata_of(io, expired_snapshots) - _metadata_of(io, remaining)

    def _has_expired(self, snapshot: IcebergSnapshot) -> bool:
        """Whether the files of an earlier snapshot may be deleted. True for a snapshot that weft did not write."""
        cut = _property(snapshot, CUT)
        return cut is None or not self._snapshot.state.keeps(parse_cut(cut))


def _snapshot_updates(snapshot: IcebergSnapshot) -> list[TableUpdate]:
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot.snapshot_id}
    return [AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(reference)]


def _metadata_of(io: FileIO, snapshots: Iterable[IcebergSnapshot]) -> set[str]:
    """URLs of the manifest lists, manifests and delete files of snapshots."""
    urls: set[str] = set()
    for snapshot in snapshots:
        urls.add(snapshot.manifest_list)
        with contextlib.suppress(FileNotFoundError):  # an interrupted publication has removed it
            for manifest in snapshot.manifests(io):
                if manifest.content == ManifestContent.DELETES and manifest.manifest_path not in urls:
                    urls.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
                urls.add(manifest.manifest_path)
    return urls


def _with_id(target: IcebergTable, schema: Schema) -> Schema:
    """A schema with the id that it has in the Iceberg table, or the next free id if the table does not have it."""
    same_schemas = [
        candidate
        for candidate in target.metadata.schemas
        if candidate == schema and set(candidate.identifier_field_ids) == set(schema.identifier_field_ids)
    ]
    current = target.metadata.current_schema_id
    if same_schemas:
        return next((candidate for candidate in same_schemas if candidate.schema_id == current), same_schemas[-1])
    number = 1 + max(candidate.schema_id for candidate in target.metadata.schemas)
    return Schema(*schema.fields, schema_id=number, identifier_field_ids=schema.identifier_field_ids)


def _property(snapshot: IcebergSnapshot, name: str) -> str | None:
    """A property of the summary of a snapshot; None if another engine has written the snapshot."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)

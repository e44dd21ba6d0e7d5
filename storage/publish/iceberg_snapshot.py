"""Writes the manifests of one Iceberg snapshot: the files that it has, and the files that it no longer has.

A manifest is reused if the new snapshot keeps all of its files. The new objects are not visible until a catalog commits
them. Source: Iceberg table specification, version 2, "Manifests" and "Snapshots".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

MAX_MANIFESTS: Final = 32
"""Number of data manifests at which they are merged into one for each partition spec. Each publication adds at most one
for each spec."""
MAX_PARALLEL_WRITES: Final = 16


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of delete files. pyiceberg only writes manifests of data files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The manifests and files of the current snapshot of a published table.

    Attributes:
        data: The data manifests, with their live entries.
        deletes: The delete manifests, with their live entries.
    """

    data: Sequence[tuple[ManifestFile, list[ManifestEntry]]]
    deletes: Sequence[tuple[ManifestFile, list[ManifestEntry]]]

    @classmethod
    def of(cls, io: FileIO, snapshot: Snapshot | None) -> SnapshotFiles:
        """Read the manifests of a snapshot; None for a table without snapshots."""
        manifests = [] if snapshot is None else snapshot.manifests(io)
        manifests_read = [(manifest, manifest.fetch_manifest_entry(io, discard_deleted=True)) for manifest in manifests]
        return cls(
            data=[item for item in manifests_read if item[0].content == ManifestContent.DATA],
            deletes=[item for item in manifests_read if item[0].content == ManifestContent.DELETES],
        )

    @property
    def paths(self) -> list[str]:
        """URLs of the data files, in the order of manifests; may contain duplicates."""
        return [entry.data_file.file_path for _, entries in self.data for entry in entries]

    @property
    def delete_paths(self) -> list[str]:
        """URLs of the delete files."""
        return [entry.data_file.file_path for _, entries in self.deletes for entry in entries]


@dataclass
class SnapshotWriter:
    """Writes one snapshot.

    Attributes:
        target: The published table as it was loaded.
        schema: The Iceberg schema of the snapshot.
        specs: The partition specs of its files, by id.
        snapshot_id: Id of the snapshot.
        written_urls: URLs of the written objects, which are garbage if the commit fails.
    """

    target: IcebergTable
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    snapshot_id: int
    written_urls: list[str] = field(default_factory=list)

    def write(
        self,
        snapshot_files: SnapshotFiles,
        kept_urls: frozenset[str],
        new_files: Sequence[DataFile],
        deletes: Sequence[DataFile],
        properties: Mapping[str, str],
    ) -> Snapshot:
        """Write the manifests and their list.

        Args:
            snapshot_files: The files of the current snapshot.
            kept_urls: URLs of data files and delete files of the current snapshot that the new snapshot keeps.
            new_files: New data files.
            deletes: New delete files.
            properties: Properties for the summary of the snapshot.
        """
        merges_all = len(snapshot_files.data) >= MAX_MANIFESTS
        data, old_deletes = snapshot_files.data, [entries for _, entries in snapshot_files.deletes if entries]
        manifests = [manifest for manifest, entries in data if not merges_all and _all_in(entries, kept_urls)]
        rewrites = [item for item in data if item[1] and (merges_all or not _all_in(item[1], kept_urls))]
        rewritten_ids = {manifest.partition_spec_id for manifest, _ in rewrites}
        for spec_id in sorted(rewritten_ids | {file.spec_id for file in new_files}):
            with self._writer(ManifestWriterV2, spec_id) as writer:
                previous = [entries for manifest, entries in rewrites if manifest.partition_spec_id == spec_id]
                _write(writer, previous, kept_urls, [file for file in new_files if file.spec_id == spec_id])
            manifests.append(writer.to_manifest_file())
        new_deletes = bool(deletes) or not all(_all_in(entries, kept_urls) for entries in old_deletes)
        if new_deletes:
            with self._writer(_DeletesWriter, UNPARTITIONED_PARTITION_SPEC.spec_id) as writer:
                _write(writer, old_deletes, kept_urls, deletes)
            manifests.append(writer.to_manifest_file())
        else:
            manifests.extend(manifest for manifest, entries in snapshot_files.deletes if entries)
        metadata = self.target.metadata
        number = metadata.next_sequence_number()
        url = self._place(f"snap-{self.snapshot_id}-0-{uuid.uuid4()}.avro")
        with write_manifest_list(
            2, self.target.io.new_output(url), self.snapshot_id, metadata.current_snapshot_id, number, "deflate"
        ) as manifest_list:
            manifest_list.add_manifests(manifests)
        removed_count = sum(path not in kept_urls for path in snapshot_files.paths)
        counts = {
            "added-data-files": len(new_files),
            "deleted-data-files": removed_count,
            "total-data-files": len(kept_urls.intersection(snapshot_files.paths)) + len(new_files),
            "total-records": _rows(data, kept_urls) + sum(file.record_count for file in new_files),
            "total-delete-files": len(kept_urls.intersection(snapshot_files.delete_paths)) + len(deletes),
            "total-position-deletes": _rows(snapshot_files.deletes, kept_urls)
            + sum(file.record_count for file in deletes),
            "total-equality-deletes": 0,
        }
        summary = Summary(
            Operation.OVERWRITE if removed_count or new_deletes else Operation.APPEND,
            **{name: str(count) for name, count in counts.items()},
            **properties,
        )
        return Snapshot.model_validate(
            {
                "snapshot-id": self.snapshot_id,
                "parent-snapshot-id": metadata.current_snapshot_id,
                "sequence-number": number,
                # The clock of this host may be behind that of the host which published before.
                "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms),
                "manifest-list": url,
                "summary": summary,
                "schema-id": self.schema.schema_id,
            }
        )

    def remove_written(self) -> None:
        """Remove the written objects, after a commit that certainly failed."""
        for url in self.written_urls:
            self.target.io.delete(url)

    def create(self, objects: Mapping[str, bytes]) -> None:
        """Write other objects of the snapshot. ``objects``: content by URL."""
        self.written_urls.extend(objects)
        with ThreadPoolExecutor(MAX_PARALLEL_WRITES, thread_name_prefix="weft-publish") as pool:
            list(pool.map(self._create, objects, objects.values()))

    def _create(self, url: str, content: bytes) -> None:
        with self.target.io.new_output(url).create() as stream:
            stream.write(content)

    def _writer(self, kind: type[ManifestWriterV2], spec_id: int) -> ManifestWriter:
        output = self.target.io.new_output(self._place(f"{uuid.uuid4()}-m0.avro"))
        return kind(self.specs[spec_id], self.schema, output, self.snapshot_id, "deflate")

    def _place(self, name: str) -> str:
        url = self.target.location_provider().new_metadata_location(name)
        self.written_urls.append(url)
        return url


def _all_in(entries: Sequence[ManifestEntry], kept_urls: frozenset[str]) -> bool:
    return bool(entries) and all(entry.data_file.file_path in kept_urls for entry in entries)


def _write(
    writer: ManifestWriter,
    previous: Sequence[Sequence[ManifestEntry]],
    kept_urls: frozenset[str],
    new_files: Sequence[DataFile],
) -> None:
    for entry in (entry for entries in previous for entry in entries):
        if entry.data_file.file_path in kept_urls:
            writer.existing(entry)
        else:
            writer.delete(_without_bounds(entry))
    for file in new_files:
        writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=None, data_file=file))


def _without_bounds(entry: ManifestEntry) -> ManifestEntry:
    """An entry for a removed file, without bounds: its manifest may stay after an erase of the keys in the bounds."""
    file = entry.data_file
    deleted_file = DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )
    deleted_file.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=deleted_file,
    )


def _rows(manifests: Iterable[tuple[ManifestFile, list[ManifestEntry]]], kept_urls: frozenset[str]) -> int:
    files = (entry.data_file for _, entries in manifests for entry in entries)
    return sum(file.record_count for file in files if file.file_path in kept_urls)

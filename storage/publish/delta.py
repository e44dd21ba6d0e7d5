"""Publishes the base files of a table as a Delta table: a log in the folder of the base files, which stay unchanged.

The root of the Delta table is the folder ``base``, because most readers join the paths of files to the root. Other
engines would delete weft's newer files if they vacuumed there. So the table requires a writer feature that no engine
has: engines refuse to write to it and to vacuum it, and still read it (decision 22 in DECISIONS.md).

The order of the steps is that of `weft.storage.publish.iceberg`: list the savepoints, read the log, take a snapshot and
keep it by a savepoint, put the next version of the log if it is absent, release the savepoints that no reader needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from weft.storage.core.names import BASES
from weft.storage.core.plan.current_files import CurrentFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import Conflict, InvalidInput, TableError
from weft.storage.plural import counted
from weft.storage.publish.deletion_vector import inline_deletion_vector
from weft.storage.publish.delta_files import add_action, delta_schema, relative_path
from weft.storage.publish.delta_log import (
    CHECKPOINT_EVERY,
    DOMAIN,
    DeltaState,
    delete_old,
    put_checkpoint,
    put_entry,
    read_log,
)
from weft.storage.publish.publication import (
    Published,
    columns_to_publish,
    describe_publication,
    files_to_publish,
    footers_reported,
    kept_by_savepoint,
    release_unneeded,
)
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.history.savepoints import PUBLISHED_AS
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.table import Table

WRITER_FEATURE: Final = "weftPublished"
"""No engine has it, so all refuse to write and to vacuum."""

_READER_VERSION: Final = 3  # with reader features
_WRITER_VERSION: Final = 7
_DELETION_VECTORS: Final = "deletionVectors"
_WITHOUT_ZONE: Final = "timestampNtz"
_SAVEPOINTS: Final = r"delta-\d{20}-[0-9a-f]{8}"
_LONG: Final = "interval 36500 days"
_CONFIGURATION: Final = {
    # A second guard: for an engine that ignores the writer feature, no file is ever old enough to be deleted.
    "delta.deletedFileRetentionDuration": _LONG,
    "delta.logRetentionDuration": _LONG,
}


def publish_delta(
    table: Table,
    columns: Sequence[str] | None = None,
    *,
    deletion_vectors: bool = True,
    progress: OnStage = unobserved,
) -> Published:
    """Publish the base files of a table as a Delta table, whose root is the folder ``base`` in the table's location.

    Publishing the same base files again changes nothing.

    Args:
        table: The weft table.
        columns: Columns to publish, with all key columns; None for all columns of the table.
        deletion_vectors: Whether deletion vectors may hide the unused rows of shared files. Some readers refuse tables
            that ever had one, and some show the rows. Without them, a state with unused rows cannot be published.
        progress: Called with the number of files whose footers were read.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: A key column is missing; Delta does not allow a name; base files of an older schema have other
            values in a column than the table; or there are unused rows, and deletion vectors are not allowed. The
            previous publication stays.
        Conflict: The log in the folder is not weft's, or another process published at the same time.
        StoreUnavailable: The store does not answer.
        CommitUnknown: The store did not say whether it has published. Publish again.
        CorruptData: The log, or the footer of a base file, is damaged, or an object is missing.
    """
    state = table.state()
    savepoints = list(state.savepoints)
    log = read_log(table.env.store)
    if log.version >= 0 and log.publication.get("table_id") != state.table_id:
        raise Conflict(
            f"the Delta log in folder {BASES} of {table.uri} belongs to another table",
            hint="delete the folder of the log",
        )
    publication = _Publication(table, log, table.writable_snapshot(), columns, progress, deletion_vectors)
    result = publication.run(overtakes=any(_may_still_commit(name, log.version) for name in savepoints))
    in_use = {publication.log.publication.get(name) for name in ("savepoint", "previous")}
    release_unneeded(table, savepoints, _SAVEPOINTS, in_use)
    return result


class _Publication:
    """One publication: a snapshot of a weft table, and the state of the Delta log that was read before."""

    def __init__(
        self,
        table: Table,
        log: DeltaState,
        snapshot: Snapshot,
        columns: Sequence[str] | None,
        progress: OnStage,
        deletion_vectors: bool,  # noqa: FBT001
    ) -> None:
        self._progress, self._deletion_vectors = progress, deletion_vectors
        self._table, self.log, self._snapshot = table, log, snapshot
        self._schema = snapshot.state.schema
        self._columns = columns_to_publish(self._schema, columns)
        files = files_to_publish(snapshot.state, self._columns)
        _check_keys(self._schema, files)
        self._files = {relative_path(current): current for current in files}
        self._deleted = {path: inline_deletion_vector(current.unused) for path, current in self._files.items()}
        if not deletion_vectors:
            self._check_whole_files()

    def _check_whole_files(self) -> None:
        """Check that no file needs a deletion vector.

        Raises:
            InvalidInput: A file has unused rows.
        """
        unused = [vector["cardinality"] for vector in self._deleted.values() if vector is not None]
        if unused:
            raise InvalidInput(
                f"{counted(sum(unused), 'row')} of {counted(len(unused), 'shared base file')} are not current, and "
                "only deletion vectors can hide them",
                hint="allow deletion vectors; or publish again after a compaction that has replaced these files; with "
                "fewer buckets file groups are large and share no files",
            )

    def run(self, *, overtakes: bool) -> Published:
        """Put the next version of the log, unless nothing has changed.

        Args:
            overtakes: Whether another publication may still put that version. Then it is put even if nothing has
                changed, so that the other one fails: a restore may have rolled back what it shows.
        """
        store, published_files = self._table.env.store, self.log.files
        same_paths = {path for path, add_action in published_files.items() if self._is_same(path, add_action)}
        actions = self._changed_actions(same_paths)
        savepoint_is_gone = self.log.publication.get("savepoint") not in self._snapshot.state.savepoints
        is_changed = bool(actions) or overtakes or savepoint_is_gone
        if is_changed:
            old_protocol, self.log = self.log.protocol, self._publish(actions)
            # A reader that does not know a feature must not meet actions that have it, so it begins after them.
            features = set(self.log.protocol.get("readerFeatures", ()))
            dropped_features = set(old_protocol.get("readerFeatures", ())) - features
            later_entries = sum(number > max(self.log.checkpoints, default=-1) for number in self.log.entries)
            if dropped_features or later_entries >= CHECKPOINT_EVERY:
                with contextlib.suppress(TableError):  # it only saves reading: the next publication tries again
                    put_checkpoint(store, self.log)
                    self.log.checkpoints = [*self.log.checkpoints, self.log.version]
                    delete_old(store, self.log)
        return describe_publication(self._snapshot, self._files, published_files, self.log.version, changed=is_changed)

    def _is_same(self, path: str, add_action: Mapping[str, Any]) -> bool:
        return path in self._files and add_action.get("deletionVector") == self._deleted[path]

    def _changed_actions(self, same_paths: set[str]) -> list[dict[str, Any]]:
        """The actions that turn the published state into the new one."""
        now_ms = self._table.env.clock.now_ms()
        actions: list[dict[str, Any]] = []
        protocol = self._protocol()
        if protocol != self.log.protocol:
            actions.append({"protocol": protocol})
        metadata = self._metadata(now_ms)
        if metadata != self.log.metadata:
            actions.append({"metaData": metadata})
        for path, entry in self.log.files.items():
            if path not in same_paths:
                fields = {name: entry[name] for name in ("partitionValues", "size", "deletionVector") if name in entry}
                remove = {"path": path, "deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
                actions.append({"remove": {**remove, **fields}})
        new_files = [current for path, current in self._files.items() if path not in same_paths]
        footers = footers_reported(self._table.env, [current.file for current in new_files], self._progress)
        for current, footer in zip(new_files, footers, strict=True):
            actions.append({"add": add_action(current, footer, self._schema, self._columns, now_ms)})
        return actions

    def _protocol(self) -> dict[str, Any]:
        """The action ``protocol``: features that the files need, and those of earlier versions of the table."""
        reader_features = set(self.log.protocol.get("readerFeatures", ()))
        if not self._deletion_vectors:
            reader_features.discard(_DELETION_VECTORS)
        if any(self._deleted.values()):
            reader_features.add(_DELETION_VECTORS)
        if any(_has_time_without_zone(self._schema.column(name).type) for name in self._columns):
            reader_features.add(_WITHOUT_ZONE)
        reader_entry = {"readerFeatures": sorted(reader_features)} if reader_features else {}
        return {
            "minReaderVersion": _READER_VERSION if reader_features else 1,
            "minWriterVersion": _WRITER_VERSION,
            **reader_entry,
            "writerFeatures": sorted({*reader_features, "domainMetadata", WRITER_FEATURE}),
        }

    def _metadata(self, now_ms: int) -> dict[str, Any]:
        metadata = self.log.metadata
        return {
            "id": metadata.get("id") or str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(delta_schema(self._schema, self._columns), separators=(",", ":")),
            "partitionColumns": [],
            "configuration": dict(_CONFIGURATION),
            "createdTime": metadata.get("createdTime") or now_ms,
            **({"description": self._schema.comment} if self._schema.comment else {}),
        }

    def _publish(self, actions: Sequence[Mapping[str, Any]]) -> DeltaState:
        """Make a savepoint and put the next version; a failure leaves nothing behind.

        Returns:
            The state of the new version.

        Raises:
            Conflict: Another publication was first.
            CommitUnknown: The store did not answer; the savepoint stays until the next publication that succeeds.
        """
        env, version = self._table.env, self.log.version + 1
        savepoint = f"delta-{version:020d}-{env.ids.new()[:8]}"
        publication = {
            "table_id": self._snapshot.state.table_id,
            "cut": str(self._snapshot.cut),
            "savepoint": savepoint,
            "previous": self.log.publication.get("savepoint"),
        }
        domain = {"domain": DOMAIN, "configuration": json.dumps(publication), "removed": False}
        info = {"timestamp": env.clock.now_ms(), "operation": "WEFT PUBLISH", "engineInfo": "weft"}
        version_actions = [{"commitInfo": info}, *actions, {"domainMetadata": domain}]
        with kept_by_savepoint(self._table, savepoint, self._snapshot, f"{PUBLISHED_AS}Delta"):
            if not put_entry(env.store, version, version_actions):
                raise Conflict(
                    f"another publication wrote version {version} of the Delta table in {self._table.uri}",
                    hint="publish again",
                )
        new_state = dataclasses.replace(
            self.log, version=version, files=dict(self.log.files), entries=[*self.log.entries, version]
        )
        new_state.apply(version_actions)
        return new_state


def _may_still_commit(savepoint: str, version: int) -> bool:
    """Whether the publication that made a savepoint may still put its version: it died, or is slow."""
    return re.fullmatch(_SAVEPOINTS, savepoint) is not None and int(savepoint.split("-")[1]) > version


def _check_keys(schema: TableSchema, files: Sequence[CurrentFile]) -> None:
    """Refuse files with narrower types of key columns, because not all readers widen the types of files."""
    names = [name for name in schema.key if any(schema.column(name).changed > current.rev for current in files)]
    if names:
        raise InvalidInput(
            f"some base files have a narrower type of key column {', '.join(names)}, which Delta does not read",
            hint="publish again after all base files were rewritten",
        )


def _has_time_without_zone(arrow_type: pa.DataType) -> bool:
    if pa.types.is_nested(arrow_type):
        return any(_has_time_without_zone(arrow_type.field(number).type) for number in range(arrow_type.num_fields))
    return bool(arrow_type == pa.timestamp("us"))

"""Table: the front door. START HERE.

    Table.create / Table.open
        .writer(stream) -> Writer.append          write/writer.py       one lane, one stream
        .snapshot(as_of) -> Snapshot.to_arrow     read/snapshot.py     one cut, merged on read
        .changes(since) -> pa.RecordBatchReader   read/changes.py      what became of rows between two cuts
        .compact()                                write/cluster_compaction.py   logs into slices
        .add_column(...)                          schema_methods.py its schema, under live writers

Everything a table is stands in its folder; an instance of this class holds only what it has read of it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from storage import mergers
from storage.clock import Clock, Stamps
from storage.config import TableConfig, build_schema, load_config
from storage.core.log.entries import WRITER_FEATURES, Create
from storage.core.log.table_state import TableState
from storage.core.names import TABLE_LANE, lane_name
from storage.core.plan.slices import FileSlice
from storage.core.plan.watermarks import Lateness, Value, Watermarks
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment, open_environment
from storage.errors import Conflict, InvalidInput, TableError
from storage.log.fencing_barrier import complete_fencing_barrier
from storage.log.table_log import TableLog, check_writable
from storage.log.time_marks import Marker, publish_mark
from storage.read.changes import expiring, scan_changes
from storage.read.pruning import KeyRows
from storage.read.snapshot import Snapshot
from storage.read.time_travel import snapshot_at
from storage.schema_methods import EvolvingTable
from storage.services.clean.clean import CleanResult, run_clean
from storage.services.clean.retention_policy import DEFAULT_ABANDON, DEFAULT_RETENTION
from storage.services.compaction import CompactionResult, run_compaction
from storage.services.compaction_task import Execute, one_by_one
from storage.services.fold import FoldResult, run_fold
from storage.services.restore import RestoreResult, close_lane, fence, restore, undo
from storage.services.savepoints import (
    SavepointInfo,
    list_savepoints,
    make_savepoint,
    release_savepoint,
)
from storage.services.verify.findings import Progress, VerifyReport
from storage.services.verify.verify import run_verify
from storage.store.object_store import check_capability
from storage.write.writer import Writer

_stamps: dict[str, Stamps] = {}
_stamps_lock: Final = threading.Lock()


def _stamps_of(uri: str) -> Stamps:
    """One counter per process and table, whoever opens it how often."""
    with _stamps_lock:
        return _stamps.setdefault(uri, Stamps())


class Table(EvolvingTable):
    """One wide table. Cheap to open; safe to use from several threads (a `Writer` is not)."""

    def __init__(self, env: Environment, stamps: Stamps | None = None) -> None:
        """For tests, which bring an environment of their own; others call `open` or `create`.

        Args:
            env: The table's.
            stamps: Those of a process of its own; by default all instances in this process share theirs.
        """
        self._table_log = TableLog(env, stamps if stamps is not None else _stamps_of(env.store.uri))
        self._marker = Marker(self._table_log)

    @classmethod
    def create(
        cls,
        uri: str | Path,
        config: TableConfig | Mapping[str, Any] | str | Path,
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> Table:
        """Create a table from a configuration (mapping, or path of a YAML file).

        Raises:
            InvalidInput: The configuration is wrong; nothing was created.
            Conflict: There is a table already, or what is left of one.
            StoreUnavailable: The store cannot be written, or cannot create exclusively.
        """
        return cls.create_in(open_environment(uri, storage_options, clock), config)

    @classmethod
    def create_in(cls, env: Environment, config: TableConfig | Mapping[str, Any] | str | Path) -> Table:
        """`create`, in an environment of the caller."""
        schema = build_schema(load_config(config))
        mergers.load(schema, env.mergers)
        table = cls(env)
        table_log = table._table_log
        exists = Conflict(f"there is a table at {table_log.store.uri} already", hint="Table.open opens it")
        if table_log.commit_log.entry(TABLE_LANE, 1) is not None:
            raise exists
        if table_log.lacks_first():
            raise Conflict(
                f"at {table_log.store.uri} are entries of a table whose first entry is missing",
                hint="restore it from a copy of the store (weft verify tells what is wrong), or choose another folder",
            )
        check_capability(env.store, env.ids.new)
        create = Create(
            **table_log.header(None),
            table_id=env.ids.new(),
            reader_features=schema.reader_features,
            writer_features=sorted(WRITER_FEATURES),
            table_schema=schema.to_json(),
        )
        if table_log.commit_log.publish(create).commit_id != create.commit_id:
            raise exists
        return table

    @classmethod
    def open(
        cls, uri: str | Path, *, storage_options: Mapping[str, Any] | None = None, clock: Clock | None = None
    ) -> Table:
        """Open a table.

        Raises:
            NotFound: There is none.
            UnsupportedFormat: It needs a newer version.
            CorruptData: An entry of the table lane is missing or damaged; `verify_table` tells what else is.
        """
        table = cls(open_environment(uri, storage_options, clock))
        table.state()
        return table

    @property
    def uri(self) -> str:
        return self._table_log.store.uri

    @property
    def env(self) -> Environment:
        """Store, clock, ids, mergers and sizes of this instance."""
        return self._table_log.env

    @property
    def schema(self) -> TableSchema:
        """Columns, groups and streams as they are now."""
        return self.state().schema

    def state(self) -> TableState:
        """What the table lane says now: schema, lanes, slices."""
        return self._table_log.refresh()

    def writer(
        self,
        stream: str,
        lane: str | None = None,
        *,
        takeover: bool = False,
        owner: str | None = None,
        query_id: str | None = None,
        lateness: Lateness | None = None,
    ) -> Writer:
        """A writer of one stream; entering it claims the lane and fences whoever held it.

        Args:
            stream: A stream of the configuration.
            lane: Its commit log; the stream's own by default. A backfill beside live writing gets its own.
            takeover: Let a new query go on where another query has written.
            owner: Who this is, for messages to those who are fenced; host and process by default.
            query_id: Of the batches to come, if known: checked before anybody is fenced. "" is a new query.
            lateness: By how much at most the first ordering value of an event is smaller than the largest before it:
                a timedelta for dates and times, an integer for integers. Every commit then moves the stream's
                watermark on. Events that are later are stored like any other, and counted.

        Raises:
            NotFound: The table has no such stream (on entering).
            InvalidInput: No group of the stream is ordered by what ``lateness`` is of (on entering).
            Conflict: The lane belongs to another stream, or to another query (on entering).
        """
        table_log = TableLog(self._table_log.env, self._table_log.stamps)
        return Writer(table_log, stream, lane, takeover=takeover, owner=owner, query_id=query_id, lateness=lateness)

    def snapshot(
        self,
        as_of: dt.datetime | str | None = None,
        *,
        complete_through: Value | str | None = None,
        require: Sequence[str] | None = None,
        settled: bool = False,
    ) -> Snapshot:
        """A state of the table: now, at a time (aware datetime), a savepoint, or a cut (text of `Snapshot.cut`).

        Args:
            as_of: Which.
            complete_through: Refuse it if events up to this value may still come: see `Snapshot.check_complete`.
            require: The groups that ``complete_through`` is about; None for all.
            settled: Refuse a time whose answer may still change; see `mark`. Else `Snapshot.settled` tells.

        Raises:
            InvalidInput: ``as_of`` is none of these, or before the table existed.
            NotFound: The table has no such savepoint or cut.
            SnapshotExpired: It is older than what is retained.
            NotSettled: It is a time, no mark was recorded since, and ``settled`` was asked for.
            NotComplete: A stream is not there yet; it is named.
        """
        if require and complete_through is None:
            raise InvalidInput(
                "require without complete_through", hint="rows that have all of some groups: to_arrow(require=...)"
            )
        found = snapshot_at(self._table_log, as_of, settled=settled)
        if complete_through is not None:
            found.check_complete(complete_through, require)
        return found

    def watermarks(self) -> Watermarks:
        """What every stream declares of its events to come, by stream and group, as of now."""
        return self.snapshot().watermarks()

    def get(
        self,
        keys: KeyRows,
        columns: Sequence[str] | None = None,
        *,
        as_of: dt.datetime | str | None = None,
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of some keys; see `Snapshot.get` and `snapshot`."""
        return self.snapshot(as_of).get(keys, columns, require)

    def changes(
        self,
        since: dt.datetime | str | None,
        until: dt.datetime | str | None = None,
        *,
        columns: Sequence[str] | None = None,
        require: Sequence[str] | None = None,
        before: bool = False,
    ) -> pa.RecordBatchReader:
        """Rows that differ between two snapshots, each once: as they are at ``until``, and what became of them.

        Besides columns of the table a row has ``_change`` (insert, update, delete) and ``_changed_groups``, those that
        differ; of an insert those that are there, of a delete those that were. A deleted row shows its key alone.

        Args:
            since: The earlier snapshot, as for `snapshot`; None: every row is an insert.
            until: The later one; the newest by default.
            columns: Of the answer, besides the key. Only what differs in them, or in whether their groups are there,
                is a change.
            require: Groups that a row must have to be in a snapshot: it is an insert once it has them all.
            before: Give ``_before`` too: a struct of the row's values at ``since``, NULL for inserts.

        Raises:
            InvalidInput: ``since`` is not before ``until``, or they are no snapshots.
            NotFound: The table has no such savepoint, cut, column or group.
            OffsetExpired: Cleaning has given one of the snapshots up.
            OffsetInvalidated: The table was restored in between, or a stream undone.
        """
        with expiring():
            earlier = None if since is None else self.snapshot(since)
            later = self.snapshot(until)
        return scan_changes(earlier, later, columns, require, before=before).to_reader()

    def compact(
        self, only: Callable[[FileSlice], bool] = lambda _: True, *, execute: Execute = one_by_one
    ) -> CompactionResult:
        """Fold all logs into new slices. Nobody waits for it, and no answer changes (M3).

        Args:
            only: Which file groups to do.
            execute: Where the work is done; here and one file group at a time by default.

        Raises:
            CorruptData: A file is missing or damaged; the table answers as before.
        """
        self._check_service()
        result = run_compaction(self._table_log, self.snapshot(), only, execute)
        self._mark_if_due()
        return result

    def fold(self) -> FoldResult:
        """Merge the logs that wait into a few files of registers. Nobody waits for it, and no answer changes (M3).

        Reading costs less for it where commits are many and small; compacting stays due as before.

        Raises:
            CorruptData: A file is missing or damaged; the table answers as before.
        """
        self._check_service()
        result = run_fold(self._table_log, self.snapshot())
        self._mark_if_due()
        return result

    def savepoint(self, name: str, as_of: dt.datetime | str | None = None, note: str = "") -> SavepointInfo:
        """Keep a snapshot under a name: cleaning leaves its files, `snapshot` and `restore` take the name.

        Raises:
            InvalidInput, NotFound, SnapshotExpired: See `snapshot`; or the name is none.
            Conflict: There is a savepoint of that name.
        """
        self._check_service()
        return make_savepoint(self._table_log, name, self._settle(as_of).cut, note)

    def release_savepoint(self, name: str) -> None:
        """Let a savepoint go.

        Raises:
            NotFound: There is none of that name.
        """
        self._check_service()
        release_savepoint(self._table_log, name)

    def savepoints(self) -> list[SavepointInfo]:
        """All savepoints, oldest first."""
        return list_savepoints(self.state())

    def restore(self, to: dt.datetime | str) -> RestoreResult:
        """Make the table what it was: at a savepoint, a cut, or a time. Every writer is fenced.

        What came later is rolled back, not deleted: older snapshots that are kept show it. A source may send it again.

        Raises:
            InvalidInput, NotFound, SnapshotExpired: See `snapshot`.
        """
        self._check_service()
        snapshot = self._settle(to)
        return restore(self._table_log, snapshot.state, snapshot.cut, f"restore to {to}")

    def undo(self, stream: str, since: dt.datetime | str) -> RestoreResult:
        """Roll back what one stream has committed since a time, or since a cut or savepoint, which is exact.

        Other streams are not touched, nor their writers. A commit that became visible after a mark at or after the
        time is taken back whatever its writer's clock says; what is left because of a clock alone is told as
        `RestoreResult.in_doubt`.

        Raises:
            InvalidInput: ``since`` has no time zone, or lies before the table.
            NotFound: The table has no such stream, cut or savepoint, or the stream was never written.
            SnapshotExpired: Slices that hold it are all that is retained.
        """
        self._check_service()
        return undo(self._table_log, stream, since)

    def mark(self) -> dt.datetime:
        """Record what is committed now; the newest time that is settled by it: what ``as_of`` gives never changes.

        Writers and services record a mark a minute; so only for times since then one more is needed.

        Raises:
            StoreUnavailable, CommitUnknown: The store refuses, or does not say whether it was recorded.
        """
        self._check_service()
        made = publish_mark(self._table_log)
        assert made is not None, "a mark is made or refused"
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=made.began_at_ms - 1)

    def _settle(self, as_of: dt.datetime | str | None) -> Snapshot:
        """The snapshot on which something is to rest: a time is settled first, if it is not in the future."""
        found = self.snapshot(as_of)
        if not found.settled:
            publish_mark(self._table_log)
            found = self.snapshot(as_of)
        return found

    def close_lane(self, lane: str) -> int:
        """End a lane for ever: its writer is fenced, and readers need not look at it any more. Its last entry.

        Raises:
            NotFound: The table has no such lane.
            Conflict: It is closed already.
        """
        self._check_service()
        return close_lane(self._table_log, lane_name(lane))

    def fence(self, lane: str) -> int:
        """Fence a lane's writer, believed to be dead: if it is only slow, it gets `Fenced`, and nothing is lost.

        Raises:
            NotFound: The table has no such lane.
            Conflict: It is closed.
        """
        self._check_service()
        return fence(self._table_log, lane_name(lane))

    def clean(
        self,
        retain: dt.timedelta = DEFAULT_RETENTION,
        versions: int | None = None,
        *,
        dry_run: bool = False,
        abandon_after: dt.timedelta | None = DEFAULT_ABANDON,
    ) -> CleanResult:
        """Give old snapshots up, and delete the files that nobody needs any more. Nobody waits for it.

        The newest snapshot stays, and savepoints do; so do those that ``retain`` and ``versions`` ask for (both are
        kept), and those that pins and open compactions hold. A dead writer's files are garbage once its lane is
        fenced, or claimed by a new writer. What is given up stays given up: a longer ``retain`` brings nothing back.

        Args:
            retain: Snapshots that were the newest at any time since so long ago stay readable; 0: none but the newest.
            versions: So do those of the last so many compactions.
            dry_run: Say what would be done, and do nothing.
            abandon_after: Compactions that began longer ago than this are taken for dead and given up; None: none is.

        Raises:
            InvalidInput: ``retain``, ``versions`` or ``abandon_after`` is out of range; nothing was done.
            CorruptData: An entry is missing or damaged, so that nobody can say what is needed; nothing was deleted
                for it.
            StoreUnavailable: The store does not list or delete; the next clean goes on.
        """
        if not dry_run:
            self._check_service()
        result = run_clean(self._table_log, retain, versions, abandon_after, dry_run=dry_run)
        if not dry_run:
            self._mark_if_due()
        return result

    def verify(self, *, deep: bool = True, progress: Progress | None = None) -> VerifyReport:
        """Check all that can be seen from storage, and report all that is wrong; nothing is changed.

        Args:
            deep: Read every file that the newest snapshot, savepoints and open compactions need; else look at sizes.
            progress: Called with (objects looked at, objects in all).

        Raises:
            StoreUnavailable: The store does not answer.
        """
        return run_verify(self._table_log, deep=deep, progress=progress)

    def _mark_if_due(self) -> None:
        """Services that come now and then settle what was written before; an idle table gets no entry for it."""
        with contextlib.suppress(TableError):  # the service has done its work
            self._marker.mark_if_due(self.state(), unless_idle=True)

    def _check_service(self) -> None:
        """Every change of a table completes a barrier that somebody began and did not end (L4)."""
        check_writable(self.state(), WRITER_FEATURES)
        complete_fencing_barrier(self._table_log)


def verify_table(
    uri: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    deep: bool = True,
    progress: Progress | None = None,
) -> VerifyReport:
    """`Table.verify` of a table that need not open: damage to the table lane is told with all the rest.

    Raises:
        NotFound: There is no table, nor anything left of one.
        StoreUnavailable: The store does not answer.
    """
    env = open_environment(uri, storage_options)
    return run_verify(TableLog(env, _stamps_of(env.store.uri)), deep=deep, progress=progress)

"""Table: create, open, write, read and maintain a table. Start reading here.

    Table.create, Table.open
        .writer(stream) -> Writer.append          write/writer.py                 commits of one stream to one lane
        .snapshot(as_of) -> Snapshot.to_arrow     read/snapshot.py                rows at one cut, merged on read
        .changes(since) -> pa.RecordBatchReader   read/changes/change_scan.py     rows that differ between two snapshots
        .compact(), .fold(), .clean(), ...        operations/, services/          maintenance, beside live writers
        .alter(...), .add_column(...), ...        alter.py                        schema changes, beside live writers

All state of a table is in its folder. An instance of `Table` caches what it has read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from weft.storage import shown
from weft.storage.alter import (
    AddColumn,
    AddGroup,
    AddReference,
    AddStream,
    Change,
    DropReference,
    Duration,
    Function,
    OnDelete,
    SetComment,
    SetDefault,
    SetIndex,
    SetOverlays,
    SetTtl,
    WidenColumn,
)
from weft.storage.clock import Clock, Stamps, stamps_of
from weft.storage.config.table_config import TableConfig
from weft.storage.core.log.features import writable_features
from weft.storage.core.log.table_state import TableState, check_writable
from weft.storage.core.names import lane_name
from weft.storage.core.plan.due_policy import DuePolicy
from weft.storage.core.plan.watermarks import Lateness, Value, Watermarks
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment, open_environment
from weft.storage.errors import InvalidInput, NotOneMoment, TableError
from weft.storage.log.fencing_barrier import complete_fencing_barrier
from weft.storage.log.table_log import TableLog
from weft.storage.log.time_marks import Marker, publish_mark
from weft.storage.planned_work import expire_in_steps, plan_compaction, plan_fold, plan_split
from weft.storage.read.changes.change_scan import expiring
from weft.storage.read.changes.plan import plan_changes
from weft.storage.read.explain.explanation import Explanation
from weft.storage.read.plan.pruning import KeyRows
from weft.storage.read.referenced_snapshots import ReferencedTables
from weft.storage.read.snapshot import Snapshot
from weft.storage.read.time_travel import snapshot_at
from weft.storage.services.clean.clean import CleanResult, run_clean
from weft.storage.services.clean.retention_policy import DEFAULT_ABANDON, DEFAULT_RETENTION
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.due_work import Only, every_group
from weft.storage.services.erase.erase import EraseResult, erase
from weft.storage.services.expiry import ExpiryResult
from weft.storage.services.fold.fold import FoldResult
from weft.storage.services.history.restore import RestoreResult, close_lane, fence, restore, undo
from weft.storage.services.history.savepoints import SavepointInfo, list_savepoints, make_savepoint, release_savepoint
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.table_html import table_html
from weft.storage.services.location.create_table import create_table
from weft.storage.services.rewrite import (
    RewriteResult,
    new_values,
    rewrite_all,
    without_old_deletes,
    without_old_rows,
)
from weft.storage.services.schema.schema_changes import SchemaChange, alter_schema
from weft.storage.services.split import SplitResult
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.steps.row_change import Function as RowFunction
from weft.storage.services.steps.steps import finish
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.services.verify.findings import VerifyReport
from weft.storage.services.verify.verify import run_verify
from weft.storage.times import milliseconds, moment_of
from weft.storage.write.writer import Writer


class Table:
    """One wide table. Cheap to open. Safe for use from several threads; its writers are not."""

    def __init__(self, env: Environment, stamps: Stamps | None = None) -> None:
        """Use `open` or `create`. Tests pass an environment, and may pass ``stamps`` that no other instance shares."""
        self._table_log = TableLog(env, stamps if stamps is not None else stamps_of(env.store.uri))
        self._marker = Marker(self._table_log)
        self._referenced = ReferencedTables(self._table_log)

    def __repr__(self) -> str:
        return f"Table({self.uri!r})"

    def _repr_html_(self) -> str:
        """What is in the table now, for notebooks; or the error that prevents reading it."""
        try:
            return table_html(Inspection.of(self.snapshot()))
        except TableError as error:
            return shown.facts(repr(self), {"problem": error.message, "what to do": error.hint})

    @classmethod
    def create(
        cls,
        uri: str | Path,
        config: TableConfig | Mapping[str, Any] | str | Path,
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> Table:
        """Create a table.

        Args:
            uri: A local folder, or the URL of an object store. The folder must not hold a table.
            config: The configuration: an object, a mapping, or the path of a YAML file.
            storage_options: Options of the store, for example credentials and an endpoint.
            clock: By default the machine's clock.

        Raises:
            InvalidInput: The configuration or the location is wrong. Nothing was created.
            Conflict: There is already a table, or a part of one.
            StoreUnavailable: The store cannot be written, or cannot create objects exclusively.
        """
        return cls.create_in(open_environment(uri, storage_options, clock), config)

    @classmethod
    def create_in(cls, env: Environment, config: TableConfig | Mapping[str, Any] | str | Path) -> Table:
        """Create a table in an environment; see `create`."""
        table = cls(env)
        create_table(table._table_log, config)
        return table

    @classmethod
    def open(
        cls, uri: str | Path, *, storage_options: Mapping[str, Any] | None = None, clock: Clock | None = None
    ) -> Table:
        """Open a table. Arguments as in `create`.

        Raises:
            NotFound: There is no table.
            UnsupportedFormat: A newer version of weft is needed to read it.
            CorruptData: An entry of the table lane is missing or damaged; `verify_table` shows what else is.
            StoreUnavailable: The store does not answer.
        """
        table = cls(open_environment(uri, storage_options, clock))
        table.state()
        return table

    @property
    def uri(self) -> str:
        """Location of the table."""
        return self._table_log.store.uri

    @property
    def env(self) -> Environment:
        """Store, clock, ids, mergers and sizes that this instance uses."""
        return self._table_log.env

    @property
    def schema(self) -> TableSchema:
        """The newest schema: columns, groups and streams."""
        return self.state().schema

    def state(self) -> TableState:
        """The current table state: schema, lanes, slices, savepoints."""
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
        """A writer of one stream. Entering it claims the lane, and fences the writer that held the claim before.

        Args:
            stream: A stream of the configuration.
            lane: The commit log to write to, by default the one with the stream's name. A backfill that runs beside a
                live writer needs a separate lane.
            takeover: Allow a query to continue a lane of another query.
            owner: Name of this process in messages to writers that it fences; by default host and process id.
            query_id: Query id of the batches that will be written, checked before another writer is fenced; "" for a
                new query.
            lateness: How much smaller than the largest one so far the first ordering value of an event may be: a
                timedelta for dates and times, an integer for integers. With it every commit advances the stream's
                watermark. Events that are later are stored like all others, and counted.

        Returns:
            The writer, to be used in a ``with`` block.

        Raises:
            NotFound: On entering: the table has no such stream.
            InvalidInput: On entering: no group of the stream has an ordering column of the type of ``lateness``.
            Conflict: On entering: the lane belongs to another stream or query, or is closed.
        """
        table_log = self._table_log.with_own_cache()
        return Writer(table_log, stream, lane, takeover=takeover, owner=owner, query_id=query_id, lateness=lateness)

    def batch_writer(self, stream: str, *, owner: str | None = None, lateness: Lateness | None = None) -> Writer:
        """A writer of one commit, which runs beside all other writers: it fences none of them.

        It uses one of the stream's lanes for batches, which other batches use before and after it, so the table does
        not grow with the number of batches. When the block ends, the lane no longer holds back the watermark. There is
        no query id, so a batch that is repeated is appended twice; after `CommitUnknown` the timeline shows whether it
        exists.

        Args:
            stream: A stream of the configuration.
            owner: As for `writer`.
            lateness: As for `writer`. The promises of earlier batches in the lane do not count.

        Returns:
            The writer, to be used in a ``with`` block for one commit without a batch number.

        Raises:
            NotFound, InvalidInput: On entering: as for `writer`.
        """
        table_log = self._table_log.with_own_cache()
        return Writer(
            table_log, stream, None, takeover=False, owner=owner, query_id=None, lateness=lateness, one_batch=True
        )

    def snapshot(
        self,
        as_of: dt.datetime | str | None = None,
        *,
        complete_through: Value | str | None = None,
        complete_groups: Sequence[str] | None = None,
        settled: bool = False,
        moment: bool = False,
        references: bool = True,
    ) -> Snapshot:
        """The table at one cut, and the tables that it refers to.

        Args:
            as_of: A time (with a time zone), the name of a savepoint, or a cut (text of `Snapshot.cut`); None for now.
            complete_through: Refuse the snapshot if events up to this value may still arrive: see
                `Snapshot.check_complete`.
            complete_groups: Groups that ``complete_through`` applies to; None for all.
            settled: Refuse a time whose snapshot may still change; see `mark`. By default it is allowed, and
                `Snapshot.settled` is false.
            moment: Return the table at one moment, also if many lanes commit at the same time. The newest snapshot may
                then lack commits since the newest entry of the table lane, which are those of the last minute; call
                `mark` first to have all up to now. `Snapshot.is_moment` is true, with references only if none of the
                tables has changed while they were read. For a time it is the moment of the newest entry of the table
                lane up to the time, whatever the clocks of writers say; it may lack commits of the minute before.
            references: Whether the snapshot has the columns of references; without them no other table is looked at.

        Raises:
            InvalidInput: ``as_of`` has none of these forms, or is a time before the table was created.
            NotFound: The table has no such savepoint or cut.
            SnapshotExpired: The snapshot is older than cleaning retains.
            NotSettled: ``settled`` is set, and no mark was recorded after the time.
            NotComplete: Events of a stream may still arrive; the message names it.
            NotOneMoment: ``moment`` is set, and an earlier version of weft commits at the same time.
        """
        if moment and isinstance(as_of, str):
            raise InvalidInput(
                f"moment: not possible with as_of {as_of!r}",
                hint="leave moment out: it is for the newest snapshot and for times, and a savepoint or a cut is fixed",
            )
        if complete_groups and complete_through is None:
            raise InvalidInput(
                "complete_groups: needs complete_through",
                hint="give complete_through; to select rows by their groups, use to_arrow(require=...)",
            )
        take = self._referenced.snapshot if references else functools.partial(snapshot_at, self._table_log)
        snapshot = take(as_of, settled=settled, moment=moment)
        if complete_through is not None:
            snapshot.check_complete(complete_through, complete_groups)
        return snapshot

    def watermarks(self) -> Watermarks:
        """The watermarks of every stream and group now."""
        return snapshot_at(self._table_log, None).watermarks()

    def get(
        self,
        keys: KeyRows,
        columns: Sequence[str] | None = None,
        *,
        as_of: dt.datetime | str | None = None,
        require: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows with these keys, in no particular order; see `Snapshot.get` and `snapshot`."""
        return self.snapshot(as_of).get(keys, columns, require)

    def explain_row(self, key: Any, *, as_of: dt.datetime | str | None = None, history: bool = False) -> Explanation:
        """Why the row of a key is as it is; see `Snapshot.explain` and `snapshot`."""
        return self.snapshot(as_of).explain(key, history=history)

    def changes(
        self,
        since: dt.datetime | str | None,
        until: dt.datetime | str | None = None,
        *,
        columns: Sequence[str] | None = None,
        require: Sequence[str] | None = None,
        before: bool = False,
    ) -> pa.RecordBatchReader:
        """Rows that differ between two snapshots, each once, as they are in the later one; in no particular order.

        Args:
            since: The earlier snapshot, as in `snapshot`; None for an empty table, so that every row is an insert.
            until: The later snapshot; the newest by default.
            columns: Columns of the result besides the key; None for all. A row differs if one of these does, or if one
                of their groups is present in one snapshot only. A reference counts like a group.
            require: Groups that a row must have to be in a snapshot.
            before: Also return ``_before``: a struct of the row's values at ``since``, NULL for inserts.

        Returns:
            Columns of the table, ``_change`` (``insert``, ``update`` or ``delete``) and ``_changed_groups`` (list of
            strings: the groups that differ; of an insert those in the later snapshot, of a delete those in the earlier
            one). A deleted row has NULL in all columns but the key.

        Raises:
            InvalidInput: ``since`` is not before ``until``, or one of them is not a time, savepoint or cut.
            NotFound: The table has no such savepoint, cut, column or group.
            OffsetExpired: One of the snapshots is older than what is retained.
            OffsetInvalidated: The table was restored in between, or a stream undone.
        """
        with expiring():
            earlier = None if since is None else self.snapshot(since)
            later = self.snapshot(until)
        return plan_changes(earlier, later, columns, require, before=before).to_reader()

    def compact(
        self,
        only: Only = every_group,
        *,
        policy: DuePolicy | None = None,
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> CompactionResult:
        """Merge log files into new slices. Writers and readers continue, and no result changes.

        Args:
            only: Which file groups to compact.
            policy: Compact only those of them that are due for compaction.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work.

        Raises:
            CorruptData: A file is missing or damaged; the table is unchanged.
            SnapshotExpired: Cleaning has aborted the compaction as abandoned.
        """
        return plan_compaction(self, policy, execute, only=only).finish("compacting", progress)

    def fold(
        self, *, policy: DuePolicy | None = None, execute: Execute = one_by_one, progress: OnStage = unobserved
    ) -> FoldResult:
        """Merge log files that are not in slices into a few files of merge states. No result changes.

        Cheaper than `compact`, and makes reads faster if commits are many and small. File groups stay due for
        compaction as before.

        Args:
            policy: Do nothing unless file groups are due for a fold.
            execute: Runs the tasks; by default in this process, one new file at a time.
            progress: Called during the work.

        Raises:
            CorruptData: A file is missing or damaged; the table is unchanged.
            SnapshotExpired: Cleaning has aborted the fold as abandoned.
        """
        return plan_fold(self, policy, execute=execute).finish("folding", progress)

    def split(self, buckets: int, *, execute: Execute = one_by_one, progress: OnStage = unobserved) -> SplitResult:
        """Change the number of buckets, and rewrite all file groups that have another number.

        Writers, readers and all services continue. File groups are published independently: after an
        error or a kill call it again with the same number, or let compactions continue the split.

        Args:
            buckets: The number of buckets, a power of two.
            execute: Runs the tasks; by default in this process, one after the other.
            progress: Called during the work.

        Raises:
            InvalidInput: ``buckets`` is not a power of two in the range of a table. Nothing was changed.
            Conflict: Other services published first in every attempt; the number of buckets is changed.
            CorruptData: A file is missing or damaged.
            SnapshotExpired: Cleaning has aborted the compaction as abandoned.
        """
        return plan_split(self, buckets, execute).finish("splitting", progress)

    def savepoint(self, name: str, as_of: dt.datetime | str | None = None, note: str = "") -> SavepointInfo:
        """Give a snapshot a name. It does not expire until the savepoint is released.

        Raises:
            InvalidInput, NotFound, SnapshotExpired: See `snapshot`; also if the name is not allowed.
            Conflict: There is already a savepoint of that name.
            NotOneMoment: It is of now, and an earlier version of weft commits at the same time; the message names the
                lanes.
        """
        return make_savepoint(self.writable(), name, self._settle(as_of), note)

    def savepoints(self) -> list[SavepointInfo]:
        """All savepoints, oldest first."""
        return list_savepoints(self.state())

    def release_savepoint(self, name: str) -> None:
        """Release a savepoint; cleaning may delete its files from then on.

        The savepoints of referenced tables that were made for it are released, too.

        Raises:
            NotFound: There is no savepoint of that name.
        """
        release_savepoint(self.writable(), name)

    def restore(self, to: dt.datetime | str) -> RestoreResult:
        """Restore the table to a savepoint, a cut or a time. Fences all writers. Referenced tables are not restored.

        Later commits are rolled back, not deleted: snapshots from before the restore show them until they expire. A
        source may send them again.

        Raises:
            InvalidInput, NotFound, SnapshotExpired: See `snapshot`.
        """
        table_log = self.writable()
        snapshot = self._settle(to, references=False)
        return restore(table_log, snapshot.state, snapshot.at, f"restore to {to}")

    def undo(self, stream: str, since: dt.datetime | str) -> RestoreResult:
        """Roll back what one stream has committed since a time, a cut or a savepoint; other streams are not affected.

        Raises:
            InvalidInput: ``since`` is a time without a zone, or neither a time nor a cut nor a savepoint.
            SnapshotExpired: Slices contain commits that have to be undone, and the slices before these have expired.
            NotFound: The table has no such stream, no lane of it, or no such cut or savepoint.
            Conflict: Other restores won every race.
        """
        return undo(self.writable(), stream, since)

    def mark(self) -> dt.datetime:
        """Record what is committed now, so that all times up to now are settled: their snapshots never change.

        Writers and services record a mark once a minute anyway.

        Returns:
            The newest time that is settled by the mark, in UTC.

        Raises:
            StoreUnavailable, CommitUnknown: The store refuses access, or does not say whether the mark was recorded.
        """
        return moment_of(publish_mark(self.writable()).began_at_ms - 1)

    def _settle(self, as_of: dt.datetime | str | None, *, references: bool = True) -> Snapshot:
        """A snapshot to restore or to keep: its time is settled first, unless it is in the future.

        The newest snapshot is the table at one moment (R7). If lanes commit meanwhile, that is the moment of a mark.
        """
        snapshot = self.snapshot(as_of, references=references)
        is_newest = as_of is None
        if not snapshot.settled or (is_newest and not snapshot.table_is_moment):
            publish_mark(self._table_log)
            snapshot = self.snapshot(as_of, references=references, moment=is_newest)
        return snapshot

    def close_lane(self, lane: str) -> int:
        """Close a lane permanently; returns its last entry. Fences its writer; readers look for no new entries.

        Raises:
            NotFound: The table has no such lane.
            Conflict: The lane is already closed.
        """
        return close_lane(self.writable(), lane_name(lane))

    def fence(self, lane: str) -> int:
        """Fence the writer of a lane that seems to be dead; returns the entry that fences it.

        A writer that was only slow gets `Fenced`; its commits remain. The lane of a batch (`batch_writer`) is finished
        by it, and used by later batches.

        Raises:
            NotFound: The table has no such lane.
            Conflict: The lane is closed.
        """
        return fence(self.writable(), lane_name(lane))

    def clean(
        self,
        retain: dt.timedelta = DEFAULT_RETENTION,
        versions: int | None = None,
        *,
        dry_run: bool = False,
        abandon_after: dt.timedelta | None = DEFAULT_ABANDON,
        close_after: dt.timedelta | None = None,
        progress: OnStage = unobserved,
    ) -> CleanResult:
        """Expire old snapshots, and delete the files that no retained snapshot needs. Writers and readers continue.

        The newest snapshot, savepoints, pinned snapshots and those of open compactions never expire. Files of a dead
        writer are deleted once its lane was fenced or claimed again. An expired snapshot does not come back with a
        longer ``retain``. Closed lanes leave the table once all these snapshots have their rows in compacted files;
        their names stay taken.

        Args:
            retain: Keep the snapshots that were the newest at any time in the last ``retain``; 0 keeps the newest only.
            versions: Also keep the snapshots of this many last compactions.
            dry_run: Report what would be done, and do nothing.
            abandon_after: Abort compactions that began longer ago than this; None aborts none.
            close_after: Close the lanes of query ids (`weft.write_batch` with ``batch``) that have written nothing
                for this long; None closes none. Their batches are refused from then on, and never written again.
            progress: Called during the work.

        Raises:
            InvalidInput: An argument is out of range. Nothing was done.
            CorruptData: An entry is missing or damaged, so the files that it needs are unknown. None of them was
                deleted.
            StoreUnavailable: The store did not list or delete objects; the next clean continues.
        """
        table_log = self._table_log if dry_run else self.writable()
        result = run_clean(
            table_log, retain, versions, abandon_after, close_after=close_after, dry_run=dry_run, progress=progress
        )
        if not dry_run:
            self.mark_if_due()
        return result

    def verify(
        self, *, deep: bool = True, progress: OnStage = unobserved, execute: Execute | None = None
    ) -> VerifyReport:
        """Check everything that can be checked from storage, and report all problems. Changes nothing.

        Args:
            deep: Read the files that the newest snapshot, savepoints and open compactions need; otherwise only check
                that they exist with their size.
            progress: Called during the work.
            execute: Where files are read; None for in this process, one at a time.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        return run_verify(self._table_log, deep=deep, progress=progress, execute=execute)

    def erase(
        self,
        keys: KeyRows,
        *,
        expire_snapshots: bool = False,
        release_savepoints: bool = False,
        note: str = "",
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> EraseResult:
        """Remove keys physically: all events that were committed before the call, wherever they are stored.

        Writers and readers of the newest snapshot continue. What is committed after the call is new data. What is
        committed meanwhile is erased up to the cut in the result. Events of the keys that arrive later are new data,
        too, also if their ordering values are older. Run it again if it was interrupted: the result is the same.

        Args:
            keys: Values of the key column; tuples if the key has several columns; or a table or batch with key columns.
            expire_snapshots: Expire all snapshots but the newest, and remove pins, if they need files with the keys.
            release_savepoints: Release the savepoints that need files with the keys.
            note: A text that the log records; it must not contain the keys.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work.

        Raises:
            InvalidInput: A key has another type or number of columns than the table's key, or contains null.
            StillRetained: Snapshots, pins or savepoints need files with the keys, and the caller keeps them. Nothing
                was changed.
            Conflict: Other services published first in every attempt.
            CorruptData: A file or an entry is missing or damaged.
            StoreUnavailable: The store does not answer; the next erase continues.
        """
        return erase(
            self.writable(),
            keys,
            expire_snapshots=expire_snapshots,
            release_savepoints=release_savepoints,
            note=note,
            execute=execute,
            progress=progress,
        )

    def rewrite(
        self,
        column: str,
        function: RowFunction,
        *,
        note: str = "",
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> RewriteResult:
        """Replace the values of a column by those of a function, in all rows that were committed before the call.

        Versions stay as they are: a later event wins if it would have won without the rewrite. What is committed after
        the cut in the result has its own values. Earlier snapshots show the old values until they expire; a restore to
        one brings them back. All file groups are rewritten at once, or none: after an error nothing has changed.

        Args:
            column: A value column of a group that is merged by `latest` or `latest_non_null`.
            function: Gets the values that are not NULL as an array, and returns as many new ones; NULLs stay.
            note: A text that the log records.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work with the stored bytes that were read.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The column is in the key, orders events or is aggregated, or see `NewValues.apply`.
            Conflict: Other services published first in every attempt.
            CorruptData: A file is missing or damaged.
        """
        request = functools.partial(new_values, column=column, function=function)
        return rewrite_all(self.writable(), request, note, execute, progress)

    def forget_deletes(
        self,
        group: str,
        before: object,
        *,
        note: str = "",
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> RewriteResult:
        """Forget the deletes of a group with a smaller first ordering value, for keys that have no other data.

        Only for a table to which no older event of the group will come: a later event that is older than a forgotten
        delete would bring its row back. A row that is hidden keeps its delete as long as another group of it has
        values, because a newer event of the deleting group would show them again.

        Args:
            group: A group with ordering columns that is merged by `latest` or `latest_non_null`.
            before: A value of the type of the group's first ordering column. The log records it.
            note: A text that the log records.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work with the stored bytes that were read.

        Raises:
            NotFound: The table has no such group.
            InvalidInput: The group has no ordering columns or no deletes, or ``before`` is not of their type.
            Conflict: Other services published first in every attempt.
            CorruptData: A file is missing or damaged.
        """
        request = functools.partial(without_old_deletes, group=group, before=before)
        return rewrite_all(self.writable(), request, note, execute, progress)

    def expire_rows(
        self,
        column: str,
        before: object,
        *,
        note: str = "",
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> RewriteResult:
        """Remove the visible rows in which a column has a smaller value, such as a time before a limit.

        All groups of such a row are forgotten, with their deletes: later events of its key are new data. Rows that are
        hidden by a delete stay as they are, and so do rows in which the group of the column is absent or the value is
        NULL.

        Args:
            column: A column of a group that is merged by `latest` or `latest_non_null`; it may order events.
            before: A value of the type of the column. The log records it: no clock decides.
            note: A text that the log records.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work with the stored bytes that were read.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The column is in the key, or aggregated, or has a nested type; or ``before`` is not of its
                type.
            Conflict: Other services published first in every attempt.
            CorruptData: A file is missing or damaged.
        """
        request = functools.partial(without_old_rows, column=column, before=before)
        return rewrite_all(self.writable(), request, note, execute, progress)

    def apply_ttl(
        self,
        now: dt.datetime | None = None,
        *,
        execute: Execute = one_by_one,
        progress: OnStage = unobserved,
    ) -> ExpiryResult:
        """Remove rows and deletes that are older than the table's time to live. Writers and readers continue.

        A file group is rewritten once it has a row or delete that is overdue: older than the time to live plus
        ``within``. All that is older than the time to live is removed from it then. Earlier snapshots show the rows
        until cleaning expires them.

        Args:
            now: The time to compute ages from, with a time zone; by default that of this machine's clock.
            execute: Runs the tasks; by default in this process, one file group at a time.
            progress: Called during the work.

        Raises:
            InvalidInput: The table has no time to live, or ``now`` has no time zone.
            CorruptData: A file is missing or damaged. What was published remains.
        """
        now_ms = None if now is None else milliseconds(now)
        if self.state().schema.ttl is None:
            raise InvalidInput("the table has no time to live", hint="set_ttl (weft alter set-ttl) sets it")
        return finish(expire_in_steps(self, execute, now_ms=now_ms, progress=progress))

    def alter(self, *changes: Change | Mapping[str, Any]) -> SchemaChange:
        """Change the schema, as one entry of the log: all changes take effect, or none. Writers and readers continue.

        The changes are applied in order, to the newest schema. Each change is checked with the whole configuration.
        A change that the table has already has no effect.

        Args:
            changes: Models of `weft.storage.alter`, or mappings with their fields and ``kind``, such as
                ``{"kind": "add_column", "group": "payment", "name": "tip", "type": "double"}``.

        Raises:
            NotFound, InvalidInput, Conflict: See the method of each change, such as `add_column`. Nothing was changed.
        """
        return alter_schema(self.writable(), changes)

    def add_column(
        self,
        group: str,
        name: str,
        type: str,  # noqa: A002 - its name in the configuration
        *,
        default: object = None,
        function: Function = None,
        comment: str = "",
    ) -> SchemaChange:
        """Add a column to a group; it is the last one of the table. Writers may continue without it, which means NULL.

        Args:
            group: A group of the table.
            name: Name of the column.
            type: Spark SQL type name.
            default: Value shown where the group is absent; None for NULL. Events from before the column was added show
                NULL.
            function: For a column of an aggregate group, as in the configuration.
            comment: What the column means; empty for none.

        Raises:
            NotFound: The table has no such group.
            InvalidInput: The changed configuration is wrong, or the group has a custom merger.
            Conflict: There is another column of that name. It is not an error if the table has the same column.
        """
        return self.alter(
            AddColumn(group=group, name=name, type=type, default=default, function=function, comment=comment)
        )

    def add_group(
        self,
        name: str,
        columns: Mapping[str, str | Mapping[str, Any]],
        *,
        ordering: Sequence[str] = (),
        merge: str = "latest",
        functions: Mapping[str, Any] | None = None,
        streams: Sequence[str] = (),
        new_streams: Mapping[str, OnDelete] | None = None,
        state: Mapping[str, str] | None = None,
    ) -> SchemaChange:
        """Add a group of new columns, and name the streams that write it: at least one.

        Args:
            name: Name of the group.
            columns: Column name to type name, or to ``{"type": ..., "default": ..., "comment": ...}``.
            ordering: The columns that order its events.
            merge: Merge mode of the group.
            functions: Functions of an aggregate group, by column.
            streams: Existing streams that write the group from now on; their batches may leave it out.
            new_streams: New streams that write this group only: name to what their deletes mean (``group``, ``row`` or
                ``ignore``).
            state: State columns of a custom merger: name to type name.

        Raises:
            NotFound: The table has no such stream.
            InvalidInput: The changed configuration is wrong.
            Conflict: There is another group, column or stream of that name. It is not an error if the table has the
                same group.
        """
        return self.alter(
            AddGroup(
                name=name,
                columns=columns,
                ordering=ordering,
                merge=merge,
                functions=functions,
                streams=streams,
                new_streams=new_streams,
                state=state,
            )
        )

    def add_stream(self, name: str, groups: Sequence[str], *, on_delete: OnDelete = "group") -> SchemaChange:
        """Add a stream that writes existing groups.

        Args:
            name: Name of the stream.
            groups: Groups of the table.
            on_delete: What deletes of the stream remove: ``group``, ``row``, or nothing (``ignore``).

        Raises:
            InvalidInput: The changed configuration is wrong: no such group, or delete policies that contradict each
                other.
            Conflict: There is another stream of that name. It is not an error if the table has the same stream.
        """
        return self.alter(AddStream(name=name, groups=groups, on_delete=on_delete))

    def widen_column(self, name: str, type: str) -> SchemaChange:  # noqa: A002 - its name in the configuration
        """Give a column a wider type: a larger integer, double for float, a decimal with more digits before the point.

        Args:
            name: A column of the table.
            type: Spark SQL type name.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The type is unknown, does not contain all values of the column, or a custom merger reads the
                column.
        """
        return self.alter(WidenColumn(name=name, type=type))

    def set_default(self, name: str, value: object = None) -> SchemaChange:
        """Set the value that a column shows where its group is absent, in existing rows too.

        Args:
            name: A column of the table.
            value: The value; None for NULL.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The column takes no default, or the value is not of its type.
        """
        return self.alter(SetDefault(name=name, value=value))

    def set_comment(self, comment: str, column: str | None = None) -> SchemaChange:
        """Set the comment of the table or of a column. It says something to people, and changes no read and no file.

        Args:
            comment: The text; empty to remove the comment.
            column: A column of the table; None for the table.

        Raises:
            NotFound: The table has no such column.
            InvalidInput: The comment is not a string.
        """
        return self.alter(SetComment(comment=comment, column=column))

    def set_ttl(
        self,
        *,
        rows: Duration = None,
        by: str | None = None,
        unit: str | None = None,
        deletes: Duration = None,
        within: Duration = None,
    ) -> SchemaChange:
        """Set how long rows and deletes are kept, instead of the setting before; without arguments for ever.

        The service `ttl` of a pipeline, `weft services` and `Table.apply_ttl` remove what is older.

        Args:
            rows: Age at which a row expires, as a timedelta or a text such as ``90 days``; None: never.
            by: Column that says how old a row is: a date, a timestamp or an integer. A row without a value in it, and
                every row if this is None, is as old as its last event.
            unit: Unit of an integer column: ``seconds``, ``milliseconds`` or ``microseconds`` since 1970.
            deletes: How long a delete stays known after its commit; None: as long as ``rows``. An older event that
                comes later is new data.
            within: Older rows and deletes are removed within this time; None: a tenth of the shorter time above. A
                longer time costs fewer rewritten files.

        Raises:
            InvalidInput: A duration cannot be read, the column does not exist or is not a time, or the arguments
                contradict each other. Nothing was changed.
        """
        return self.alter(SetTtl(rows=rows, by=by, unit=unit, deletes=deletes, within=within))

    def set_overlays(self, on: bool) -> SchemaChange:  # noqa: FBT001 - the value of a setting
        """Allow compactions to write overlays; if not, the next ones end those that exist (PROTOCOL.md, "Overlays").

        Args:
            on: Whether compactions may write overlays.

        Raises:
            InvalidInput: The value is not a boolean.
        """
        return self.alter(SetOverlays(on=on))

    def set_index(self, columns: Sequence[str]) -> SchemaChange:
        """Set the columns for which compactions write Bloom filters, instead of those before.

        A read with ``column = value``, or with a few values, then skips row groups that do not have them. Base files
        get filters when they are written next.

        Args:
            columns: Names of columns: integers, strings, binaries or dates; none for no filters.

        Raises:
            InvalidInput: A column does not exist, or cannot be indexed. Nothing was changed.
        """
        return self.alter(SetIndex(columns=list(columns)))

    def add_reference(
        self,
        name: str,
        table: str,
        on: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        prefix: str | None = None,
    ) -> SchemaChange:
        """Add a reference to another table, whose columns are then shown beside those of this table.

        Args:
            name: Name of the reference.
            table: Location of the other table; a relative path starts at the location of this table.
            on: Columns of this table that hold the key of the other one, in the order of that key.
            columns: Columns of the other table to show; None for all outside its key that it has now.
            prefix: Put before their names; by default the name of the reference and an underscore.

        Raises:
            NotFound: There is no such table or column.
            InvalidInput: The foreign key does not fit the key of the other table, or names clash.
            Conflict: There is another reference of that name. It is not an error if the table has the same reference.
        """
        return self.alter(AddReference(name=name, table=table, on=on, columns=columns, prefix=prefix))

    def drop_reference(self, name: str) -> SchemaChange:
        """Drop a reference. The other table is not changed, and older snapshots keep the columns.

        Raises:
            NotFound: The table has no such reference.
        """
        return self.alter(DropReference(name=name))

    def writable(self) -> TableLog:
        """Check that this version may write to the table, and complete a restore in progress (L4); returns the log."""
        check_writable(self.state(), writable_features())
        complete_fencing_barrier(self._table_log)
        return self._table_log

    def writable_snapshot(self, *, moment: bool = False) -> Snapshot:
        """A head snapshot for work that publishes entries, see `writable`; it needs no more requests than others.

        Args:
            moment: Take one moment, as `snapshot` does, unless an earlier version of weft commits at the same time.

        Raises:
            UnsupportedFormat: This version cannot write to the table.
        """
        snapshot = self._head(moment=moment)
        check_writable(snapshot.state, writable_features())
        if snapshot.state.intent is None:
            return snapshot
        complete_fencing_barrier(self._table_log)
        return self._head(moment=moment)

    def _head(self, *, moment: bool) -> Snapshot:
        with contextlib.suppress(NotOneMoment):
            return snapshot_at(self._table_log, None, moment=moment)
        return snapshot_at(self._table_log, None)

    def mark_if_due(self, state: TableState | None = None) -> None:
        """Record a mark after a service has done its work; a failure is suppressed. An idle table gets no marks.

        Args:
            state: A state that was just read; None reads the newest.
        """
        with contextlib.suppress(TableError):
            self._marker.mark_if_due(self.state() if state is None else state, unless_idle=True)

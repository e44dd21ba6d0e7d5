"""Writer: commits rows of one stream to one lane.

Entering a writer claims the lane, which fences the previous writer (PROTOCOL.md, W1 to W4). Either all rows of a batch
are committed or none, and a batch that is sent again is not committed twice (S3 EpochMonotone, S4 AckedDurable, S6
BatchExactlyOnce). Writers of different lanes neither wait for each other nor compete (L1 NonBlocking).

A writer of one batch takes a lane that no writer is in, and finishes it with its commit (W10), so that the number of
lanes does not grow with batches. `Writer.finish` finishes the lane of any other writer that has written everything.

A commit has three steps, so that an engine such as Spark can run the second one in tasks:
`Writer.begin` (driver) -> `weft.storage.write.write_task.write_rows` (tasks, in parallel) -> `Writer.commit` (driver).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from weft.storage.core.log.cut import in_spans, parse_cut
from weft.storage.core.log.entries import Data
from weft.storage.core.log.features import writable_features
from weft.storage.core.log.table_state import TableState, check_writable
from weft.storage.core.names import LaneName, StreamName, lane_name
from weft.storage.core.plan.watermarks import Lateness, advanced, check_lateness, watched
from weft.storage.errors import Conflict, GapError, InvalidInput, TableError
from weft.storage.log import lane_ends
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.heartbeat import Pulse
from weft.storage.log.table_log import TableLog
from weft.storage.log.time_marks import Marker
from weft.storage.shown import Shown
from weft.storage.store.object_store import check_capability
from weft.storage.write.lane_claim import TAKEOVER, LaneClaim
from weft.storage.write.observed_lanes import OtherLanes
from weft.storage.write.write_task import Batch, WriteTicket, Written, write_rows


@dataclass(frozen=True, slots=True)
class Commit(Shown):
    """The result of an append.

    Attributes:
        lane: The writer's lane.
        seq: Entry of the commit; the lane's last entry if there were no rows to commit.
        rows: Number of events that were stored.
        rows_ignored: Number of rows without effect: ignored deletes, and upserts without any ordering value.
        replayed: The batch was committed before; nothing was written.
        late: Number of events below the lane's watermark (`Table.watermarks`), counted once per group. They are stored
            like all others. 0 if ``replayed``.
    """

    lane: LaneName
    seq: int
    rows: int
    rows_ignored: int
    replayed: bool
    late: int = 0


class Writer:
    """Writes to one lane; get one from `weft.Table.writer` or `weft.Table.batch_writer`.

    A context manager, for one thread at a time.
    """

    def __init__(
        self,
        table_log: TableLog,
        stream: str,
        lane: str | None,
        *,
        takeover: bool,
        owner: str | None,
        query_id: str | None,
        lateness: Lateness | None = None,
        one_batch: bool = False,
    ) -> None:
        """See `weft.Table.writer`; ``one_batch``: see `weft.Table.batch_writer`. It then chooses the lane."""
        self._table_log = table_log
        self._recent = table_log.env.tuning.recent_commits
        self._stream = StreamName(stream)
        self._lateness = lateness
        self._owner = owner or f"{table_log.env.ids.host} pid {table_log.env.ids.pid} {table_log.env.ids.new()[:8]}"
        self._claim = LaneClaim(
            table_log,
            self._stream,
            lane_name(lane or stream),
            owner=self._owner,
            query_id=query_id,
            takeover=takeover,
            one_batch=one_batch,
        )
        self._table: TableState | None = None
        self._refreshed_ms = 0
        self._marker = Marker(table_log)
        self._others = OtherLanes(table_log, self._claim.lane, self._stream)
        self._failure: TableError | None = None
        self._pulse: Pulse | None = None
        self._open = False
        self._one_batch = one_batch

    def __enter__(self) -> Self:
        table = self._table_log.refresh()
        stream = table.schema.stream(self._stream)
        if self._lateness is not None:
            check_lateness(self._lateness, table.schema, stream)
        check_writable(table, writable_features())
        check_capability(self._table_log.store, self._table_log.env.ids.new)
        if self._one_batch:
            self._claim.add_feature(table)
        try:
            self._table = self._claim.enter()
            self._others = OtherLanes(self._table_log, self._claim.lane, self._stream)
            self._others.read(self._table)
        except TableError:
            self._claim.leave_batch_lane()
            raise
        self._open = True
        self._pulse = Pulse(self._table_log.env, self._claim.lane, self._claim.epoch, self._owner)
        self.heartbeat()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claim.leave_batch_lane()
        self._open = False
        if self._pulse is not None:
            self._pulse.end()

    def heartbeat(self) -> None:
        """Record that this writer is alive, at most twice a minute. Appends do so, too. Failures are suppressed."""
        if self._pulse is not None and self._failure is None:
            self._pulse.beat()

    def finish(self) -> None:
        """End the work of this writer in its lane, which no longer holds back the watermark of its stream.

        The lane stays open: a later writer continues it where it ends. This writer writes nothing more.

        Raises:
            Fenced: A newer writer has claimed the lane, which is not finished.
            CommitUnknown: It is unknown whether the lane is finished.
        """
        if self._claim.is_finished:
            return
        self._check_usable()
        self._claim.add_feature(self._loaded_table())
        try:
            self._claim.finish()
        except TableError as error:
            self._failure = error
            raise

    @property
    def lane(self) -> LaneName:
        """Name of the lane; that of a writer of one batch is known once it was entered."""
        return self._claim.lane

    @property
    def epoch(self) -> int:
        """Number of this writer's claim; 0 before the writer is entered."""
        return self._claim.epoch

    @property
    def source(self) -> dict[str, Any]:
        """The source position that the lane's last commit with a batch recorded; empty if it recorded none."""
        return dict(self._claim.state.source)

    def last_batch(self, query_id: str) -> int | None:
        """Number of the query's last batch in this lane; None if there is none."""
        return self._claim.state.batches.get(query_id)

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | pa.RecordBatchReader,
        *,
        batch: Batch | None = None,
        source: dict[str, Any] | None = None,
        seen: str | None = None,
    ) -> Commit:
        """Commit rows of this stream, either all or none.

        Args:
            rows: Key columns, the columns of whole groups, and optionally ``_op``. Of rows with equal versions the
                later one wins.
            batch: (query id, number): repeating an append with the same batch has no effect. Numbers of a query start
                anywhere and increase by one.
            source: Recorded with the commit, for example the source's offsets; JSON values.
            seen: Text of a cut of this table (`str` of `Snapshot.cut`), which any process may have read: the commit
                follows all commits in it. So a snapshot that is one moment has none of it without them, and it wins
                ties against them, whatever the clocks say. It needs two requests for each lane of the cut.

        Returns:
            The commit, or the earlier commit of ``batch``.

        Raises:
            InvalidInput: A column, type or row is wrong, or ``seen`` is not a cut. Nothing was changed.
            NotFound: The table does not have what ``seen`` names. Nothing was changed.
            Fenced: A newer writer has claimed the lane. Nothing was changed.
            GapError: ``batch`` is not the next one of its query. Nothing was changed.
            Conflict: The lane belongs to another query. Nothing was changed.
            StoreUnavailable: The store does not accept the files. Nothing was changed.
            CommitUnknown: It is unknown whether the commit succeeded: repeat the batch with a new writer.
        """
        ticket = self.begin(batch)
        if isinstance(ticket, Commit):
            return ticket
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        return self.commit(ticket, [write_rows(ticket, rows)], source=source, seen=seen)

    def begin(self, batch: Batch | None = None) -> WriteTicket | Commit:
        """Begin a commit.

        Returns:
            A ticket for the tasks that write its files; or the earlier commit of ``batch``, if there is one.

        Raises:
            GapError, Conflict, Fenced: See `append`.
        """
        self._check_usable()
        self.heartbeat()
        if batch is not None and self._one_batch:
            hint = "use Table.writer, which has a lane for the query id"
            raise InvalidInput(f"batch {batch!r}: a writer of one batch has no query id", hint=hint)
        if batch is not None:
            earlier = self._find_replayed(batch)
            if earlier is not None:
                return earlier
        self._refreshed_ms = self._table_log.clock.now_ms()
        self._table = self._others.refresh(self._loaded_table())
        check_writable(self._table, writable_features())
        schema, stream = self._table.schema, self._table.schema.stream(self._stream)
        return WriteTicket(
            env=self._table_log.env,
            schema=schema,
            stream=stream,
            lane=self._claim.lane,
            epoch=self._claim.epoch,
            seq=self._claim.state.head + 1,
            batch=batch,
            watched=watched(schema, stream, self._lateness, self._claim.state.watermarks),
        )

    def commit(
        self,
        ticket: WriteTicket,
        written: Sequence[Written],
        *,
        source: dict[str, Any] | None = None,
        seen: str | None = None,
    ) -> Commit:
        """Make all files that tasks have written for a ticket visible, in one commit.

        Args:
            ticket: From the last `begin`.
            written: Results of the tasks, in the order of their rows.
            source: See `append`.
            seen: See `append`. It may have been read after the commit has begun.

        Raises:
            InvalidInput: The ticket is not from the last `begin`, or ``seen`` is not a cut.
            NotFound, Fenced, CommitUnknown: See `append`.
            SplitBrain: Another process writes under the same claim.
        """
        self._check_usable()
        if (ticket.lane, ticket.epoch, ticket.seq) != (self._claim.lane, self._claim.epoch, self._claim.state.head + 1):
            raise InvalidInput(
                "the ticket is not for the next commit of this writer",
                hint="call begin, and commit with the ticket that it returns",
            )
        total = Written.joined(written)
        rows = sum(file.file.rows for file in total.files)
        if not total.files and ticket.batch is None:
            return Commit(self._claim.lane, self._claim.state.head, 0, total.rows_ignored, replayed=False)
        table = self._loaded_table()
        self._others.read_if_old(table, self._refreshed_ms)
        self._others.read_contested(table)
        table_seen = table.head if seen is None else lane_ends.follow(self._table_log, parse_cut(seen)).head
        query_id, number = ticket.batch or ("", 0)
        entry = Data(
            **self._claim.header(table.rev, table_seen),
            stream=self._stream,
            query_id=query_id,
            batch=number,
            rows=rows,
            rows_ignored=total.rows_ignored,
            source=source or {},
            files=list(total.files),
            watermarks=advanced(self._claim.state.watermarks, total.seen, self._lateness, ticket.schema),
            finishes=self._one_batch,
        )
        try:
            winner = self._table_log.commit_log.publish(entry)
        except TableError as error:
            self._failure = error
            raise
        if winner.commit_id != entry.commit_id:
            self._failure = self._claim.lost_error(winner)
            raise self._failure
        self._claim.state.add(entry, self._recent)
        self._table_log.commit_log.forget_before(self._claim.lane, entry.seq)
        self._claim.is_finished = self._one_batch
        if not self._one_batch:  # else the state is not that of the whole lane, and a clean writes the checkpoint
            self._table_log.checkpoints.save_lane(self._claim.lane, self._claim.state)
        self._marker.mark_if_due(table, {**self._others.heads, self._claim.lane: entry.seq})
        self.heartbeat()
        late = sum(values.late for values in total.seen.values())
        return Commit(self._claim.lane, entry.seq, rows, total.rows_ignored, replayed=False, late=late)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._claim.is_finished:
            raise InvalidInput(f"lane {self._claim.lane!r} is finished: its writer is done", hint="open a new writer")
        if not self._open:
            raise InvalidInput("the writer is not open", hint="use it in a with block: with table.writer(...) as w:")

    def _find_replayed(self, batch: Batch) -> Commit | None:
        """The earlier commit of a batch; None if the batch is the next one of its query."""
        query_id, number = batch
        lane, state = self._claim.lane, self._claim.state
        if not query_id or number < 0:
            raise InvalidInput(
                f"batch: expected (query id, number), got {batch!r}", hint='for example ("orders-query", 7)'
            )
        earlier = state.recent.get(batch)
        if earlier is not None:
            return Commit(lane, earlier.seq, earlier.rows, earlier.rows_ignored, replayed=True)
        self._claim.check_owner(query_id, is_claimed=True)
        last = state.batches.get(query_id)
        if last is None:
            first = state.rolled_back_from.get(query_id)
            if first is not None and number > first:
                raise GapError(
                    f"lane {lane!r}: batch {number} of query {query_id!r} has no predecessor: a restore of the "
                    f"table rolled back its batches, from batch {first} on",
                    hint=f"replay them first, or start a new query with {TAKEOVER} where the lane's source ends",
                )
            return None
        if number > last + 1:
            raise GapError(
                f"lane {lane!r}: batch {number} of query {query_id!r} follows batch {last}",
                hint=f"batches in between were lost: replay them first, or start a new query with {TAKEOVER}",
            )
        if number <= last:
            old_commit = self._look_up(batch)
            if old_commit is not None:
                return old_commit
            raise Conflict(
                f"lane {lane!r}: batch {number} of query {query_id!r} was never committed, but {last} was",
                hint=f"the query's numbers went backwards: give it a new query id with {TAKEOVER}",
            )
        return None

    def _look_up(self, batch: Batch) -> Commit | None:
        """The commit of a batch that is too old to be remembered: reads the lane again, without caching it."""
        env = self._table_log.env
        lane, state = self._claim.lane, self._claim.state
        log, step = CommitLog(env), env.tuning.look_up_entries
        for after in range(0, state.head, step):
            until = min(after + step, state.head)
            for entry in log.read_after(lane, after, until):
                is_batch = isinstance(entry, Data) and (entry.query_id, entry.batch) == batch
                if is_batch and not in_spans(state.rolled_back, entry.seq):
                    assert isinstance(entry, Data)
                    return Commit(lane, entry.seq, entry.rows, entry.rows_ignored, replayed=True)
            log.forget_before(lane, until)
        return None

    def _loaded_table(self) -> TableState:
        assert self._table is not None, "an open writer has loaded the table"
        return self._table

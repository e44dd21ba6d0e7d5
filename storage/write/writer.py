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

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from weft.storage.core.log.cut import Span, in_spans, parse_cut
from weft.storage.core.log.entries import Claim, Data, Header, LaneAdd
from weft.storage.core.log.features import FINISH, writable_features
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.table_state import Lane, TableState
from weft.storage.core.names import LaneName, StreamName, lane_name
from weft.storage.core.plan.watermarks import Lateness, advanced, check_lateness, watched
from weft.storage.errors import Conflict, Fenced, GapError, InvalidInput, SplitBrain, TableError
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.entry_header import next_header
from weft.storage.log.fencing_barrier import complete_fencing_barrier
from weft.storage.log.heartbeat import Pulse
from weft.storage.log.present_writer import present_writer, spell_time
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog, check_writable
from weft.storage.log.time_marks import Marker
from weft.storage.shown import Shown
from weft.storage.store.object_store import check_capability
from weft.storage.write.batch_lanes import free_lanes, new_lane
from weft.storage.write.lane_progress import read_lane, read_on
from weft.storage.write.observed_lanes import OtherLanes
from weft.storage.write.write_task import Batch, WriteTicket, Written, write_rows

MAX_CLAIM_TRIES: Final = 10  # two processes that claim one lane repeatedly are a configuration error, not a race
TAKEOVER: Final = "takeover=True (in a pipeline file: takeover: true)"
MAX_TAKE_TRIES: Final = 100  # each lane that is lost to another batch is progress of that batch
_OWN_LANE: Final = "give each a lane of its own, and both write the stream (in a pipeline file: lane: NAME)"
_STOP_IT: Final = f"stop that writer first, or {_OWN_LANE}"
_GO_ON: Final = (
    "if that writer will not write any more, this one can continue where its commits end, each message once (in a "
    f"pipeline file: resume: table), or read from a start of its own: {TAKEOVER}; if it will, {_OWN_LANE}"
)
MAX_LANE_ID: Final = (1 << 20) - 1


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
        self._lane = lane_name(lane or stream)
        self._takeover = takeover
        self._query_id = query_id
        self._lateness = lateness
        self._owner = owner or f"{table_log.env.ids.host} pid {table_log.env.ids.pid} {table_log.env.ids.new()[:8]}"
        self._table: TableState | None = None
        self._refreshed_ms = 0
        self._state = LaneState()
        self._epoch = 0
        self._marker = Marker(table_log)
        self._others = OtherLanes(table_log, self._lane, self._stream)
        self._failure: TableError | None = None
        self._pulse: Pulse | None = None
        self._open = self._finished = False
        self._one_batch = one_batch

    def __enter__(self) -> Self:
        table = self._table_log.refresh()
        stream = table.schema.stream(self._stream)
        if self._lateness is not None:
            check_lateness(self._lateness, table.schema, stream)
        check_writable(table, writable_features())
        check_capability(self._table_log.store, self._table_log.env.ids.new)
        if self._one_batch:
            self._add_feature(table)
        try:
            self._table = self._enter_lane()
            self._others = OtherLanes(self._table_log, self._lane, self._stream)
            self._others.read(self._table)
        except TableError:
            self._leave_batch_lane()
            raise
        self._open = True
        self._pulse = Pulse(self._table_log.env, self._lane, self._epoch, self._owner)
        self.heartbeat()
        return self

    def _enter_lane(self) -> TableState:
        """Claim the lane in a table state without a restore in progress (PROTOCOL.md, W1, W2)."""
        for _ in range(MAX_CLAIM_TRIES):
            table = complete_fencing_barrier(self._table_log)
            if self._one_batch:
                self._take_lane(table)
            else:
                self._claim_lane(table)
            table = self._table_log.refresh()
            same = table.rolled_back.get(self._lane, ()) == self._state.rolled_back
            if table.intent is None and same and not self._table_log.has_ended(self._lane):
                return table
            # A restore began during the claim (and may have ended): it may have rolled back entries that the state
            # includes, or closed the lane just before the claim.
            self._leave_batch_lane()
        raise Conflict(
            f"lane {self._lane!r}: {MAX_CLAIM_TRIES} restores of the table came in between",
            hint="wait until the table is not being restored",
        )

    def _claim_lane(self, table: TableState) -> None:
        if self._lane not in table.lanes:
            self._declare_lane()
            table = self._table_log.refresh()
        self._check_open()
        self._check_lane(table.lanes[self._lane])
        self._claim(table.rolled_back.get(self._lane, ()))

    def _take_lane(self, table: TableState) -> None:
        """Rule W10: claim a lane that no writer is in, directly after the entry that finishes it, or add a lane."""
        for _ in range(MAX_TAKE_TRIES):
            for lane, last in free_lanes(self._table_log, table, self._stream):
                if self._take(lane, last, table):
                    return
            self._declare_lane()
            table = self._table_log.refresh()
            if self._take(self._lane, None, table):
                return
        raise Conflict(
            f"stream {self._stream!r}: {self._owner} lost {MAX_TAKE_TRIES} lanes to other batches", hint="try again"
        )

    def _take(self, lane: LaneName, last: Header | None, table: TableState) -> bool:
        """Claim a lane in the slot after its last entry; returns whether this claim has the slot."""
        self._lane = lane
        self._state = LaneState.after(last, table.rolled_back.get(lane, ()))
        self._table_log.stamps.observe(self._state.stamp)
        self._epoch = self._state.epoch + 1
        claim = Claim(**self._header(self._state.table_rev), owner=self._owner, intent=0, for_batch=True)
        if self._table_log.commit_log.publish(claim).commit_id != claim.commit_id:
            return False
        self._state.add(claim, self._recent)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_batch_lane()
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
        if self._finished:
            return
        self._check_usable()
        self._add_feature(self._loaded_table())
        try:
            self._leave()
        except TableError as error:
            self._failure = error
            raise
        self._finished = True

    def _add_feature(self, table: TableState) -> None:
        if FINISH not in table.writer_features:
            add_feature(self._table_log, FINISH, "writers may finish lanes")

    def _leave_batch_lane(self) -> None:
        """Finish the lane of a writer of one batch that has claimed it, and did not commit. If that fails, warn."""
        if not self._one_batch or self._finished or not 0 < self._epoch == self._state.epoch:
            return
        try:
            self._leave()
        except TableError as error:
            warnings.warn(
                f"lane {self._lane!r} stays claimed, and holds back the watermark of its stream: {error.message}\n"
                f"  hint: weft fence {self._table_log.store.uri} {self._lane}",
                stacklevel=4,
            )

    def _leave(self) -> None:
        """Finish the lane by a claim, unless it is finished already: by a commit that was in doubt, or by a fence.

        Raises:
            Fenced: Another writer is in the lane.
            CommitUnknown: See `CommitLog.publish`.
        """
        header = self._header(self._state.table_rev, epoch=self._epoch + 1)
        claim = Claim(**header, owner=self._owner, intent=0, finishes=True)
        winner = self._table_log.commit_log.publish(claim)
        if not (isinstance(winner, Claim | Data) and winner.finishes):
            raise self._lost_error(winner.epoch, winner)

    @property
    def lane(self) -> LaneName:
        """Name of the lane; that of a writer of one batch is known once it was entered."""
        return self._lane

    @property
    def epoch(self) -> int:
        """Number of this writer's claim; 0 before the writer is entered."""
        return self._epoch

    @property
    def source(self) -> dict[str, Any]:
        """The source position that the lane's last commit with a batch recorded; empty if it recorded none."""
        return dict(self._state.source)

    def last_batch(self, query_id: str) -> int | None:
        """Number of the query's last batch in this lane; None if there is none."""
        return self._state.batches.get(query_id)

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
            raise InvalidInput(f"batch {batch!r}: the writer of one batch takes no query id", hint=hint)
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
            lane=self._lane,
            epoch=self._epoch,
            seq=self._state.head + 1,
            batch=batch,
            watched=watched(schema, stream, self._lateness, self._state.watermarks),
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
        if (ticket.lane, ticket.epoch, ticket.seq) != (self._lane, self._epoch, self._state.head + 1):
            raise InvalidInput("the ticket is not for the next commit of this writer", hint="begin again")
        whole = Written.joined(written)
        rows = sum(file.file.rows for file in whole.files)
        if not whole.files and ticket.batch is None:
            return Commit(self._lane, self._state.head, 0, whole.rows_ignored, replayed=False)
        table = self._loaded_table()
        self._others.read_if_old(table, self._refreshed_ms)
        self._others.look(table)
        table_seen = table.head if seen is None else self._table_log.follow(parse_cut(seen)).head
        query_id, number = ticket.batch or ("", 0)
        entry = Data(
            **self._header(table.rev, table_seen),
            stream=self._stream,
            query_id=query_id,
            batch=number,
            rows=rows,
            rows_ignored=whole.rows_ignored,
            source=source or {},
            files=list(whole.files),
            watermarks=advanced(self._state.watermarks, whole.seen, self._lateness, ticket.schema),
            finishes=self._one_batch,
        )
        try:
            winner = self._table_log.commit_log.publish(entry)
        except TableError as error:
            self._failure = error
            raise
        if winner.commit_id != entry.commit_id:
            self._failure = self._lost_error(winner.epoch, winner)
            raise self._failure
        self._state.add(entry, self._recent)
        self._table_log.commit_log.forget_before(self._lane, entry.seq)
        self._finished = self._one_batch
        if not self._one_batch:  # whose state is not that of the whole lane; a clean writes the checkpoint
            self._table_log.checkpoints.save_lane(self._lane, self._state)
        self._marker.mark_if_due(table, {**self._others.heads, self._lane: entry.seq})
        self.heartbeat()
        late = sum(seen.late for seen in whole.seen.values())
        return Commit(self._lane, entry.seq, rows, whole.rows_ignored, replayed=False, late=late)

    def _lost_error(self, epoch: int, winner: object) -> TableError:
        if epoch > self._epoch and self._one_batch:
            owner = winner.owner if isinstance(winner, Claim) else "another writer"
            return Fenced(
                f"lane {self._lane!r} was claimed for {owner}", hint="repeat this batch: nothing of it was written"
            )
        if epoch > self._epoch:
            owner = winner.owner if isinstance(winner, Claim) else "another writer"
            when = f" at {spell_time(winner.committed_at_ms)}" if isinstance(winner, Claim) else ""
            if isinstance(winner, Claim) and winner.intent:
                return Fenced(
                    f"lane {self._lane!r} was claimed for {owner}",
                    hint="open a new writer: it finds what was kept, and where its source continues (Spark: resume)",
                )
            return Fenced(
                f"stream {self._stream!r} was claimed by {owner}{when} "
                f"(claim {epoch} of lane {self._lane!r}; this writer holds claim {self._epoch})",
                hint=f"this writer must stop; its commits stay. Start only the one that is wanted, or {_OWN_LANE}",
            )
        return SplitBrain(
            f"lane {self._lane!r}: another process writes under claim {self._epoch} of this writer",
            hint="stop all writers of the lane: a process was copied while it ran, or objects were moved by hand",
        )

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._finished:
            raise InvalidInput(f"lane {self._lane!r} is finished: its writer is done", hint="open a new writer")
        if not self._open:
            raise InvalidInput("the writer is not open", hint="use it in a with block: with table.writer(...) as w:")

    def _find_replayed(self, batch: Batch) -> Commit | None:
        query_id, number = batch
        if not query_id or number < 0:
            raise InvalidInput(f"batch {batch!r} is not (query id, number)", hint='for example ("orders-query", 7)')
        earlier = self._state.recent.get(batch)
        if earlier is not None:
            return Commit(self._lane, earlier.seq, earlier.rows, earlier.rows_ignored, replayed=True)
        self._check_owner(query_id, is_claimed=True)
        last = self._state.batches.get(query_id)
        if last is None:
            first = self._state.rolled_back_from.get(query_id)
            if first is not None and number > first:
                raise GapError(
                    f"lane {self._lane!r}: batch {number} of query {query_id!r} has no predecessor: a restore of the "
                    f"table rolled back its batches, from batch {first} on",
                    hint=f"replay them first, or start a new query with {TAKEOVER} where the lane's source ends",
                )
            return None
        if number > last + 1:
            raise GapError(
                f"lane {self._lane!r}: batch {number} of query {query_id!r} follows batch {last}",
                hint=f"batches in between were lost: replay them first, or start a new query with {TAKEOVER}",
            )
        if number <= last:
            old = self._look_up(batch)
            if old is not None:
                return old
            raise Conflict(
                f"lane {self._lane!r}: batch {number} of query {query_id!r} was never committed, but {last} was",
                hint=f"the query's numbers went backwards: give it a new query id with {TAKEOVER}",
            )
        return None

    def _check_owner(self, query_id: str, *, is_claimed: bool) -> None:
        """Refuse a query if another one wrote last; ``is_claimed``: this writer has claimed the lane already."""
        if self._state.query_id not in {"", query_id} and not self._takeover:
            # Checked even if this query wrote before the other one took over: otherwise the two could alternate
            # unnoticed.
            state, mine = self._state, f"query {query_id!r}" if query_id else "a new query"
            who, runs = "", False
            if not is_claimed:
                text, runs = present_writer(self._table_log, self._lane, state.head, state.owner)
                who = f": {text}"
            raise Conflict(
                f"stream {self._stream!r} is written by another query already{who} "
                f"(lane {self._lane!r}, query {state.query_id!r}; this is {mine})",
                hint=_STOP_IT if runs else _GO_ON,
            )

    def _look_up(self, batch: Batch) -> Commit | None:
        """The commit of a batch that is too old to be remembered: reads the lane again, without caching it."""
        env = self._table_log.env
        log, step = CommitLog(env), env.tuning.look_up_entries
        for after in range(0, self._state.head, step):
            until = min(after + step, self._state.head)
            for entry in log.read_after(self._lane, after, until):
                is_batch = isinstance(entry, Data) and (entry.query_id, entry.batch) == batch
                if is_batch and not in_spans(self._state.rolled_back, entry.seq):
                    assert isinstance(entry, Data)
                    return Commit(self._lane, entry.seq, entry.rows, entry.rows_ignored, replayed=True)
            log.forget_before(self._lane, until)
        return None

    def _declare_lane(self) -> None:
        """Add the lane to the table, unless the table already has it."""

        def build(state: TableState) -> LaneAdd | None:
            lane_state = None if self._one_batch else state.lanes.get(self._lane)
            if lane_state is not None:
                self._check_lane(lane_state)
                return None
            if self._one_batch:
                self._lane = new_lane(self._table_log, state, self._stream)
            else:
                self._check_open()
            for other in state.lanes:
                if other.lower() == self._lane.lower():
                    raise Conflict(
                        f"lane {self._lane!r} differs from {other!r} only in case", hint="choose another name"
                    )
            lane_id = state.next_lane_id
            if lane_id > MAX_LANE_ID:
                raise Conflict(f"the table has had {MAX_LANE_ID} lanes", hint="reuse a lane")
            return LaneAdd(**self._table_log.header(state), name=self._lane, lane_id=lane_id, stream=self._stream)

        self._table_log.publish(build)

    def _check_lane(self, lane_state: Lane) -> None:
        if lane_state.stream != self._stream:
            raise Conflict(
                f"lane {self._lane!r} belongs to stream {lane_state.stream!r}, not to {self._stream!r}",
                hint="choose another lane name: the stream of a lane cannot change",
            )

    def _check_open(self) -> None:
        if self._table_log.has_ended(self._lane):
            raise Conflict(f"lane {self._lane!r} is closed", hint="choose another name: a closed lane stays closed")

    def _claim(self, rolled_back: tuple[Span, ...]) -> None:
        """Rule W1: read the lane to its end, and publish a claim, which fences the previous writer."""
        self._state = read_lane(self._table_log, self._lane, rolled_back)
        owners: list[str] = []
        for _ in range(MAX_CLAIM_TRIES):
            self._table_log.stamps.observe(self._state.stamp)
            if self._query_id is not None:
                self._check_owner(self._query_id, is_claimed=False)
            self._epoch = self._state.epoch + 1
            claim = Claim(**self._header(self._state.table_rev), owner=self._owner, intent=0)
            winner = self._table_log.commit_log.publish(claim)
            if winner.commit_id == claim.commit_id:
                self._state.add(claim, self._recent)
                return
            owners.append(getattr(winner, "owner", f"claim {winner.epoch}"))
            read_on(self._table_log, self._lane, self._state)
        raise Conflict(
            f"lane {self._lane!r}: {self._owner} lost {MAX_CLAIM_TRIES} claims to {', '.join(dict.fromkeys(owners))}",
            hint="stop one of the writers, or give it another lane: they claim one lane repeatedly",
        )

    def _header(self, table_rev: int, table_seen: int | None = None, *, epoch: int | None = None) -> Header:
        return next_header(
            self._lane,
            self._state,
            epoch=self._epoch if epoch is None else epoch,
            table_rev=table_rev,
            stamps=self._table_log.stamps,
            env=self._table_log.env,
            table_seen=table_seen,
        )

    def _loaded_table(self) -> TableState:
        assert self._table is not None, "an open writer has loaded the table"
        return self._table

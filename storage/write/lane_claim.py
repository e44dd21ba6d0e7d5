"""A writer's claim of a lane: how a writer enters a lane and leaves it, and whose lane it is.

A claim is the entry with which a writer enters a lane. It fences the writers before it (PROTOCOL.md, W1 to W4; S3
EpochMonotone). A writer of one batch takes a lane that no writer is in, and finishes it with its commit (W10), so that
the number of lanes does not grow with batches.
"""

from __future__ import annotations

import warnings
from typing import Final

from weft.storage.core.log.entries import Claim, Data, Entry, Header, LaneAdd
from weft.storage.core.log.features import FINISH
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, StreamName
from weft.storage.errors import Conflict, CorruptData, Fenced, SplitBrain, TableError
from weft.storage.log.entry_header import next_header
from weft.storage.log.fencing_barrier import complete_fencing_barrier
from weft.storage.log.present_writer import present_writer, spell_time
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog
from weft.storage.write.batch_lanes import free_lanes, new_lane
from weft.storage.write.lane_progress import read_lane, read_on

MAX_CLAIM_TRIES: Final = 10  # two processes that claim one lane repeatedly are a configuration error, not a race
MAX_TAKE_TRIES: Final = 100  # each lane that is lost to another batch is progress of that batch
MAX_LANE_ID: Final = (1 << 20) - 1
TAKEOVER: Final = "takeover=True (in a pipeline file: takeover: true)"
_OWN_LANE: Final = "give each a lane of its own, and both write the stream (in a pipeline file: lane: NAME)"
_STOP_IT: Final = f"stop that writer first, or {_OWN_LANE}"
_GO_ON: Final = (
    "if that writer will not write any more, this one can continue where its commits end, each message once (in a "
    f"pipeline file: resume: table), or read from a start of its own: {TAKEOVER}; if it will, {_OWN_LANE}"
)


class LaneClaim:
    """The lane of a writer, and its claim of the lane.

    Attributes:
        lane: The lane; a claim for one batch chooses it when the writer enters.
        state: The state of the lane at its end.
        epoch: Number of the claim; 0 before the writer enters.
        is_finished: Whether the writer has finished the lane. It writes nothing more.
    """

    def __init__(
        self,
        table_log: TableLog,
        stream: StreamName,
        lane: LaneName,
        *,
        owner: str,
        query_id: str | None,
        takeover: bool,
        one_batch: bool,
    ) -> None:
        """Nothing is claimed yet. The arguments are those of `weft.Table.writer`.

        ``one_batch``: the claim is for the writer of one batch.
        """
        self._table_log, self._stream = table_log, stream
        self._owner, self._query_id, self._takeover, self._one_batch = owner, query_id, takeover, one_batch
        self._recent = table_log.env.tuning.recent_commits
        self.lane = lane
        self.state = LaneState()
        self.epoch = 0
        self.is_finished = False

    def enter(self) -> TableState:
        """Claim the lane in a table state without a restore in progress (PROTOCOL.md, W1, W2); returns this state.

        Raises:
            Conflict: The lane is closed, or belongs to another stream or query; or other processes won every race.
        """
        for _ in range(MAX_CLAIM_TRIES):
            table = complete_fencing_barrier(self._table_log)
            if self._one_batch:
                self._take_lane(table)
            else:
                self._claim_lane(table)
            table = self._table_log.refresh()
            is_current = table.rolled_back.get(self.lane, ()) == self.state.rolled_back
            if table.intent is None and is_current and not self._table_log.has_ended(self.lane):
                return table
            # A restore began during the claim (and may have ended): it may have rolled back entries that the state
            # includes, or closed the lane just before the claim.
            self.leave_batch_lane()
        raise Conflict(
            f"lane {self.lane!r}: {MAX_CLAIM_TRIES} restores of the table came in between",
            hint="wait until the table is not being restored",
        )

    def _claim_lane(self, table: TableState) -> None:
        if self.lane not in table.lanes:
            self._declare_lane()
            table = self._table_log.refresh()
        self._check_open()
        self._check_stream(table)
        self._claim(table)

    def _take_lane(self, table: TableState) -> None:
        """Rule W10: claim a lane that no writer is in, directly after the entry that finishes it, or add a lane."""
        for _ in range(MAX_TAKE_TRIES):
            for lane, last in free_lanes(self._table_log, table, self._stream):
                if self._take(lane, last, table):
                    return
            self._declare_lane()
            table = self._table_log.refresh()
            if self._take(self.lane, None, table):
                return
        raise Conflict(
            f"stream {self._stream!r}: {self._owner} lost {MAX_TAKE_TRIES} lanes to other batches", hint="try again"
        )

    def _take(self, lane: LaneName, last: Header | None, table: TableState) -> bool:
        """Claim a lane in the slot after its last entry; returns whether this claim has the slot."""
        self.lane = lane
        self.state = LaneState.after(last, table.rolled_back.get(lane, ()))
        self._check_table_lane(table)
        self._table_log.stamps.observe(self.state.stamp)
        self.epoch = self.state.epoch + 1
        claim = Claim(**self.header(self.state.table_rev), owner=self._owner, intent=0, for_batch=True)
        if self._table_log.commit_log.publish(claim).commit_id != claim.commit_id:
            return False
        self.state.add(claim, self._recent)
        return True

    def _declare_lane(self) -> None:
        """Add the lane to the table, unless the table already has it."""

        def build(state: TableState) -> LaneAdd | None:
            if self._one_batch:
                self.lane = new_lane(self._table_log, state, self._stream)
            elif self.lane in state.lanes:
                self._check_stream(state)
                return None
            else:
                self._check_open()
            for other in state.lanes:
                if other.lower() == self.lane.lower():
                    raise Conflict(
                        f"lane {self.lane!r} differs from {other!r} only in case", hint="choose another name"
                    )
            lane_id = state.next_lane_id
            if lane_id > MAX_LANE_ID:
                raise Conflict(f"the table has had {MAX_LANE_ID} lanes", hint="reuse a lane")
            return LaneAdd(**self._table_log.header(state), name=self.lane, lane_id=lane_id, stream=self._stream)

        self._table_log.publish(build)

    def _check_stream(self, table: TableState) -> None:
        stream = table.lanes[self.lane].stream
        if stream != self._stream:
            raise Conflict(
                f"lane {self.lane!r} belongs to stream {stream!r}, not to {self._stream!r}",
                hint="choose another lane name: the stream of a lane cannot change",
            )

    def _check_open(self) -> None:
        if self._table_log.has_ended(self.lane):
            raise Conflict(f"lane {self.lane!r} is closed", hint="choose another name: a closed lane stays closed")

    def _claim(self, table: TableState) -> None:
        """Rule W1: read the lane to its end, and publish a claim, which fences the previous writer."""
        self.state = read_lane(self._table_log, self.lane, table.rolled_back.get(self.lane, ()))
        self._check_table_lane(table)
        owners: list[str] = []
        for _ in range(MAX_CLAIM_TRIES):
            self._table_log.stamps.observe(self.state.stamp)
            if self._query_id is not None:
                self.check_owner(self._query_id, is_claimed=False)
            self.epoch = self.state.epoch + 1
            claim = Claim(**self.header(self.state.table_rev), owner=self._owner, intent=0)
            winner = self._table_log.commit_log.publish(claim)
            if winner.commit_id == claim.commit_id:
                self.state.add(claim, self._recent)
                return
            owners.append(getattr(winner, "owner", f"claim {winner.epoch}"))
            read_on(self._table_log, self.lane, self.state)
        raise Conflict(
            f"lane {self.lane!r}: {self._owner} lost {MAX_CLAIM_TRIES} claims to {', '.join(dict.fromkeys(owners))}",
            hint="stop one of the writers, or give it another lane: they claim one lane repeatedly",
        )

    def _check_table_lane(self, table: TableState) -> None:
        """Refuse a lane with commits that follow entries of the table lane that do not exist: no reader sees them.

        A copy of a table that was made entry by entry may have such commits. Nobody would see later ones, either.
        """
        seen = self.state.table_seen
        if seen <= table.head or seen <= (head := self._table_log.refresh().head):
            return
        raise CorruptData(
            f"lane {self.lane!r} has commits that follow entry {seen} of the table lane, which ends at entry {head}; "
            "no reader sees them, and none would see later ones",
            hint="if this is a copy of a table, finish it: weft verify names the cut for weft restore, and sources "
            "send the commits after it again (guide: deploy/OPERATIONS.md#backups)",
        )

    def header(self, table_rev: int, table_seen: int | None = None, *, epoch: int | None = None) -> Header:
        """The header of the next entry of the lane; the arguments are those of `next_header`."""
        return next_header(
            self.lane,
            self.state,
            epoch=self.epoch if epoch is None else epoch,
            table_rev=table_rev,
            stamps=self._table_log.stamps,
            env=self._table_log.env,
            table_seen=table_seen,
        )

    def leave_batch_lane(self) -> None:
        """Finish the lane of a writer of one batch that has claimed it and did not commit. A failure is a warning."""
        if not self._one_batch or self.is_finished or not 0 < self.epoch == self.state.epoch:
            return
        try:
            self._finish()
        except TableError as error:
            warnings.warn(
                f"lane {self.lane!r} stays claimed, and holds back the watermark of its stream: {error.message}\n"
                f"  hint: weft fence {self._table_log.store.uri} {self.lane}",
                stacklevel=4,
            )

    def finish(self) -> None:
        """Finish the lane; see `Writer.finish`.

        Raises:
            Fenced: Another writer is in the lane.
            CommitUnknown: See `CommitLog.publish`.
        """
        self._finish()
        self.is_finished = True

    def _finish(self) -> None:
        """Finish the lane by a claim, unless it is finished already: by a commit that was in doubt, or by a fence."""
        header = self.header(self.state.table_rev, epoch=self.epoch + 1)
        claim = Claim(**header, owner=self._owner, intent=0, finishes=True)
        winner = self._table_log.commit_log.publish(claim)
        if not (isinstance(winner, Claim | Data) and winner.finishes):
            raise self.lost_error(winner)

    def lost_error(self, winner: Entry) -> TableError:
        """The error of an entry of this writer whose slot another entry has."""
        if winner.epoch <= self.epoch:
            return SplitBrain(
                f"lane {self.lane!r}: another process writes under claim {self.epoch} of this writer",
                hint="stop all writers of the lane: a process was copied while it ran, or objects were moved by hand",
            )
        owner = winner.owner if isinstance(winner, Claim) else "another writer"
        if self._one_batch:
            return Fenced(
                f"lane {self.lane!r} was claimed for {owner}", hint="repeat this batch: nothing of it was written"
            )
        if isinstance(winner, Claim) and winner.intent:
            return Fenced(
                f"lane {self.lane!r} was claimed for {owner}",
                hint="open a new writer: it continues after the commits that were kept (Spark: resume)",
            )
        when = f" at {spell_time(winner.committed_at_ms)}" if isinstance(winner, Claim) else ""
        return Fenced(
            f"stream {self._stream!r} was claimed by {owner}{when} "
            f"(claim {winner.epoch} of lane {self.lane!r}; this writer holds claim {self.epoch})",
            hint=f"this writer must stop; its commits stay. Run only one of the two, or {_OWN_LANE}",
        )

    def check_owner(self, query_id: str, *, is_claimed: bool) -> None:
        """Refuse a query if another one wrote last, unless this writer takes over.

        Args:
            query_id: The query; "" for a new one.
            is_claimed: Whether this writer has claimed the lane already, so that it is its newest writer.

        Raises:
            Conflict: Another query wrote last.
        """
        # Checked even if this query wrote before the other one took over: otherwise the two could alternate unnoticed.
        if self._takeover or self.state.query_id in {"", query_id}:
            return
        other_writer, is_running = "", False
        if not is_claimed:
            text, is_running = present_writer(self._table_log, self.lane, self.state.head, self.state.owner)
            other_writer = f": {text}"
        this_query = f"query {query_id!r}" if query_id else "a new query"
        raise Conflict(
            f"stream {self._stream!r} is written by another query already{other_writer} "
            f"(lane {self.lane!r}, query {self.state.query_id!r}; this is {this_query})",
            hint=_STOP_IT if is_running else _GO_ON,
        )

    def add_feature(self, table: TableState) -> None:
        """Record that only versions that know finished lanes may use the table, if ``table`` does not say so."""
        if FINISH not in table.writer_features:
            add_feature(self._table_log, FINISH, "writers may finish lanes")

"""The log of a table as one process has read it: table states, cuts, and the log files of a snapshot.

Each refresh continues after the last entry that was read. Thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from weft.storage.clock import Stamps, arrival, stamps_of
from weft.storage.core.log import cut
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import Data, Entry, Header, LaneEntry, TableEntry, lane_entries, table_entries
from weft.storage.core.log.file_refs import LogFile
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import ARCHIVE, TABLE_LANE, TIMELINE, LaneName, Path, describe_lane, slot_path
from weft.storage.core.plan.slices import LiveFile
from weft.storage.environment import Environment
from weft.storage.errors import (
    Conflict,
    CorruptData,
    NotFound,
    NotOneMoment,
    SnapshotExpired,
    TableError,
    UnsupportedFormat,
)
from weft.storage.log.archived_entries import Slot
from weft.storage.log.checkpoint_store import Checkpoints
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.log.entry_header import NO_ENTRY, next_header
from weft.storage.log.one_moment import OneMoment
from weft.storage.log.pins import unexpired
from weft.storage.store.object_store import normalise_errors

MAX_PUBLISH_TRIES: Final = 100  # each lost race is an entry of another process
MAX_READ_TRIES: Final = 10  # a snapshot is read again only if a compaction was published meanwhile
LOOKS: Final = 8
"""Looks for a newer checkpoint while a process publishes the entries between two; each lists the checkpoints."""

T = TypeVar("T", bound=TableEntry)


class HeadCut(NamedTuple):
    """The newest snapshot.

    Attributes:
        state: The table state.
        at: The cut.
        is_moment: Whether it is certain that the cut has every commit that was visible before one in it began (S31).
    """

    state: TableState
    at: Cut
    is_moment: bool


class TableLog:
    """All lanes of one table, and the state of the table lane as far as it has been read."""

    def __init__(self, env: Environment, stamps: Stamps) -> None:
        self.env, self.store, self.clock, self.stamps = env, env.store, env.clock, stamps
        self.commit_log = CommitLog(env)
        self.commit_log.archives.announced = self.archivable
        self._lock = threading.RLock()
        self.checkpoints = Checkpoints(env)
        self._state: TableState | None = None
        self._opened_at = 0
        """Head of the checkpoint that the state begins from; 0 if there was none."""
        self._look_at = 0
        """Head from which on a newer checkpoint is looked for; see `_begin_again`."""
        self._folded: Mapping[Path, LogFile] = {}
        self._retired: set[LaneName] = set()

    @classmethod
    def of(cls, env: Environment) -> TableLog:
        """A log that shares its stamps with the other instances of the table in this process."""
        return cls(env, stamps_of(env.store.uri))

    def with_own_cache(self) -> TableLog:
        """A log that starts with the table state of this one, and caches what it reads itself."""
        log = TableLog(self.env, self.stamps)
        with self._lock:
            log._state, log._opened_at, log._look_at = self._state, self._opened_at, self._look_at
        return log

    def refresh(self) -> TableState:
        """Table state at the newest contiguous prefix of the table lane.

        Raises:
            NotFound: There is no table.
            CorruptData: The first entry is missing, or an entry is damaged.
        """
        return self._read_on(None)

    def _read_on(self, doubts: list[Slot] | None) -> TableState:
        """`refresh`; ``doubts``: see `CommitLog.read_on`."""
        with self._lock:
            window = 1
            if self._state is None:
                self._state = self.checkpoints.newest_table(self.commit_log)
                window, doubts = self.env.tuning.first_table_window, None
                self._opened_at = self._state.head if self._state is not None else 0
                self._look_at = self._opened_at + self.env.tuning.table_checkpoint_every
            head = self._state.head if self._state is not None else 0
            for fresh in self.commit_log.read_on(TABLE_LANE, head, window=window, doubts=doubts):
                self._state = apply_entries(self._state, table_entries(fresh))
                self.commit_log.forget_before(TABLE_LANE, fresh[-1].seq)
            if self._state is not None:
                self._state = self._with_few_newer(self._state)
            else:
                if self.lacks_first():
                    raise self._lost_first()
                raise NotFound(
                    f"there is no table at {self.store.uri}",
                    hint="check the path, or create it: weft create PIPELINE, or Table.create",
                )
            self.stamps.observe(self._state.stamp)
            return self._state

    def _with_few_newer(self, state: TableState) -> TableState:
        """The same state, without many slices in memory that are newer than its parts."""
        if state.slices.has_unread and (state.head >= self._look_at or state.slices.has_many_newer):
            # If there is none, it may be in the making.
            self._look_at = state.head + max(self.env.tuning.table_checkpoint_every // LOOKS, 1)
            with contextlib.suppress(TableError):  # without it the state is as good
                state = self._begin_again(state)
        return replace(state, slices=state.slices.packed()) if state.slices.has_many_newer else state

    def _begin_again(self, state: TableState) -> TableState:
        """The same state, beginning from a newer checkpoint if there is one.

        Its slices are in the store, so that they need no memory here. Cleaning deletes the older checkpoint, and the
        slices that were not read by then would have to be replayed.
        """
        newest = self.checkpoints.newest_table(self.commit_log, state.head)
        if newest is None or newest.head <= self._opened_at:
            return state
        again = apply_entries(newest, read_table_lane(self.commit_log.uncached(), newest.head, state.head))
        assert again is not None, "entries give a state"
        if (again.head, again.head_id) != (state.head, state.head_id):
            return state  # an entry is missing; whoever needs it reports it
        self._opened_at, self._look_at = newest.head, newest.head + self.env.tuning.table_checkpoint_every
        return again

    def created_at_ms(self) -> int:
        """When the table was created, in milliseconds since 1970 UTC, by the clock of the process that did.

        Raises:
            CorruptData: The first entry is missing: the table was moved or deleted since it was opened.
        """
        first = self.commit_log.entry(TABLE_LANE, 1)
        if first is None:
            raise self._lost_first()
        return first.committed_at_ms

    def _lost_first(self) -> CorruptData:
        return CorruptData(
            f"the first entry of the table at {self.store.uri} is missing, and later ones exist",
            hint=f"restore {slot_path(TABLE_LANE, 1)} from a copy of the store; weft verify finds more",
        )

    def archivable(self) -> tuple[cut.Seqs, int]:
        """The last slot of each lane that may be archived (0 for none; lanes that were retired are left out), and the
        free slot of the table lane, in the newest state.
        """
        state = self.refresh()
        return {**dict.fromkeys(state.lanes, 0), **state.archived}, state.head + 1

    def has_ended(self, lane: LaneName) -> bool:
        """Whether a lane is closed, in a state at least as new as the last one that was read, or was retired (C6)."""
        assert self._state is not None, "the table was opened"
        lane_state = self._state.lanes.get(lane)
        return self.was_retired(lane) if lane_state is None else lane_state.closed is not None

    def was_retired(self, lane: LaneName) -> bool:
        """Whether a lane was added and retired (C6). Its entries stay in the store.

        If there are entries, the table is read again: the lane may have been added since.
        """
        if lane not in self._retired and self.commit_log.archives.taken((lane, 1)) and lane not in self.refresh().lanes:
            self._retired.add(lane)
        return lane in self._retired

    def known_entry(self, lane: LaneName) -> int:
        """An entry of a lane that exists according to the part of the table lane that was read; 0 if none is known."""
        return self._state.seen.get(lane, 0) if self._state is not None else 0

    def lacks_first(self) -> bool:
        """Whether later entries exist; called if the first entry was not found."""
        if not self.store.list(Path(TIMELINE)) and not self.store.list(Path(ARCHIVE)):
            return False
        with normalise_errors(slot_path(TABLE_LANE, 1)):
            return not self.commit_log.archives.taken((TABLE_LANE, 1))

    def at(self, table: int) -> TableState:
        """Table state of an older prefix.

        Raises:
            NotFound: The table lane has fewer entries.
        """
        state = self.refresh()
        if table == state.head:
            return state
        if not 1 <= table < state.head:
            raise NotFound(f"the table lane has {state.head} entries, not {table}", hint="use a cut of this table")
        *_, past = self._states_up_to(table)
        return past

    def _states_up_to(self, table: int) -> Iterator[TableState]:
        """The states of the prefixes from the newest checkpoint within ``table`` up to ``table``."""
        state = self.checkpoints.newest_table(self.commit_log, table)
        if state is not None:
            yield state
        for entry in read_table_lane(self.commit_log, state.head if state is not None else 0, table):
            state = apply_entries(state, [entry])
            assert state is not None, "an entry gives a state"
            yield state
        self.commit_log.forget_before(TABLE_LANE, table)

    def publish(self, build: Callable[[TableState], T | None]) -> T | None:
        """Append an entry to the table lane; returns the entry, or None if ``build`` returned None.

        Args:
            build: Makes the entry from the newest state (see `header`), or returns None if none is needed. It is called
                again after every lost race, so that its checks include the entry that won.

        Raises:
            Conflict: Other processes won `MAX_PUBLISH_TRIES` races.
            CommitUnknown: See `CommitLog.publish`.
        """
        for _ in range(MAX_PUBLISH_TRIES):
            state = self.refresh()
            entry = build(state)
            if entry is None:
                return None
            winner = self.commit_log.publish(entry)
            if winner.commit_id == entry.commit_id:
                self._save_checkpoint(entry.seq)
                return entry
        raise Conflict(
            f"lost {MAX_PUBLISH_TRIES} races for the table lane", hint="let fewer processes compact this table"
        )

    def _save_checkpoint(self, head: int) -> None:
        """Write a checkpoint if one is due. A failure is suppressed, because the entry is already published."""
        if self.checkpoints.is_due(TABLE_LANE, head):
            with contextlib.suppress(TableError):
                self.checkpoints.save_table(self.refresh())
                self._look_at = head

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the newest state, whether or not one is due.

        Raises:
            CorruptData, StoreUnavailable: See `weft.storage.core.log.newest_slices.Slices.packed`.
        """
        self.checkpoints.save_table(self.refresh(), always=True)
        self._look_at = 0

    def header(self, state: TableState | None) -> Header:
        """Header of the entry of the table lane that follows a state; for the first entry the state is None."""
        return next_header(TABLE_LANE, state or NO_ENTRY, epoch=0, table_rev=0, stamps=self.stamps, env=self.env)

    def newest_cut(self, *, moment: bool = False) -> HeadCut:
        """The head snapshot: reads T first, and every lane strictly after it (PROTOCOL.md, R1 to R3, R7).

        Args:
            moment: If it is not certain that the newest cut is one moment, return the moment at which the newest entry
                of the table lane was published. It has every commit that was acknowledged before.

        Raises:
            NotOneMoment: ``moment`` is set, and a version without rule W9 of PROTOCOL.md commits at the same time.
        """
        for _ in range(MAX_READ_TRIES):
            # The archives of the slot after T and of the lanes are requested together, which saves a round.
            doubts: list[Slot] = []
            state = self._read_on(doubts)
            start = state.log_start()
            rounds = OneMoment(state.seen, partial(_belongs_to, rev=state.rev, seen=state.head))
            tails = self.commit_log.read_tails(
                {lane.name: (start.get(lane.name, 0), lane.closed) for lane in state.lanes.values()},
                state.seen,
                doubts,
                rounds,
            )
            if any(self.commit_log.archives.knows(slot) for slot in doubts):
                continue  # the table lane has entries after T, in an archive
            table_seen = state.head if rounds.is_one or not moment else state.head - 1
            if table_seen < state.head:
                _check_says_what_it_has_seen(state, tails)
            lanes = {}
            for lane, tail in tails.items():
                base_seq = start.get(lane, 0)
                lanes[lane] = base_seq + _count_valid(lane_entries(tail), state.rev, table_seen)
                self.commit_log.forget_before(lane, base_seq)
            if state.readable_at(lanes):
                return HeadCut(state, Cut(state.head, lanes), rounds.is_one or moment)
        raise CorruptData(
            f"slices of {self.store.uri} contain commits that are in no lane",
            hint="entries were removed: restore them from a copy of the store",
        )

    def ends_at_moment(self, state: TableState, ends: cut.Seqs) -> dict[LaneName, int]:
        """The last entry of each lane at the moment at which the newest entry of a state was published (R7).

        Args:
            state: A table state.
            ends: The last entry of each lane, read after that entry was visible; 0 of lanes that are missing.

        Raises:
            NotOneMoment: A version without rule W9 of PROTOCOL.md has committed in between.
        """
        starts = {
            name: state.seen.get(name, 0) if lane.closed is None else lane.closed for name, lane in state.lanes.items()
        }
        until = {
            lane: max(seq, ends.get(lane, 0)) if state.lanes[lane].closed is None else seq
            for lane, seq in starts.items()
        }
        tails = self.commit_log.read_tails({lane: (seq, until[lane]) for lane, seq in starts.items()})
        _check_says_what_it_has_seen(state, tails)
        seen = state.head - 1
        return {lane: starts[lane] + _count_valid(lane_entries(tail), state.rev, seen) for lane, tail in tails.items()}

    def longest_cut(self, table: int, lanes: cut.Seqs) -> tuple[TableState, Cut]:
        """The snapshot of the longest prefix up to ``table`` for which R3 holds with ``lanes``, cut off by R2.

        Args:
            table: Length of a prefix of the table lane.
            lanes: Last entry of each lane of that prefix; lanes that were retired since may be left out.
        """
        past = self._readable(table, lanes)
        return past, Cut(past.head, self._known_to(past, past.complete(lanes)))

    def _readable(self, table: int, lanes: cut.Seqs) -> TableState:
        """The longest prefix up to ``table`` whose slices and folds contain nothing after ``lanes``."""
        while table:
            readable: TableState | None = None
            first = table
            for state in self._states_up_to(table):
                first = min(first, state.head)
                if state.readable_at(state.complete(lanes)):
                    readable = state
            if readable is not None:
                return readable
            table = first - 1
        raise CorruptData(
            "the first entry of the table lane contains slices, so it is not a CREATE",
            hint="it was replaced: restore it from a copy of the store",
        )

    def _known_to(self, state: TableState, until: cut.Seqs) -> dict[LaneName, int]:
        """The last entry of each lane up to ``until`` with a revision of ``state`` (R2); revisions ascend (S19)."""
        return self.last_while(until, lambda entry: entry.table_rev <= state.rev)

    def heads(self, state: TableState, known: cut.Seqs | None = None) -> dict[LaneName, int]:
        """Last entry of every lane; the search begins at entries that ``state`` or ``known`` prove to exist."""
        existing = _proved_entries(state, known)
        open_lanes = [lane.name for lane in state.lanes.values() if lane.closed is None]
        # A closed lane is not searched: a claim may follow its end.
        ends = self.commit_log.last_where({lane: (existing.get(lane, 0), None) for lane in open_lanes})
        return {lane.name: ends[lane.name] if lane.closed is None else lane.closed for lane in state.lanes.values()}

    def observe_heads(
        self, state: TableState, known: cut.Seqs | None = None, lanes: Collection[LaneName] | None = None
    ) -> dict[LaneName, int]:
        """`heads` of some lanes; later stamps of this process will be larger than the stamps of their commits.

        Args:
            state: The newest state that this process has read, which it has observed.
            known: An entry that exists, by lane.
            lanes: Some lanes of ``state``; None for all.
        """
        observed = [lane for lane in state.lanes.values() if lanes is None or lane.name in lanes]
        # A closed lane need not be read: the stamp of the DONE that closed it is larger (W2).
        heads = {lane.name: lane.closed for lane in observed if lane.closed is not None}
        open_lanes = [lane.name for lane in observed if lane.closed is None]
        for lane, entry in self.last_entries(state, open_lanes, known).items():
            heads[lane] = entry.seq if entry is not None else 0
            self.stamps.observe(entry.stamp if entry is not None else 0)
        return heads

    def follow(self, at: Cut) -> TableState:
        """Read what a cut has; later stamps of this process will be larger than the stamps of its commits.

        Returns:
            The newest state.

        Raises:
            NotFound: The table has no such entry or lane.
        """
        state = self.refresh()
        cut_seqs = {lane: seq for lane, seq in at.lanes.items() if seq}
        newest = self.commit_log.last_entries(cut_seqs)  # those of retired lanes stay in the store
        missing = [f"entry {seq} of {describe_lane(lane)}" for lane, seq in cut_seqs.items() if not newest.get(lane)]
        if at.table > state.head:
            missing.append(f"entry {at.table} of the table lane")
        if missing:
            raise NotFound(
                f"the table at {self.store.uri} has no {missing[0]}, which cut {at} names",
                hint="use a cut of this table that weft returned, unchanged",
            )
        for entry in newest.values():
            self.stamps.observe(entry.stamp if entry is not None else 0)
        return state

    def last_entries(
        self, state: TableState, lanes: Collection[LaneName], known: cut.Seqs | None = None
    ) -> dict[LaneName, Header | None]:
        """The last entry of some lanes, None of an empty one; the search begins where that of `heads` does."""
        existing = _proved_entries(state, known)
        return self.commit_log.last_entries({lane: existing.get(lane, 0) for lane in lanes})

    def exact_cut(self, requested: Cut) -> tuple[TableState, Cut]:
        """The snapshot of a cut.

        Raises:
            NotFound: The table has no such entry or lane, or was never in that state.
            SnapshotExpired: Cleaning has expired the snapshot.
        """
        state = self.at(requested.table)
        self.check_kept(requested)
        for lane, seq in requested.lanes.items():
            entry = self.commit_log.entry(lane, seq) if lane in state.lanes and seq else None
            if lane not in state.lanes or (seq and entry is None):
                raise NotFound(f"cut {requested}: lane {lane!r} has no entry {seq}", hint="use a cut of this table")
            if entry is not None and entry.table_rev > state.rev:
                raise NotFound(
                    f"cut {requested}: lane {lane!r} is ahead of the table lane",
                    hint="use a cut that weft returned, unchanged",
                )
        if not state.readable_at(requested.lanes):
            raise NotFound(
                f"cut {requested} was never a state of the table: its slices hold more",
                hint="use a cut that weft returned, unchanged",
            )
        return state, requested

    def check_kept(self, at: Cut) -> None:
        """Refuse a snapshot whose files cleaning may have deleted (PROTOCOL.md, R4).

        Raises:
            SnapshotExpired: The snapshot has expired, and no savepoint, pin or open compaction keeps it.
        """
        state = self.refresh()
        # Pins and open compactions may end at any moment: the read may be tried, but nothing is guaranteed.
        lent = (plan.at for plan in state.plans.values())
        if not state.keeps(at) and at not in lent and not any(p.at == at for p in unexpired(self.store, self.clock)):
            check_promised(state, at)

    def newest_within(self, state: TableState, last_kept: cut.Seqs) -> TableState | None:
        """The newest state whose slices contain nothing after ``last_kept`` in the lanes of ``last_kept``.

        None if all such states have expired, or are older than the last restore or the last BASE that rewrites.
        """

        def fits(past: TableState) -> bool:
            return (past.restored, past.rewritten) == (state.restored, state.rewritten) and all(
                slice_cut.get(lane, 0) <= seq for slice_cut in past.slices.cuts() for lane, seq in last_kept.items()
            )

        if fits(state):
            return state
        table = state.head - 1
        while table >= state.oldest_continued:
            newest: TableState | None = None
            first = table
            for past in self._states_up_to(table):
                first = min(first, past.head)
                if past.head >= state.oldest_retained and fits(past):
                    newest = past
            if newest is not None:
                return newest
            table = first - 1
        return None

    def live_files(self, state: TableState, at: Cut) -> list[LiveFile]:
        """Files of folds, and of live commits that are not in slices or folds for all file groups, in version order.

        Files of folds come first; their registers contain their versions, so their position does not matter.
        """
        return [*self._fold_files(state), *self.committed_files(state, state.log_start(), at.lanes)]

    def committed_files(self, state: TableState, after: cut.Seqs, until: cut.Seqs) -> list[LiveFile]:
        """Files of all live commits after one cut, up to another, in version order."""
        tails = self.commit_log.read_tails({lane: (after.get(lane, 0), last) for lane, last in until.items()})
        live: list[tuple[Data, LogFile]] = []
        for lane, tail in tails.items():
            spans = state.rolled_back.get(lane, ())
            for entry in tail:
                if isinstance(entry, Data) and not cut.in_spans(spans, entry.seq):
                    live.extend((entry, file) for file in entry.files)
        indexes = self.commit_log.sidecars.indexes([file for _, file in live])
        live_files = [
            LiveFile(entry.lane, entry.seq, arrival(entry.stamp, state.lanes[entry.lane].lane_id), file, index)
            for (entry, file), index in zip(live, indexes, strict=True)
        ]
        # The sort is stable: files of one commit keep their order.
        return sorted(live_files, key=lambda live: live.arrival)

    def _fold_files(self, state: TableState) -> list[LiveFile]:
        live = [(fold, file) for fold in state.folds for file in fold.files]
        indexes = self.commit_log.sidecars.indexes([file for _, file in live])
        # Indexes of folds that are not live any more are dropped; a read of an older snapshot fetches them again.
        previous, self._folded = self._folded, {file.file.path: file for _, file in live}
        self.commit_log.sidecars.forget_indexes([file for path, file in previous.items() if path not in self._folded])
        return [
            LiveFile(TABLE_LANE, fold.slot, 0, file, index, fold.to)
            for (fold, file), index in zip(live, indexes, strict=True)
        ]

    def last_while(self, heads: cut.Seqs, holds: Callable[[Header], bool]) -> dict[LaneName, int]:
        """The last entry of each lane up to ``heads`` for which a condition holds; it must hold for none after it."""
        # The result is usually after the archived entries, so the search starts at their end.
        archived = self._state.archived if self._state is not None else {}
        old = {lane: archived[lane] for lane, head in heads.items() if 0 < archived.get(lane, 0) < head}
        last_old = self.commit_log.last_where({lane: (seq, seq + 1) for lane, seq in old.items()}, holds)
        bounds = {lane: (0, head) for lane, head in heads.items()}
        bounds |= {lane: (seq, heads[lane]) if seq > old[lane] else (0, seq) for lane, seq in last_old.items()}
        return self.commit_log.last_where(bounds, holds)


def _proved_entries(state: TableState, existing: cut.Seqs | None) -> cut.Seqs:
    """An entry of each lane that certainly exists: in a slice or a fold, named by the table lane, or ``existing``."""
    proved = cut.highest(state.seen, existing or {})
    for slice_cut in state.reached():
        proved = cut.highest(proved, slice_cut)
    return proved


def _count_valid(tail: list[LaneEntry], rev: int, table_seen: int) -> int:
    """Number of entries that belong to a snapshot with this revision and prefix of the table lane (R2)."""
    for count, entry in enumerate(tail):
        if not _belongs_to(entry, rev, table_seen):
            return count
    return len(tail)


def _belongs_to(entry: LaneEntry, rev: int, seen: int) -> bool:
    """Whether the writer of an entry knew nothing of the table lane after a revision, and after a prefix."""
    table_seen = entry.table_seen if isinstance(entry, Data) else None
    return entry.table_rev <= rev and (table_seen is None or table_seen <= seen)


def _check_says_what_it_has_seen(state: TableState, tails: Mapping[LaneName, list[Entry]]) -> None:
    """Check that every commit that the table lane does not name says what its writer had read of it (PROTOCOL.md, W9).

    Raises:
        NotOneMoment: A commit does not.
    """
    silent = [
        f"lane {lane!r} of stream {state.lanes[lane].stream!r}"
        for lane, tail in tails.items()
        if any(
            isinstance(entry, Data) and entry.table_seen is None and entry.seq > state.seen.get(lane, 0)
            for entry in tail
        )
    ]
    if silent:
        raise NotOneMoment(
            f"an earlier version of weft commits to {', '.join(silent)}, and does not say what its writers knew",
            hint="upgrade these writers; or try again, after a mark (weft mark), because it fails only if they and "
            "others commit meanwhile; or read without moment, and give a savepoint the cut of such a snapshot",
        )


def check_promised(state: TableState, at: Cut) -> None:
    """Refuse a snapshot that has expired and is not a savepoint (PROTOCOL.md, R4, S16 CleanSafe).

    Raises:
        SnapshotExpired: Cleaning may delete its files, or has done so.
    """
    if not state.keeps(at):
        raise SnapshotExpired(
            f"snapshot {at} is no longer kept: snapshots before entry {state.oldest_retained} of the table lane are "
            "expired",
            hint="read a newer snapshot; keep one with a savepoint, or with a longer retention",
        )


def check_writable(state: TableState, features: frozenset[str]) -> None:
    """Refuse to write to a table with a writer feature that is not ``features``.

    Raises:
        UnsupportedFormat: The table has such a feature.
    """
    unknown = sorted(state.writer_features - features)
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot write: {', '.join(unknown)}", hint="upgrade weft"
        )

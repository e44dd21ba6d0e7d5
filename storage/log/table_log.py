"""The table lane as one process has read it: the newest table state, older ones, and new entries.

Each refresh continues after the last entry that was read. Thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from weft.storage.clock import Stamps, stamps_of
from weft.storage.core.log import cut
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.entries import Header, TableEntry, table_entries
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import ARCHIVE, TABLE_LANE, TIMELINE, LaneName, Path, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import Conflict, CorruptData, NotFound, TableError
from weft.storage.log.archived_entries import Slot
from weft.storage.log.checkpoint_store import Checkpoints
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.log.entry_header import NO_ENTRY, next_header
from weft.storage.store.object_store import normalise_errors

MAX_PUBLISH_TRIES: Final = 100  # each lost race is an entry of another process
LOOKS: Final = 8
"""Searches for a newer checkpoint while as many entries are published as there are between two checkpoints."""

T = TypeVar("T", bound=TableEntry)


class TableLog:
    """The table lane of one table, as far as this process has read it; and the commit log with all lanes."""

    def __init__(self, env: Environment, stamps: Stamps) -> None:
        self.env, self.store, self.clock, self.stamps = env, env.store, env.clock, stamps
        self.commit_log = CommitLog(env)
        self.commit_log.archives.read_archivable = self.archivable
        self._lock = threading.RLock()
        self.checkpoints = Checkpoints(env)
        self._state: TableState | None = None
        self._opened_at = 0
        """Head of the checkpoint that the state begins from; 0 if there was none."""
        self._look_at = 0
        """Head from which on a newer checkpoint is looked for; see `_begin_again`."""
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
        return self.refresh_with_doubts(None)

    def refresh_with_doubts(self, doubts: list[Slot] | None) -> TableState:
        """`refresh`; ``doubts``: see `CommitLog.read_on`."""
        with self._lock:
            window = 1
            if self._state is None:
                self._state = self.checkpoints.newest_table(self.commit_log)
                window, doubts = self.env.tuning.first_table_window, None
                self._opened_at = self._state.head if self._state is not None else 0
                self._look_at = self._opened_at + self.env.tuning.table_checkpoint_every
            head = self._state.head if self._state is not None else 0
            for part in self.commit_log.read_on(TABLE_LANE, head, window=window, doubts=doubts):
                self._state = apply_entries(self._state, table_entries(part))
                self.commit_log.forget_before(TABLE_LANE, part[-1].seq)
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
            # If there is none yet, another process may be writing it.
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
        """Whether a lane is closed, in a state at least as new as the last one that was read, or was retired."""
        assert self._state is not None, "the table was opened"
        lane_state = self._state.lanes.get(lane)
        return self.was_retired(lane) if lane_state is None else lane_state.closed is not None

    def was_retired(self, lane: LaneName) -> bool:
        """Whether a lane was added and retired (PROTOCOL.md, C6). Its entries stay in the store.

        If there are entries, the table is read again: the lane may have been added since.
        """
        archives = self.commit_log.archives
        if lane not in self._retired and archives.is_taken((lane, 1)) and lane not in self.refresh().lanes:
            self._retired.add(lane)
        return lane in self._retired

    def lower_bound(self, lane: LaneName) -> int:
        """An entry of a lane that exists according to the state that was read last; 0 if it names none."""
        return self._state.seen.get(lane, 0) if self._state is not None else 0

    @property
    def archived(self) -> cut.Seqs:
        """The last slot of each lane that may be archived, in the state that was read last; empty before."""
        return self._state.archived if self._state is not None else {}

    def lacks_first(self) -> bool:
        """Whether later entries exist; called if the first entry was not found."""
        if not self.store.list(Path(TIMELINE)) and not self.store.list(Path(ARCHIVE)):
            return False
        with normalise_errors(slot_path(TABLE_LANE, 1)):
            return not self.commit_log.archives.is_taken((TABLE_LANE, 1))

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
        *_, past = self.states_up_to(table)
        return past

    def states_up_to(self, table: int) -> Iterator[TableState]:
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

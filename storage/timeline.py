"""The timeline as one process knows it: table state at the head or in the past, and the lanes' entries a snapshot
needs.

Knowledge only grows: every refresh reads forward from what is known. Safe for use from several threads.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from storage.clock import Clock, Stamps, arrival
from storage.commit_log import CommitLog, lane_entries, new_id, read_table_lane
from storage.core import cut
from storage.core.cut import Cut
from storage.core.entries import Data, Entry, LaneEntry, TableEntry
from storage.core.names import TABLE_LANE, LaneName
from storage.core.slices import LiveFile, covered, live_slices, log_start
from storage.core.timeline import TableState, fold_table
from storage.errors import Conflict, CorruptData, InvalidInput, NotFound, UnsupportedFormat
from storage.object_store import ObjectStore

MAX_PUBLISH_TRIES: Final = 100  # each lost try means that another process got something done
MAX_READ_TRIES: Final = 10  # a re-read is due only when a compaction overtook the one before

T = TypeVar("T", bound=TableEntry)


class Timeline:
    """All lanes of one table, folded as far as they have been read."""

    def __init__(self, store: ObjectStore, clock: Clock, stamps: Stamps) -> None:
        self.store, self.clock, self.stamps = store, clock, stamps
        self.log = CommitLog(store, clock)
        self._lock = threading.RLock()
        self._entries: list[TableEntry] = []
        self._state: TableState | None = None

    def refresh(self) -> TableState:
        """Table state at the newest contiguous prefix of the table lane.

        Raises:
            NotFound: There is no table.
        """
        with self._lock:
            fresh = read_table_lane(self.log, len(self._entries))
            if fresh:
                self._state = fold_table(self._state, fresh)
                self._entries.extend(fresh)
                self.stamps.observe(max(entry.stamp for entry in fresh))
            if self._state is None:
                raise NotFound(
                    f"there is no table at {self.store.uri}", hint="check the path, or create it: Table.create"
                )
            return self._state

    def at(self, table: int) -> TableState:
        """Table state of an older prefix.

        Raises:
            NotFound: The table lane is not that long.
        """
        state = self.refresh()
        if table == state.head:
            return state
        with self._lock:
            past = fold_table(None, self._entries[:table])
        if past is None or past.head != table:
            raise NotFound(f"the table lane has {state.head} entries, not {table}", hint="is it a cut of this table?")
        return past

    def publish(self, build: Callable[[TableState, int, Entry], T | None]) -> T | None:
        """Append one entry to the table lane, on top of whatever others append meanwhile.

        Args:
            build: From (newest state, next slot, last entry) the entry to publish, or None if there is no need any
                more. Called anew after every lost race, so that it checks against what won.

        Raises:
            Conflict: The race was lost too many times.
            CommitUnknown: See `CommitLog.publish`.
        """
        for _ in range(MAX_PUBLISH_TRIES):
            state = self.refresh()
            entry = build(state, state.head + 1, self._entries[-1])
            if entry is None:
                return None
            winner = self.log.publish(entry)
            if winner.commit_id == entry.commit_id:
                self.refresh()
                return entry
        raise Conflict(
            f"lost {MAX_PUBLISH_TRIES} races for the table lane", hint="fewer processes should compact this table"
        )

    def header(self, seq: int, last: Entry) -> dict[str, Any]:
        """Header fields of an entry for slot ``seq`` of the table lane, after ``last``."""
        return {
            "lane": TABLE_LANE,
            "seq": seq,
            "epoch": 0,
            "commit_id": new_id(),
            "prev_id": last.commit_id,
            "table_rev": 0,
            "stamp": self.stamps.next(self.clock),
            "committed_at_ms": max(self.clock.now_ms(), last.committed_at_ms),
        }

    def newest_cut(self) -> tuple[TableState, Cut]:
        """The head snapshot: T first, strictly after it every lane (rules R1 to R3)."""
        for _ in range(MAX_READ_TRIES):
            state = self.refresh()
            start = self._log_start(state, state.head, None)
            lanes = {}
            for lane in state.lanes:
                known = start.get(lane, 0)
                tail = lane_entries(self.log.read_after(lane, known))
                lanes[lane] = known + _committed(tail, state.rev)
                self.log.forget_before(lane, known)
            newest = {group: chain[-1].file for group, chain in state.slices.items()}
            if all(cut.within(file.cut, lanes) for file in newest.values()):
                return state, Cut(state.head, lanes)
        raise CorruptData(
            f"slices of {self.store.uri} hold commits that no lane has", hint="entries were removed: restore them"
        )

    def cut_at(self, moment: dt.datetime) -> tuple[TableState, Cut]:
        """The snapshot that a reader would have got at a time, as the commits' own clocks tell it.

        Raises:
            InvalidInput: The time has no zone, or lies before the table.
        """
        if moment.tzinfo is None:
            raise InvalidInput(f"as_of {moment} has no time zone", hint="give an aware datetime, for example in UTC")
        limit = int(moment.timestamp() * 1000)
        self.refresh()
        table = sum(1 for entry in self._entries if entry.committed_at_ms <= limit)
        if table == 0:
            raise InvalidInput(
                f"as_of {moment}: the table did not exist yet",
                hint=f"it was created at {_moment(self._entries[0].committed_at_ms)}",
            )
        past = self.at(table)
        return past, Cut(table, {lane: self._last_before(lane, limit) for lane in past.lanes})

    def exact_cut(self, wanted: Cut) -> tuple[TableState, Cut]:
        """The snapshot of a cut.

        Raises:
            NotFound: The table has not got that far, or has no such lane.
        """
        state = self.at(wanted.table)
        for lane, seq in wanted.lanes.items():
            if lane not in state.lanes or (seq and self.log.entry(lane, seq) is None):
                raise NotFound(f"cut {wanted}: lane {lane!r} has no entry {seq}", hint="is it a cut of this table?")
        return state, wanted

    def live_files(self, state: TableState, at: Cut) -> list[LiveFile]:
        """Log files of all commits that no slice of the snapshot holds for all file groups; in version order."""
        start = self._log_start(state, at.table, at.lanes)
        found = []
        for lane, until in at.lanes.items():
            for entry in self.log.read_after(lane, start.get(lane, 0), until):
                if isinstance(entry, Data):
                    found.extend(self._files(state, entry))
        # Stable: files of one commit keep their place in it.
        return sorted(found, key=lambda live: live.arrival)

    def _files(self, state: TableState, entry: Data) -> list[LiveFile]:
        lane_id = state.lanes[entry.lane].lane_id
        return [
            LiveFile(entry.lane, entry.seq, arrival(entry.stamp, lane_id), file, self.log.index(file))
            for file in entry.files
        ]

    def _log_start(self, state: TableState, table: int, lanes: cut.Seqs | None) -> Mapping[LaneName, int]:
        if lanes is None:
            newest = {group: chain[-1].file for group, chain in state.slices.items()}
            return log_start(newest, state.covered[-1][1] if state.covered else {})
        return log_start(live_slices(state, table, lanes), covered(state, table, lanes))

    def _last_before(self, lane: LaneName, limit_ms: int) -> int:
        """Last entry committed at ``limit_ms`` or before; commit times ascend within a lane."""
        low, high = 0, self.log.head(lane) + 1
        while high - low > 1:
            middle = (low + high) // 2
            entry = self.log.entry(lane, middle)
            assert entry is not None, "a slot below the head is never free"
            if entry.committed_at_ms <= limit_ms:
                low = middle
            else:
                high = middle
        return low


def _committed(tail: list[LaneEntry], rev: int) -> int:
    """How many entries belong to a snapshot that knows schema revision ``rev`` (rule R2)."""
    for count, entry in enumerate(tail):
        if entry.table_rev > rev:
            return count
    return len(tail)


def _moment(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="milliseconds")


def check_writable(state: TableState, known: frozenset[str]) -> None:
    """Refuse to write to a table that asks more of its writers than this version does.

    Raises:
        UnsupportedFormat: It does.
    """
    unknown = sorted(state.writer_features - known)
    if unknown:
        raise UnsupportedFormat(
            f"the table uses features that this version cannot write: {', '.join(unknown)}", hint="upgrade weft"
        )

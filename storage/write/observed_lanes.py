"""Tracks what a writer has read of the other lanes, so that its commits are ordered after theirs (PROTOCOL.md, W2, W7).

If versions have equal ordering values, the larger arrival wins, and an arrival begins with a stamp. A stamp is larger
than every stamp that its process has read, whatever the clock says. So a writer reads the lanes before it commits.
Versions of different groups are never compared, so only lanes of streams that share a group with the writer's stream
are read: its *rivals*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from weft.storage.core.log.entries import Entry
from weft.storage.core.log.table_state import Lane, TableState
from weft.storage.core.modes import mode_of
from weft.storage.core.names import TABLE_LANE, LaneName, StreamName
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.log import lane_ends
from weft.storage.log.table_log import TableLog
from weft.storage.log.time_marks import MARK_EVERY_MS

STAMP_REFRESH_MS: Final = 2 * MARK_EVERY_MS
"""With more than `MAX_RIVALS_EACH_COMMIT` rivals, clock differences may decide the order of ties within this time. If a
MARK is published every minute, their lanes are never read."""
MAX_RIVALS_EACH_COMMIT: Final = 8
"""Up to this many rivals are read with the table lane when a commit begins. With more of them the requests of a table
would grow with the square of its lanes; then they are read every two minutes."""


class OtherLanes:
    """What a writer has read of the lanes of its rivals.

    Attributes:
        heads: Last entry of each lane whose stamp is known to be smaller than those of this process.
    """

    def __init__(self, table_log: TableLog, lane: LaneName, stream: StreamName) -> None:
        self._table_log, self._lane, self._stream = table_log, lane, stream
        self._read_ms = 0
        self._refreshed_ms = 0
        self._mark = 0
        self.heads: dict[LaneName, int] = {}

    def read(self, table: TableState) -> None:
        """Read the stamps of the last entries of rivals, so that the next commit wins ties against their commits."""
        self._read_ms = self._table_log.clock.now_ms()
        self._mark = table.mark
        self.heads = lane_ends.observe_heads(self._table_log, table, self.heads, self._rivals(table))

    def read_if_old(self, table: TableState, refreshed_ms: int) -> None:
        """Call `read` if the stamps of rivals were read more than two minutes ago, by this process or for a MARK.

        `read` must have been called before.

        Args:
            table: The newest state, which this process has observed.
            refreshed_ms: Time when it was read, Unix milliseconds.
        """
        now = self._table_log.clock.now_ms()
        if table.mark != self._mark:
            # The stamp of the MARK is larger than those of the commits that it names (T1). It was published after the
            # table lane was read the last time.
            self._mark, self._read_ms = table.mark, max(self._read_ms, self._refreshed_ms)
        self._refreshed_ms = refreshed_ms
        # Also read if the clock was set back.
        if not 0 <= now - self._read_ms < STAMP_REFRESH_MS:
            self.read(table)

    def refresh(self, table: TableState) -> TableState:
        """Read the table lane on and, in the same round of requests, the lanes of rivals, if there are few of them.

        So the next commit wins ties against commits that are visible now. `read_contested` reads the other lanes.

        Args:
            table: The newest state that the writer knows.

        Returns:
            The newest state.
        """
        rivals = self._ordered_rivals(table)
        if len(rivals) > MAX_RIVALS_EACH_COMMIT:
            return self._table_log.refresh()
        tails = self._table_log.commit_log.read_tails({TABLE_LANE: (table.head, None), **rivals})
        if tails.pop(TABLE_LANE):
            table = self._table_log.refresh()
            new_rivals = self._ordered_rivals(table).keys() - rivals.keys()
            if new_rivals and len(rivals) + len(new_rivals) <= MAX_RIVALS_EACH_COMMIT:
                self.heads |= lane_ends.observe_heads(self._table_log, table, self.heads, new_rivals)
        self._observe(tails)
        return table

    def _ordered_rivals(self, table: TableState) -> dict[LaneName, tuple[int, int | None]]:
        """The lanes of `_unread` that share a group with ordering columns, without those of `read_contested`."""
        schema = table.schema
        ordered_groups = frozenset(name for name in schema.stream(self._stream).groups if schema.group(name).ordering)
        contested = {lane.name for lane in self._sharing(table, _commit_ordered_groups(schema, self._stream))}
        return {name: ends for name, ends in self._unread(table, ordered_groups).items() if name not in contested}

    def read_contested(self, table: TableState) -> None:
        """Rule W7: read the stamps of all commits that the next commit of this lane must be ordered after.

        These are the visible commits of streams that share a group in commit order with this lane's stream. If there is
        such a group, this takes one round of requests: the next slot of each of their lanes, and the next slot of the
        table lane, which names new lanes.
        """
        contested = _commit_ordered_groups(table.schema, self._stream)
        if not contested:
            return
        tails = self._table_log.commit_log.read_tails(
            {TABLE_LANE: (table.head, None), **self._unread(table, contested)}
        )
        if tails.pop(TABLE_LANE):
            table = self._table_log.refresh()
        if any(lane not in self.heads for lane in self._unread(table, contested)):
            self.read(table)
            return
        self._observe(tails)

    def _observe(self, tails: Mapping[LaneName, Sequence[Entry]]) -> None:
        """Let later stamps of this process be larger than those of entries, by lane."""
        for lane, tail in tails.items():
            for entry in tail:
                self._table_log.stamps.observe(entry.stamp)
            if tail:
                self.heads[lane] = tail[-1].seq
                self._table_log.commit_log.forget_before(lane, tail[-1].seq)

    def _rivals(self, table: TableState) -> Collection[LaneName]:
        """The other lanes of streams that share a group with this lane's stream."""
        groups = frozenset(table.schema.stream(self._stream).groups)
        return {lane.name for lane in self._sharing(table, groups)}

    def _unread(self, table: TableState, groups: frozenset[str]) -> dict[LaneName, tuple[int, int | None]]:
        """Other lanes of streams that feed one of some groups, if they may have unread commits.

        Returns:
            For each lane the last entry that was read, and the end of a closed lane; None if it is open.
        """
        return {
            lane.name: (self.heads.get(lane.name, 0), lane.closed)
            for lane in self._sharing(table, groups)
            if lane.closed is None or lane.closed > self.heads.get(lane.name, 0)
        }

    def _sharing(self, table: TableState, groups: frozenset[str]) -> list[Lane]:
        """The other lanes of streams that feed one of these groups."""
        streams = {stream.name for stream in table.schema.streams if groups.intersection(stream.groups)}
        return [lane for lane in table.lanes.values() if lane.name != self._lane and lane.stream in streams]


def _commit_ordered_groups(schema: TableSchema, stream: StreamName) -> frozenset[str]:
    """The groups of a stream in which the order of commits decides which version wins."""
    groups = (schema.group(name) for name in schema.stream(stream).groups)
    return frozenset(group.name for group in groups if mode_of(group).in_commit_order(group))

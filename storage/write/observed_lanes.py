"""What a writer knows of the other lanes, so that its commits come after all that it could see (rules W2, W7).

Versions that tie in their ordering values are decided by arrival, and arrival begins with a stamp. A stamp is larger
than every stamp that its process has seen, whatever its clock says; so what matters is what it has looked at.
"""

from __future__ import annotations

from typing import Final

from storage.core.log.table_state import TableState
from storage.core.modes import mode_of
from storage.core.names import TABLE_LANE, LaneName, StreamName
from storage.core.schema.table_schema import TableSchema
from storage.log.table_log import TableLog

STAMP_REFRESH_MS: Final = 60_000  # how far ties may be ordered by skewed clocks instead of by what was seen


class OtherLanes:
    """The ends of all lanes as one writer has seen them last.

    Attributes:
        heads: Per lane the last entry whose stamp was seen.
    """

    def __init__(self, table_log: TableLog, lane: LaneName, stream: StreamName) -> None:
        self._table_log, self._lane, self._stream = table_log, lane, stream
        self._read_ms = 0
        self.heads: dict[LaneName, int] = {}

    def read(self, table: TableState) -> None:
        """Learn the stamps of all lanes' heads: everything committed before now loses ties to what is appended next."""
        self._read_ms = self._table_log.clock.now_ms()
        self.heads = self._table_log.heads(table, self.heads)
        newest = self._table_log.commit_log.read_tails(
            {lane: (max(0, head - 1), head) for lane, head in self.heads.items()}
        )
        for lane, tail in newest.items():
            for entry in tail:
                self._table_log.stamps.observe(entry.stamp)
            self._table_log.commit_log.forget_before(lane, self.heads[lane] - 1)

    def read_if_old(self, table: TableState) -> None:
        """`read`, if the last time was a minute ago. Requires that `read` was called once."""
        elapsed = self._table_log.clock.now_ms() - self._read_ms
        # A clock that jumped backwards is as good a reason as one that moved on.
        if not 0 <= elapsed < STAMP_REFRESH_MS:
            self.read(table)

    def look(self, table: TableState) -> None:
        """Rule W7: learn the stamps of all commits that the next one of this lane must come after.

        These are the visible ones of streams that share a group in commit order with this lane's stream. If the stream
        has such a group, this costs one round of requests: the next slot of each of their lanes, and of the table lane,
        which tells of lanes that are new.
        """
        if not _in_commit_order(table.schema, self._stream):
            return
        log = self._table_log.commit_log
        wanted = self._unseen(table)
        tails = log.read_tails({TABLE_LANE: (table.head, None), **wanted})
        if tails.pop(TABLE_LANE):
            table = self._table_log.refresh()
        if any(lane not in self.heads for lane in self._unseen(table)):
            self.read(table)
            return
        for lane, tail in tails.items():
            for entry in tail:
                self._table_log.stamps.observe(entry.stamp)
            if tail:
                self.heads[lane] = tail[-1].seq
                log.forget_before(lane, tail[-1].seq)

    def _unseen(self, table: TableState) -> dict[LaneName, tuple[int, int | None]]:
        """Per lane that matters the last entry that was seen, and its end if it is closed."""
        own = _in_commit_order(table.schema, self._stream)
        shared = {stream.name for stream in table.schema.streams if own.intersection(stream.groups)}
        return {
            lane.name: (self.heads.get(lane.name, 0), lane.closed)
            for lane in table.lanes.values()
            if lane.name != self._lane
            and lane.stream in shared
            and (lane.closed is None or lane.closed > self.heads.get(lane.name, 0))
        }


def _in_commit_order(schema: TableSchema, stream: StreamName) -> frozenset[str]:
    """The groups of a stream in which the order of commits decides."""
    groups = (schema.group(name) for name in schema.stream(stream).groups)
    return frozenset(group.name for group in groups if mode_of(group).in_commit_order(group))

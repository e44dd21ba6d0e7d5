"""Marks: entries of the table lane that record which commits exist at a time, which settles times (PROTOCOL.md, S24).

Processes that write to the table record a mark about once a minute. A mark that cannot be recorded is not an error: the
next mark covers more commits.
"""

from __future__ import annotations

import contextlib
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.entries import Mark
from weft.storage.core.log.table_state import TableState
from weft.storage.errors import TableError
from weft.storage.log import lane_ends
from weft.storage.log.table_log import TableLog

MARK_EVERY_MS: Final = 60_000  # between two marks the clocks of writers decide which commits a time includes


def publish_mark(table_log: TableLog) -> Mark:
    """Record a mark now.

    Raises:
        Conflict, CommitUnknown, StoreUnavailable: See `TableLog.publish`.
    """
    mark = table_log.publish(lambda state: _mark(table_log, state, {}))
    assert mark is not None, "publishing ends with a mark or an error"
    return mark


def _mark(table_log: TableLog, state: TableState, lower_bounds: cut.Seqs) -> Mark:
    """A mark that follows a state; ``lower_bounds``: an entry that exists, by lane, which saves requests."""
    began_at_ms = max(table_log.clock.now_ms(), state.committed_at_ms)
    # The stamp of the mark must be larger than those of the commits that it names (T1), so it is taken afterwards.
    lanes = cut.highest(state.seen, lane_ends.observe_heads(table_log, state, lower_bounds))
    header = table_log.header(state)
    header = header.model_copy(update={"committed_at_ms": max(began_at_ms, header.committed_at_ms)})
    return Mark(**header, began_at_ms=began_at_ms, lanes=lanes)


class Marker:
    """Records the marks of one process when they are due."""

    def __init__(self, table_log: TableLog) -> None:
        self._table_log = table_log
        self._mark = 0
        self._since_ms: int | None = None

    def mark_if_due(
        self, state: TableState, lower_bounds: cut.Seqs | None = None, *, unless_idle: bool = False
    ) -> None:
        """Record a mark if the newest one in ``state`` is older than a minute; a failure is suppressed.

        A process whose clock is behind the newest entry of the table lane records no mark.

        Args:
            state: The newest state that this process has read.
            lower_bounds: An entry that exists, by lane.
            unless_idle: Record nothing if nothing was committed since the newest mark.
        """
        if not self._is_due(state):
            return
        newest = state.mark

        def build(state: TableState) -> Mark | None:
            if state.mark != newest or self._table_log.clock.now_ms() < state.committed_at_ms:
                return None  # another process was first, or its clock is ahead
            mark = _mark(self._table_log, state, lower_bounds or {})
            is_idle = unless_idle and state.mark == state.head and cut.within(mark.lanes, state.seen)
            return None if is_idle else mark

        with contextlib.suppress(TableError):
            mark = self._table_log.publish(build)
            self._mark = mark.seq if mark is not None else self._mark
        # After a failure, too, this process waits a minute before it tries again.
        self._since_ms = self._table_log.clock.now_ms()

    def _is_due(self, state: TableState) -> bool:
        now = self._table_log.clock.now_ms()
        if self._since_ms is None:
            self._mark, self._since_ms = state.mark, state.marked_at_ms
        elif self._mark != state.mark:
            # A mark that is new to this process counts as recorded now, by the clock of this process.
            self._mark, self._since_ms = state.mark, now
        self._since_ms = min(self._since_ms, now)  # if the clock was set back, the minute begins again
        return now - self._since_ms >= MARK_EVERY_MS

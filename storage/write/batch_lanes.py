"""Which lane a batch without a query id takes: one without a writer, so that lanes stay few (PROTOCOL.md, W10).

A batch finishes its lane with its own commit, and a later batch takes it with a claim in the very next slot. Of several
that take one lane at the same time one wins the slot. The others did not fence it: they take another lane. So a stream
has as many lanes for batches as there were batches at the same time, and those of batches that died until they are
fenced (`weft.storage.services.clean`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from weft.storage.core.log.entries import Claim, Data, Header
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import LaneName, StreamName, is_batch_lane, lane_name
from weft.storage.log import lane_ends
from weft.storage.log.table_log import TableLog

_STREAM_LETTERS: Final = 40  # letters of the stream's name in the name of the lane, which has at most 64
_FIRST_ROUND: Final = 2  # lanes whose ends are read at once; each further round reads twice as many


def batch_lanes(table: TableState) -> list[LaneName]:
    """The open lanes that were added for batches, of all streams."""
    return [lane.name for lane in table.lanes.values() if lane.closed is None and is_batch_lane(lane.name)]


def free_lanes(table_log: TableLog, table: TableState, stream: StreamName) -> Iterator[tuple[LaneName, Header | None]]:
    """The lanes for batches of a stream that no writer is in, each with its last entry, or None if it has no entry.

    Batches begin at different lanes, so that those that begin together seldom want the same one. Lanes without entries
    come last: the batch that added one is about to claim it.

    Args:
        table_log: The table.
        table: Its newest state.
        stream: The stream.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    lanes = [lane for lane in batch_lanes(table) if table.lanes[lane].stream == stream]
    if not lanes:
        return
    first = int(table_log.env.ids.new()[:8], 16) % len(lanes)
    lanes = [*lanes[first:], *lanes[:first]]
    empty: list[LaneName] = []
    start, count = 0, _FIRST_ROUND
    while start < len(lanes):
        for lane, last in lane_ends.last_entries(table_log, table, lanes[start : start + count]).items():
            if last is None:
                empty.append(lane)
            elif isinstance(last, Claim | Data) and last.finishes:
                yield lane, last
        start, count = start + count, 2 * count
    yield from ((lane, None) for lane in empty)


def new_lane(table_log: TableLog, table: TableState, stream: StreamName) -> LaneName:
    """The name of a lane for batches of a stream that the table does not have, and has not had."""
    lower_names = {name.lower() for name in table.lanes}
    names = (lane_name(f"{stream[:_STREAM_LETTERS]}-batches-{number}") for number in itertools.count(1))
    return next(name for name in names if name.lower() not in lower_names and not table_log.has_ended(name))

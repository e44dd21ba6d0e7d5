"""Time travel: finds the cut for a time, a savepoint or the text of a cut (PROTOCOL.md, S24 TimeStable).

The time of a commit is taken from the clock of its writer, and the commit may become visible later. So MARK entries
decide first: commits recorded before the last MARK up to the time are included, commits not yet recorded by the first
MARK after the time are not. Only between these two MARKs do the times of the commits decide. Once there is a MARK after
a time, later commits cannot change its cut: the time is settled (PROTOCOL.md, "Times").

A cut that is one moment (PROTOCOL.md, S31) does not depend on the clocks of writers: it is the moment at which the
newest entry of the table lane up to the time was published, which the first MARK after that entry settles.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.cut import PREFIX, Cut, parse_cut
from weft.storage.core.log.entries import Mark
from weft.storage.core.log.table_state import LiveSavepoint, TableState
from weft.storage.core.names import TABLE_LANE
from weft.storage.errors import InvalidInput, NotFound, NotSettled
from weft.storage.log import lane_ends, snapshot_cut
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.times import format_time, milliseconds

FIRST_WINDOW: Final = 4  # entries of the table lane that are read first: a MARK is recorded each minute
LAST_WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class Moment:
    """The table at a time.

    Attributes:
        state: The table state.
        at: The cut.
        seen: Last entry of each lane that a MARK includes. Later entries up to the cut are included by their commit
            times.
        settled: Whether the cut can no longer change.
    """

    state: TableState
    at: Cut
    seen: cut.Seqs
    settled: bool


def find_moment(table_log: TableLog, limit: int) -> Moment | None:
    """Find the table at a time (milliseconds since 1970 UTC), expired or not; None before the table was created."""
    newest = table_log.refresh()
    table = _last_entry(table_log, newest, limit)
    if table == 0:
        return None
    state = table_log.at(table)
    mark = _first_mark_after(table_log, newest, table, limit)
    heads = lane_ends.heads(table_log, newest, newest.seen) if mark is None else mark.lanes
    # The table lane records the end of a closed lane. Entries that a MARK includes are never excluded again.
    ends = {name: lane.closed for name, lane in state.lanes.items()}
    low = {name: state.seen.get(name, 0) if end is None else end for name, end in ends.items()}
    high = {name: max(low[name], heads.get(name, 0)) if end is None else end for name, end in ends.items()}
    lanes = table_log.commit_log.last_where(
        {name: (low[name], high[name]) for name in low}, lambda entry: entry.committed_at_ms <= limit
    )
    state_at_cut, at = snapshot_cut.longest_cut(table_log, table, lanes)
    return Moment(state_at_cut, at, cut.lowest(low, at.lanes), mark is not None)


def find_entry_moment(table_log: TableLog, limit: int) -> Moment | None:
    """Find the moment when the newest entry of the table lane up to a time was published (PROTOCOL.md, R7).

    Args:
        table_log: The log of the table.
        limit: The time in milliseconds since 1970 UTC.

    Returns:
        The table at that moment; None before the table was created.

    Raises:
        NotOneMoment: A version of weft without rule W9 (PROTOCOL.md) has committed between that entry and the next
            MARK.
    """
    newest = table_log.refresh()
    table = _last_entry(table_log, newest, limit)
    if table == 0:
        return None
    state = table_log.at(table)
    # The lanes in a MARK were read after the table lane's entries before it (PROTOCOL.md, T1).
    mark = _first_mark_after(table_log, newest, table, -1)
    ends = lane_ends.heads(table_log, newest, newest.seen) if mark is None else mark.lanes
    lanes = snapshot_cut.ends_at_moment(table_log, state, ends)
    return Moment(state, Cut(table, lanes), lanes, mark is not None)


def _last_entry(table_log: TableLog, newest: TableState, limit: int) -> int:
    """The last entry of the table lane up to a time; 0 if there is none. Its times ascend."""
    ends = lane_ends.last_while(table_log, {TABLE_LANE: newest.head}, lambda entry: entry.committed_at_ms <= limit)
    return ends[TABLE_LANE]


def snapshot_at(
    table_log: TableLog, as_of: dt.datetime | str | None, *, settled: bool = False, moment: bool = False
) -> Snapshot:
    """The snapshot of a time, a savepoint or a cut.

    Args:
        table_log: The log of the table.
        as_of: An aware datetime, the name of a savepoint, or the text of a cut; None for the newest snapshot.
        settled: Refuse a time whose cut may still change.
        moment: The newest snapshot, or the snapshot of a time, must be one moment: see `TableLog.newest_cut` and
            `find_entry_moment`.

    Raises:
        InvalidInput: ``as_of`` has none of these forms, or is a time before the table was created.
        NotFound: The savepoint or cut does not exist.
        SnapshotExpired: The snapshot is older than cleaning retains.
        NotSettled: The cut of the time may still change, and ``settled`` is true.
        NotOneMoment: See `TableLog.newest_cut`.
    """
    if as_of is None:
        return Snapshot(table_log, *snapshot_cut.newest_cut(table_log, moment=moment))
    if isinstance(as_of, dt.datetime):
        result = cut_at(table_log, as_of, settled=settled, moment=moment)
        return Snapshot(table_log, result.state, result.at, moment, settled=result.settled)
    return Snapshot(table_log, *snapshot_cut.exact_cut(table_log, named_cut(table_log, as_of)))


_OTHER_FORMS: Final = "; or use a time such as 2026-11-20T10:30:00Z, or a cut such as cut:1:7:orders=12"


def find_savepoint(state: TableState, name: str, *, instead: str = "") -> LiveSavepoint:
    """Find the savepoint of a name.

    Args:
        state: The state of the table.
        name: The name.
        instead: End of the hint, which names other forms of ``as_of``.

    Raises:
        NotFound: The savepoint does not exist; the hint lists the savepoints.
    """
    savepoint = state.savepoints.get(name)
    if savepoint is None:
        existing = f"savepoints: {', '.join(state.savepoints)}" if state.savepoints else "the table has no savepoints"
        raise NotFound(f"the table has no savepoint {name!r}", hint=f"{existing}{instead}")
    return savepoint


def named_cut(table_log: TableLog, name: str) -> Cut:
    """Resolve a text, ``str`` of a cut or the name of a savepoint, to a cut without those of referenced tables.

    Raises:
        InvalidInput: The name is not a text, or is an invalid cut.
        NotFound: The savepoint does not exist.
    """
    if not isinstance(name, str):
        raise InvalidInput(
            f"as_of {name!r} is not a time, cut or savepoint",
            hint="pass a datetime with a time zone, str(snapshot.cut), or a savepoint's name",
        )
    if name.startswith(PREFIX):
        return parse_cut(name).of_table()
    state = table_log.refresh()
    if name not in state.savepoints and _is_time(name):
        raise InvalidInput(
            f"as_of {name!r} is a text, not a time",
            hint=f"pass a datetime with a time zone: datetime.datetime.fromisoformat({name!r})",
        )
    return find_savepoint(state, name, instead=_OTHER_FORMS).at


def _is_time(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return ":" in text  # commands take a text without a colon for a name


def cut_at(table_log: TableLog, time: dt.datetime, *, settled: bool = False, moment: bool = False) -> Moment:
    """Find the table at a time, and check that its files are retained.

    Args:
        table_log: The log of the table.
        time: The time, an aware datetime.
        settled: Refuse a time whose cut may still change.
        moment: See `find_entry_moment`.

    Raises:
        InvalidInput: The time has no zone, or is before the table was created.
        SnapshotExpired: The snapshot is older than cleaning retains.
        NotSettled: The cut of the time may still change, and ``settled`` is true.
        NotOneMoment: See `find_entry_moment`.
    """
    find = find_entry_moment if moment else find_moment
    result = find(table_log, milliseconds(time))
    if result is None:
        raise InvalidInput(
            f"as_of {time}: the table did not exist yet",
            hint=f"it was created at {format_time(table_log.created_at_ms())}",
        )
    snapshot_cut.check_kept(table_log, result.at)
    if settled and not result.settled:
        raise NotSettled(
            f"as_of {time}: the table at this time may still change, because no mark was recorded since",
            hint=f"record a mark (weft mark, Table.mark) and try again, or read a cut; at present it is {result.at}",
        )
    return result


def _first_mark_after(table_log: TableLog, newest: TableState, table: int, limit_ms: int) -> Mark | None:
    """The first MARK after entry ``table`` of the table lane that began after a time; None if there is none yet."""
    if newest.mark <= table or newest.marked_at_ms <= limit_ms:
        return None
    log = CommitLog(table_log.env)  # a separate log, so that these entries are not cached
    after, window = max(table, newest.first_mark - 1), FIRST_WINDOW
    while after < newest.mark:
        until = min(after + window, newest.mark)
        for entry in read_table_lane(log, after, until):
            if isinstance(entry, Mark) and entry.began_at_ms > limit_ms:
                return entry
        log.forget_before(TABLE_LANE, until)
        after, window = until, min(2 * window, LAST_WINDOW)
    return None

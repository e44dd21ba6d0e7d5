"""What a time means: the one place where a time becomes a cut (S24 TimeStable).

A commit says when it was made by the clock of its writer, and may become visible later than that. So a time is read
between the two MARKs around it: what was seen before it was recorded is in, what was not seen by the first MARK after
it is not, and only between them the commits' own clocks decide. Once there is a MARK after it, nothing that comes later
can change the answer: the time is settled. PROTOCOL.md, "Times".
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from storage.core.log import cut
from storage.core.log.cut import PREFIX, Cut, parse_cut
from storage.core.log.entries import Mark
from storage.core.log.table_state import TableState
from storage.core.names import TABLE_LANE
from storage.errors import InvalidInput, NotFound, NotSettled
from storage.log.commit_log import CommitLog, read_table_lane
from storage.log.table_log import TableLog
from storage.read.snapshot import Snapshot

FIRST_WINDOW: Final = 4  # entries of the table lane: a MARK a minute is close by where a table is written
LAST_WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class Moment:
    """What a table was at a time.

    Attributes:
        state: The table state.
        at: The cut.
        seen: Per lane the last entry that is in it whatever clocks say; what follows up to the cut is in it because
            its writer's clock says so.
        settled: Nothing that is still to come can change this.
    """

    state: TableState
    at: Cut
    seen: cut.Seqs
    settled: bool


def find_moment(table_log: TableLog, limit: int) -> Moment | None:
    """What a table was at a time (milliseconds since 1970 UTC), be it kept or not; None: there was no table yet."""
    newest = table_log.refresh()
    table = table_log.last_while({TABLE_LANE: newest.head}, lambda entry: entry.committed_at_ms <= limit)[TABLE_LANE]
    if table == 0:
        return None
    state = table_log.at(table)
    mark = _first_mark_after(table_log, newest, table, limit)
    there = table_log.heads(newest, newest.seen) if mark is None else mark.lanes
    # A closed lane ends where the table lane says; marks that fall back (no version writes them) take nothing away.
    ends = {name: lane.closed for name, lane in state.lanes.items()}
    low = {name: state.seen.get(name, 0) if end is None else end for name, end in ends.items()}
    high = {name: max(low[name], there.get(name, 0)) if end is None else end for name, end in ends.items()}
    lanes = table_log.commit_log.last_where(
        {name: (low[name], high[name]) for name in low}, lambda entry: entry.committed_at_ms <= limit
    )
    past, at = table_log.longest_cut(table, lanes)
    return Moment(past, at, cut.lowest(low, at.lanes), mark is not None)


def snapshot_at(table_log: TableLog, as_of: dt.datetime | str | None, *, settled: bool = False) -> Snapshot:
    """The snapshot of a time, a savepoint or a cut; None: the newest.

    Raises:
        InvalidInput: ``as_of`` is none of these, or before the table existed.
        NotFound: The table has no such savepoint or cut.
        SnapshotExpired: It is older than what is retained.
        NotSettled: It is a time that may still change, and ``settled`` was asked for.
    """
    if as_of is None:
        return Snapshot(table_log, *table_log.newest_cut())
    if isinstance(as_of, dt.datetime):
        found = cut_at(table_log, as_of, settled=settled)
        return Snapshot(table_log, found.state, found.at, settled=found.settled)
    return Snapshot(table_log, *table_log.exact_cut(named_cut(table_log, as_of)))


def find_savepoint(state: TableState, name: str) -> Cut:
    """The snapshot of a savepoint.

    Raises:
        NotFound: There is none of that name; the hint lists those there are.
    """
    kept = state.savepoints.get(name)
    if kept is None:
        known = f"savepoints: {', '.join(state.savepoints)}" if state.savepoints else "it has none"
        raise NotFound(
            f"the table has no savepoint {name!r}",
            hint=f"{known}; or give a time such as 2026-11-20T10:30:00Z, or a cut such as cut:1:7:orders=12",
        )
    return kept.at


def named_cut(table_log: TableLog, name: str) -> Cut:
    """The cut that a text names: its own form, or the name of a savepoint.

    Raises:
        InvalidInput: It is no text, or no cut.
        NotFound: There is no such savepoint.
    """
    if not isinstance(name, str):
        raise InvalidInput(
            f"as_of {name!r} is no moment, cut or savepoint",
            hint="give a datetime with a time zone, str(snapshot.cut), or a savepoint's name",
        )
    return parse_cut(name) if name.startswith(PREFIX) else find_savepoint(table_log.refresh(), name)


def cut_at(table_log: TableLog, moment: dt.datetime, *, settled: bool = False) -> Moment:
    """`find_moment` of a time that can be read.

    Args:
        table_log: The table's.
        moment: The time.
        settled: Refuse a time that is not settled.

    Raises:
        InvalidInput: The time has no zone, or lies before the table.
        SnapshotExpired: What it needs was given up by cleaning.
        NotSettled: It may still change, and that was not wanted.
    """
    found = find_moment(table_log, milliseconds(moment))
    if found is None:
        created = table_log.commit_log.entry(TABLE_LANE, 1)
        assert created is not None, "a table has a first entry"
        raise InvalidInput(
            f"as_of {moment}: the table did not exist yet", hint=f"it was created at {_text(created.committed_at_ms)}"
        )
    table_log.check_kept(found.at)
    if settled and not found.settled:
        raise NotSettled(
            f"as_of {moment}: what the table was then may still change, for no mark was recorded since",
            hint=f"record one (weft mark, Table.mark) and ask again, or ask for a cut; by now it is {found.at}",
        )
    return found


def milliseconds(moment: dt.datetime) -> int:
    """Milliseconds since 1970 UTC, rounded down.

    Raises:
        InvalidInput: The time has no zone.
    """
    if moment.tzinfo is None:
        raise InvalidInput(f"the time {moment} has no time zone", hint="give an aware datetime, for example in UTC")
    return (moment - _EPOCH) // _MILLISECOND


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def _text(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def _first_mark_after(table_log: TableLog, newest: TableState, table: int, limit_ms: int) -> Mark | None:
    """The first MARK after a prefix of the table lane that began after a time; None if there is none yet."""
    if newest.mark <= table or newest.marked_at_ms <= limit_ms:
        return None
    log = CommitLog(table_log.env)  # what is read here is not needed again
    after, window = max(table, newest.first_mark - 1), FIRST_WINDOW
    while after < newest.mark:
        until = min(after + window, newest.mark)
        for entry in read_table_lane(log, after, until):
            if isinstance(entry, Mark) and entry.began_at_ms > limit_ms:
                return entry
        log.forget_before(TABLE_LANE, until)
        after, window = until, min(2 * window, LAST_WINDOW)
    return None

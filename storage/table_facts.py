"""Facts about a table that operators ask for before they act: is a lane open or closed, does the clock agree."""

from __future__ import annotations

from storage.clock import MAX_AHEAD_MS
from storage.core.names import lane_name
from storage.services.restore import check_open
from storage.table import Table


def check_open_lane(table: Table, lane: str) -> None:
    """Refuse a lane that `Table.fence` and `Table.close_lane` refuse.

    Raises:
        NotFound: The table has no such lane.
        Conflict: The lane is closed.
    """
    check_open(table.writable(), table.state(), lane_name(lane))


def is_closed(table: Table, lane: str) -> bool:
    """Whether a lane was closed; also if the table does not list it any more. False if it was never added."""
    return table.writable().has_ended(lane_name(lane))


def clock_lead_ms(table: Table) -> int:
    """Milliseconds by which the time of the newest entry of the table lane is ahead of this machine's clock.

    0 for a lead of up to a minute, by which synchronised clocks may differ. Until this machine's clock has caught up,
    times cannot order commits.
    """
    lead = table.state().committed_at_ms - table.env.clock.now_ms()
    return lead if lead > MAX_AHEAD_MS else 0

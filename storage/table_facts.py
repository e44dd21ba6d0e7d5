"""What operators and services need of a table beside its operations: other sizes of tasks, closed lanes, its clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.storage.clock import MAX_AHEAD_MS
from weft.storage.core.names import lane_name
from weft.storage.environment import open_environment
from weft.storage.table import Table


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


def with_small_tasks(table: Table, task_bytes: int) -> Table:
    """The table opened again: tasks of its compactions and folds read at most these stored bytes, or one file group."""
    tuning = table.env.tuning
    sizes = {
        "shared_file_bytes": min(task_bytes, tuning.shared_file_bytes),
        "fold_file_bytes": min(task_bytes, tuning.fold_file_bytes),
    }
    return Table(table.env.tuned(**sizes))


def open_table_unchecked(uri: str | Path, storage_options: Mapping[str, Any] | None = None) -> Table:
    """A table that may be too damaged to be opened, or may not exist: nothing is read before it is used."""
    return Table(open_environment(uri, storage_options))

"""Result columns and descriptions of restore and undo."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

from weft.storage.operations.operation import Finished, Row
from weft.storage.plural import counted
from weft.storage.services.history.restore import RestoreResult

ROLLBACK_COLUMNS: Final = "lane string, kept_up_to bigint, rolled_back bigint, in_doubt array<bigint>, entry bigint"


def describe_rollback(verb: str, result: RestoreResult) -> str:
    """Describe what a restore or an undo kept of each lane.

    The fencing claim is the last entry of a lane that is rolled back; it is not counted.
    """
    lines = [f"{verb} with entry {result.entry} of the table lane; writers are fenced, and may be started again"]
    for lane, seq in result.kept.items():
        count = result.rolled_back[lane] - 1
        rolled_back_before = result.before.get(lane, 0)
        effect = "nothing new" if rolled_back_before else "it has no later entry"
        if count > 0:
            effect = f"{counted(count, 'entry')} after it rolled back"
        if lane in result.rolled_back_ms:
            effect += " (committed {} to {})".format(*map(_moment, result.rolled_back_ms[lane]))
        if rolled_back_before:
            effect += f"; {counted(rolled_back_before, 'later entry')} had been rolled back before"
        if lane in result.kept_ms:
            effect += f"; what is kept ends at {_moment(result.kept_ms[lane])}"
        lines.append(f"{lane}: kept up to entry {seq}, {effect}")
    for lane, (first, last) in result.in_doubt.items():
        lines.append(f"{lane}: entries {first} to {last} were kept only because of a clock: check them")
    return "\n".join(lines)


def _moment(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def rollback_rows(finished: Finished[Any, RestoreResult]) -> Iterable[Row]:
    """One row per lane. The last entry that is rolled back is the fencing claim, which is not counted."""
    result = finished.result
    return [
        {
            "lane": lane,
            "kept_up_to": slot,
            "rolled_back": max(result.rolled_back[lane] - 1, 0),
            "in_doubt": list(result.in_doubt[lane]) if lane in result.in_doubt else None,
            "entry": result.entry,
        }
        for lane, slot in result.kept.items()
    ]

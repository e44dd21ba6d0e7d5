"""Who writes a lane, for messages to people: its newest claim, and whether the writer was heard of lately."""

from __future__ import annotations

from weft.storage.core.log.entries import Claim
from weft.storage.core.names import LaneName
from weft.storage.errors import TableError
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.heartbeat import SILENT_AFTER_MS, newest_heartbeats
from weft.storage.log.table_log import TableLog
from weft.storage.times import moment_of


def newest_claim(log: CommitLog, lane: LaneName, head: int) -> Claim | None:
    """The newest claim of a lane: the first entry of the epoch of the head, because epochs ascend (PROTOCOL.md, S3).

    Args:
        log: The log.
        lane: The lane.
        head: Its last entry.
    """
    last = log.entry(lane, head) if head else None
    if last is None:
        return None
    older = log.last_where({lane: (0, head)}, lambda entry: entry.epoch < last.epoch)[lane]
    claim = log.entry(lane, older + 1)
    return claim if isinstance(claim, Claim) else None


def present_writer(table_log: TableLog, lane: LaneName, head: int, owner: str) -> tuple[str, bool]:
    """The writer of a lane in words, with the time of its claim; and whether it is certainly running.

    Args:
        table_log: The table.
        lane: The lane.
        head: Its last entry.
        owner: Owner of its newest claim.
    """
    try:
        claim = newest_claim(table_log.commit_log, lane, head)
        beat = newest_heartbeats(table_log.store).get(lane)
    except (TableError, OSError):
        return owner, False
    if claim is None:
        return owner, False
    text = f"{owner}, since {spell_time(claim.committed_at_ms)}"
    if beat is None or beat.epoch < claim.epoch:
        return f"{text}, which has ended", False
    silent_ms = max(0, table_log.clock.now_ms() - beat.at_ms)
    if silent_ms <= SILENT_AFTER_MS:
        return f"{text}, which was alive {silent_ms // 1000} s ago", True
    return f"{text}, which was last heard of at {spell_time(beat.at_ms)}", False


def spell_time(time_ms: int) -> str:
    """A moment in UTC, to the second."""
    return f"{moment_of(time_ms):%Y-%m-%d %H:%M:%S} UTC"

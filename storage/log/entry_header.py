"""Makes the header of every entry that is published (FORMAT.md, "Entries")."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from weft.storage.clock import Stamps
from weft.storage.core.log.entries import Header
from weft.storage.core.names import LaneName
from weft.storage.environment import Environment


class Prefix(Protocol):
    """A prefix of a lane, as a `TableState` or a `LaneState` describes it."""

    @property
    def head(self) -> int:
        """Its length; 0 if it is empty."""

    @property
    def head_id(self) -> str:
        """``commit_id`` of its last entry; "" if it is empty."""

    @property
    def committed_at_ms(self) -> int:
        """``committed_at_ms`` of its last entry; 0 if it is empty."""


class Head(NamedTuple):
    """The last entry of a lane, without the state of the lane."""

    head: int
    head_id: str
    committed_at_ms: int


NO_ENTRY: Final = Head(0, "", 0)
"""The prefix without entries, before the first entry of a lane."""


def next_header(
    lane: LaneName,
    prefix: Prefix,
    *,
    epoch: int,
    table_rev: int,
    stamps: Stamps,
    env: Environment,
    table_seen: int | None = None,
) -> Header:
    """Header of the entry that follows a prefix of a lane.

    Args:
        lane: The lane; `TABLE_LANE` for the table lane.
        prefix: The prefix.
        epoch: Number of the claim under which the entry is written; 0 in the table lane.
        table_rev: Slot of the newest CREATE, SCHEMA or DONE that its writer knows; 0 in the table lane.
        stamps: Gives the stamp, which is larger than all that this process has observed in the table.
        env: Gives the id and the time, which never decreases within a lane.
        table_seen: Of a commit, the length of the prefix of the table lane that its writer had read when it began.

    Raises:
        InvalidInput: The clock is out of the range of stamps.
    """
    return Header(
        lane=lane,
        seq=prefix.head + 1,
        epoch=epoch,
        commit_id=env.ids.new() if table_seen is None else f"{env.ids.new()}-{table_seen}",
        prev_id=prefix.head_id,
        table_rev=table_rev,
        stamp=stamps.next(env.clock),
        committed_at_ms=max(env.clock.now_ms(), prefix.committed_at_ms),
    )

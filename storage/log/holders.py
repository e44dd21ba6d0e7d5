"""Holders: savepoints, open compactions and pins. `clean` keeps the files of the snapshot that each of them names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.table_state import TableState
from weft.storage.log.pins import Pin


@dataclass(frozen=True, slots=True)
class Holder:
    """Something that keeps the files of a snapshot, even if the snapshot is older than the retention time.

    Attributes:
        what: ``savepoint``, ``compaction`` (an open compaction or fold) or ``pin`` (a long reader).
        name: Name of the savepoint, id of the plan, or owner of the pin.
        cut: The snapshot, as text.
        since_ms: Start time, Unix milliseconds; None for pins.
        until_ms: Expiry time of a pin, Unix milliseconds; None for others.
        note: Note of a savepoint.
    """

    what: Literal["savepoint", "compaction", "pin"]
    name: str
    cut: str
    since_ms: int | None = None
    until_ms: int | None = None
    note: str = ""


def find_holders(state: TableState, pins: Iterable[Pin]) -> Iterator[tuple[Holder, Cut]]:
    """All holders of a table, and the snapshots that they keep; ``pins``: the pins that have not expired."""
    for name, savepoint in state.savepoints.items():
        yield Holder("savepoint", name, str(savepoint.at), savepoint.committed_at_ms, note=savepoint.note), savepoint.at
    for plan_id, plan in state.plans.items():
        yield Holder("compaction", plan_id, str(plan.at), plan.committed_at_ms), plan.at
    for pin in pins:
        yield Holder("pin", pin.owner, str(pin.at), until_ms=pin.expires_at_ms), pin.at

"""What a merge mode must offer, and the two values it works on.

A *register* is what is known of one key in one group: its values, its arrival (non-null exactly when the group is
present) and its floor (the largest surviving delete). Registers merge associatively, commutatively and idempotently
(law S13), which is why compaction at any time changes no read (L3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from storage.core.keys import Indices, KeyVector, Mask
from storage.core.schema import Group


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """Events that touch one group, in (arrival, position) order.

    Attributes:
        keys: One per event, unsorted.
        arrival: int64, one per event.
        op: int8 `storage.core.events.Op`, one per event.
        ordering: The group's ordering columns.
        values: The group's other columns that are wanted.
    """

    keys: KeyVector
    arrival: pa.Array
    op: pa.Array
    ordering: Mapping[str, pa.Array]
    values: Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class Registers:
    """One register a key, keys sorted and distinct; ``columns`` are named as in a slice."""

    keys: KeyVector
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.keys)


class MergeMode(Protocol):
    """One merge mode; stateless."""

    def collapse(self, group: Group, events: GroupEvents) -> Registers:
        """One register for every key among the events."""
        ...

    def reads(self, group: Group) -> tuple[str, ...]:
        """Slice columns of an older register that `merge` must see."""
        ...

    def merge(
        self, group: Group, old: Mapping[str, pa.Array], new: Mapping[str, pa.Array]
    ) -> tuple[Mask, Mapping[str, pa.Array]]:
        """Merge registers row by row.

        Args:
            group: The group that both belong to.
            old: The columns of `reads`, n rows; a register that does not exist has neither arrival nor floor.
            new: Columns of `Registers`, n rows, of the same keys.

        Returns:
            Which rows differ from ``old``, and the merged columns of those rows.
        """
        ...


def take_rows(columns: Mapping[str, pa.Array], rows: Indices | Mask | pa.Array) -> dict[str, pa.Array]:
    """The same rows of every column: by position, or by mask."""
    chosen = rows if isinstance(rows, pa.Array) else pa.array(rows)
    if pa.types.is_boolean(chosen.type):
        return {name: column.filter(chosen) for name, column in columns.items()}
    return {name: column.take(chosen) for name, column in columns.items()}

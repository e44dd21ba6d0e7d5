"""What a merge mode must offer, and the values it works on.

A *register* is what is known of one key in one group: its values, its arrival (non-null exactly when the group is
present) and whatever else its mode keeps. Registers merge associatively, commutatively and idempotently (S13), which is
why compaction at any time changes no read (law L3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from storage.core.keys import Indices, KeyVector, Mask
from storage.core.model import Column, Group

Columns = Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """Events that touch one group, in (arrival, position) order.

    Attributes:
        keys: One per event, unsorted.
        arrival: int64, one per event.
        op: int8 `storage.core.merge.events.Op`, one per event.
        ordering: The group's ordering columns.
        values: The group's other columns that are wanted; one that a batch omitted is NULL there.
        supplied: Per value column which NULLs are values; none where a column is missing.
    """

    keys: KeyVector
    arrival: pa.Array
    op: pa.Array
    ordering: Columns
    values: Columns
    supplied: Mapping[str, Mask]


@dataclass(frozen=True, slots=True)
class Registers:
    """One register a key, keys sorted and distinct; ``columns`` are named as in a slice."""

    keys: KeyVector
    columns: Columns

    def __len__(self) -> int:
        return len(self.keys)


class MergeMode(Protocol):
    """One merge mode; stateless."""

    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        """Hidden slice columns of the group, arrival first; part of the format, never reordered."""
        ...

    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        """Slice columns of an older register that `merge` must see to merge these value columns."""
        ...

    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        """One register for every key among the events."""
        ...

    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Columns, new: Columns
    ) -> tuple[Mask, Columns]:
        """Merge registers row by row.

        Args:
            group: The group that both belong to.
            columns: The table's columns by name.
            new_keys: Keys of the n rows.
            old: The columns of `reads`, n rows; a register that does not exist is NULL in all hidden ones.
            new: Columns of `Registers`, n rows, of the same keys.

        Returns:
            Which rows differ from ``old``, and the merged columns of those rows.
        """
        ...

    def renewal_reads(
        self, group: Group, columns: Mapping[str, Column], changed: Collection[str], wanted: Collection[str]
    ) -> tuple[str, ...]:
        """Slice columns that `renewed` looks at, if it has to make any of ``wanted``; else none.

        Args:
            group: The group.
            columns: The table's columns by name.
            changed: Columns of the group that were added or changed since the registers were made.
            wanted: Slice columns, of any groups.
        """
        ...

    def renewed(self, group: Group, columns: Mapping[str, Column], added: Collection[str], rows: Columns) -> Columns:
        """What older registers must hold now, where that is not just NULL in a column that is missing.

        Args:
            group: The group as it is now.
            columns: The table's columns by name.
            added: Value columns of the group that the registers do not have.
            rows: The columns of `renewal_reads`, with the types of now but for fixed-size binaries; NULL where missing.
        """
        ...


def take_rows(columns: Columns, rows: Indices | Mask | pa.Array) -> dict[str, pa.Array]:
    """The same rows of every column: by position, or by mask."""
    chosen = rows if isinstance(rows, pa.Array) else pa.array(rows)
    if pa.types.is_boolean(chosen.type):
        return {name: column.filter(chosen) for name, column in columns.items()}
    return {name: column.take(chosen) for name, column in columns.items()}

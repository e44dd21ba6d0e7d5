"""Statistics of the rows of a slice: compaction writes them into the entry, and verify recomputes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.model import Group
from weft.storage.core.modes import mode_of
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import encode_scalar


class SliceStatistics:
    """Statistics of all rows of a slice, visible or not. See `weft.storage.core.log.file_refs.SliceFile`.

    Args:
        schema: The schema of the rows.
        groups: The column groups that the rows have; by default all.
    """

    def __init__(self, schema: TableSchema, groups: Sequence[Group] | None = None) -> None:
        self._schema = schema
        self._groups = schema.groups if groups is None else groups
        self._columns = {
            group.id: (group.ordering[0], names.floor_ordering(group.id, 0)) for group in self._groups if group.ordering
        }
        self._largest: dict[int, Any] = {}
        self._overflows: Counter[int] = Counter()

    @property
    def reads(self) -> set[str]:
        """Names of the columns that `add` reads, if the rows have them."""
        columns, counted = self._schema.column_by_name, [g for g in self._groups if mode_of(g).may_overflow]
        ordered = (name for group, pair in self._columns.items() for name in (names.arrival(group), *pair))
        return {*ordered, *(name for group in counted for name in mode_of(group).reads(group, columns, group.values))}

    def add(self, rows: Arrays) -> None:
        """Add some rows: columns of the slice schema by name. Without rows the mapping may be empty."""
        if not rows:
            return
        for group_id, (ordering, floor) in self._columns.items():
            # If the group is absent, the ordering column may have its default, which is not the version of an event.
            present = pc.if_else(rows[names.arrival(group_id)].is_valid(), rows[ordering], None)
            for versions in (present, rows.get(floor)):
                largest = pc.max(versions).as_py() if versions is not None else None
                if largest is not None:
                    self._largest[group_id] = max(self._largest.get(group_id, largest), largest)
        for group in self._groups:
            self._overflows.update(mode_of(group).overflows(group, self._schema.column_by_name, rows))

    @property
    def ordering_max(self) -> dict[int, Any]:
        """Largest first ordering value of all registers, including deletes, by group id; in JSON form."""
        return {group: encode_scalar(self._largest.get(group)) for group in self._columns}

    @property
    def overflows(self) -> dict[int, int]:
        """Number of rows in which the exact value does not fit its column, by column id."""
        return dict(self._overflows)

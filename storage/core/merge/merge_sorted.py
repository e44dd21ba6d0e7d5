"""Merges the rows of file groups that become one. The inputs and the result are streams in key order.

No key is in two streams. Needs memory for one batch of each stream, and for their hidden rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from weft.storage.core import keys
from weft.storage.core.arrays import Arrays, join_rows, take_rows
from weft.storage.core.keys import KeyVector
from weft.storage.core.merge.stitch import Stitched
from weft.storage.core.schema.table_schema import TableSchema


def merge_sorted(schema: TableSchema, streams: Sequence[Iterator[Stitched]]) -> Iterator[Stitched]:
    """Merge the visible and the hidden rows of all streams in key order.

    Args:
        schema: The schema of the table.
        streams: Results of ordered stitches, each of one file group.
    """
    if len(streams) == 1:
        yield from streams[0]
        return
    open_streams = dict(enumerate(streams))
    visible, hidden = _Buffer(schema), _Buffer(schema)
    while open_streams:
        number = visible.furthest_behind(open_streams)
        stitched = next(open_streams[number], None)
        if stitched is None:
            del open_streams[number]
        else:
            visible.add(number, stitched.visible)
            hidden.add(number, stitched.hidden)
        yield Stitched(visible.take(open_streams), hidden.take(open_streams))


@dataclass(slots=True)
class _Buffer:
    """Buffered rows, visible or hidden, that later rows of another stream may precede.

    Attributes:
        schema: The schema of the table.
        rows: The rows of each stream.
        last: The last key of each stream so far.
    """

    schema: TableSchema
    rows: dict[int, Arrays] = field(default_factory=dict)
    last: dict[int, KeyVector] = field(default_factory=dict)

    def add(self, number: int, rows: Arrays) -> None:
        """Add the next rows of a stream; a dict without columns means no rows."""
        if not rows or not len(rows[self.schema.sort_column]):
            return
        self.last[number] = keys.key_vector(rows[self.schema.sort_column])[-1:]
        self.rows[number] = join_rows([self.rows[number], rows]) if number in self.rows else rows

    def furthest_behind(self, streams: dict[int, Iterator[Stitched]]) -> int:
        """The stream with the smallest last key, or a stream without rows so far."""
        numbers = list(streams)
        for number in numbers:
            if number not in self.last:
                return number
        order = keys.stable_order(keys.concat([self.last[number] for number in numbers]))
        return numbers[int(order[0])]

    def take(self, streams: dict[int, Iterator[Stitched]]) -> dict[str, pa.Array]:
        """Remove the rows up to the smallest last key of the open streams; returns them in key order."""
        if any(number not in self.last for number in streams):
            return {}
        limit = self.last[self.furthest_behind(streams)] if streams else None
        parts: list[Arrays] = []
        for number, rows in list(self.rows.items()):
            vector = keys.key_vector(rows[self.schema.sort_column])
            count = len(vector) if limit is None else int(keys.upper_bounds(vector, limit)[0])
            if count == len(vector):
                parts.append(self.rows.pop(number))
            elif count:
                parts.append({name: column.slice(0, count) for name, column in rows.items()})
                self.rows[number] = {name: column.slice(count) for name, column in rows.items()}
        if not parts:
            return {}
        together = join_rows(parts)
        return take_rows(together, keys.stable_order(keys.key_vector(together[self.schema.sort_column])))

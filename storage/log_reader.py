"""Log pieces of a run of file groups: fetched once, collapsed file group by file group.

Pieces of folds hold registers already: those of the events are merged with them. Which pieces there are is decided in
`storage.core.slices`, each event once.

A block may hold several small file groups. File groups are read in order, and blocks hold them in order, so each block
is read once and dropped with the last file group that needs it: memory is about the logs of one file group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from storage.core.collapse import KeyDirectory, LogPiece, collapse_group
from storage.core.evolution import adapt_events, adapt_registers
from storage.core.keys import KeyVector, find, key_vector, take
from storage.core.model import Group
from storage.core.modes.base import take_rows
from storage.core.registers import RegisterPiece, group_registers, merge_registers
from storage.core.schema import TableSchema
from storage.core.slices import FileSlice, LiveFile
from storage.core.stitch import LogState
from storage.log_file import read_blocks
from storage.object_store import ObjectStore

_Place = tuple[int, int]
"""Position of a file in the list, and block number."""


class LogReader:
    """Reads the log pieces of ``slices``, which must be collapsed in this order, each once."""

    def __init__(
        self,
        store: ObjectStore,
        schema: TableSchema,
        files: Sequence[LiveFile],
        slices: Sequence[FileSlice],
        columns: Sequence[Collection[str]],
    ) -> None:
        """Plan the reading.

        Args:
            store: The table's store.
            schema: The snapshot's schema.
            files: What ``slices`` point into.
            slices: File groups in order; or several as one (`storage.core.slices.joined`).
            columns: Per slice the columns it needs, of events and of registers, where a file has them; key columns
                and sort column among them.
        """
        self._schema, self._files = schema, files
        self._columns = {file_slice.group: names for file_slice, names in zip(slices, columns, strict=True)}
        self._blocks: dict[_Place, pa.RecordBatch] = {}
        self._uses: dict[_Place, int] = {}
        wanted: dict[int, set[str]] = {}
        for file_slice, names in zip(slices, columns, strict=True):
            for number in np.unique(file_slice.file).tolist():
                wanted.setdefault(number, set()).update(names)
            for place in _places(file_slice):
                self._uses[place] = self._uses.get(place, 0) + 1
        blocks: dict[int, list[int]] = {}
        for number, block in self._uses:
            blocks.setdefault(number, []).append(block)
        self._readers = {
            number: _blocks(store, files[number], blocks[number], wanted[number]) for number in sorted(blocks)
        }

    def collapse(
        self,
        file_slice: FileSlice,
        groups: Sequence[Group],
        values: Collection[str],
        wanted: KeyVector | None = None,
    ) -> LogState | None:
        """Keys and registers of one file group, of ``wanted`` keys alone if given; None where its logs have none."""
        events: list[LogPiece] = []
        folded: dict[int, list[RegisterPiece]] = {}
        for number, piece in self._pieces(file_slice, wanted):
            if isinstance(piece, LogPiece):
                events.append(piece)
            else:
                folded.setdefault(number, []).append(piece)
        pieces: list[LogPiece | RegisterPiece] = [*(piece for own in folded.values() for piece in own), *events]
        if not pieces:
            return None
        columns = self._columns[file_slice.group]
        registers = {}
        for group in groups:
            parts = [group_registers(own, self._schema, group, columns) for own in folded.values()]
            names = [name for name in group.columns if name in values]
            parts.append(collapse_group(events, self._schema, group, names))
            found = [part for part in parts if part is not None]
            if found:
                registers[group.id] = merge_registers(self._schema, group, found)
        return LogState(KeyDirectory.of(pieces, self._schema), registers)

    def _pieces(
        self, file_slice: FileSlice, wanted: KeyVector | None
    ) -> Iterator[tuple[int, LogPiece | RegisterPiece]]:
        """With the position of their file; in version order: files are in (arrival, place in the commit) order."""
        rows = zip(file_slice.start.tolist(), file_slice.rows.tolist(), strict=True)
        for place, (start, count) in zip(_places(file_slice), rows, strict=True):
            live = self._files[place[0]]
            batch = self._block(place).slice(start, count)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            vector = key_vector(columns[self._schema.sort_column])
            if wanted is not None:
                _, found = find(wanted, vector)
                if not found.any():
                    continue
                vector, columns = take(vector, found), take_rows(columns, found)
            if live.file.form == "register":
                yield place[0], RegisterPiece(vector, live.file.groups, columns)
            else:
                yield place[0], LogPiece(vector, live.arrival, live.file.groups, columns)

    def _block(self, place: _Place) -> pa.RecordBatch:
        while place not in self._blocks:
            number, batch = next(self._readers[place[0]])
            live = self._files[place[0]]
            if live.file.form == "register":
                batch = adapt_registers(self._schema, live.file.columns, batch)
            else:
                batch = adapt_events(self._schema, batch)
            self._blocks[place[0], number] = batch
        self._uses[place] -= 1
        return self._blocks[place] if self._uses[place] else self._blocks.pop(place)


def _places(file_slice: FileSlice) -> list[_Place]:
    return list(zip(file_slice.file.tolist(), file_slice.block.tolist(), strict=True))


def _blocks(
    store: ObjectStore, live: LiveFile, numbers: Sequence[int], wanted: Collection[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    columns = [name for name in live.file.columns if name in wanted]
    return read_blocks(store, live.file, live.index.blocks, sorted(numbers), columns)

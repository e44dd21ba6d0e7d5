"""Log ranges of a run of file groups: fetched once, collapsed file group by file group.

Ranges of folds hold registers already: those of the events are merged with them. Which ranges there are is decided in
`storage.core.plan.slices`, each event once.

A block may hold several small file groups. File groups are read in order, and blocks hold them in order, so each block
is read once and dropped with the last file group that needs it: memory is about the logs of one file group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from storage.core.arrays import take_rows
from storage.core.keys import Indices, KeyVector, find, key_vector, one_array, take
from storage.core.merge.collapse import KeyDirectory, LogRange, collapse_group
from storage.core.merge.registers import RegisterRange, group_registers, merge_registers
from storage.core.merge.run_keys import RunKeys
from storage.core.merge.stitch import LogState
from storage.core.model import Group
from storage.core.modes import Mergers
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.schema.evolution import adapt_events, adapt_registers
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.files.log_blocks import BlockId, LogBlocks

AnyRange = TypeVar("AnyRange", LogRange, RegisterRange)


class LogReader:
    """Reads the log ranges of ``slices``, which must be collapsed in this order, each once."""

    def __init__(
        self,
        env: Environment,
        schema: TableSchema,
        files: Sequence[LiveFile],
        slices: Sequence[FileSlice],
        columns: Sequence[Collection[str]],
        mergers: Mergers,
    ) -> None:
        """Plan the reading.

        Args:
            env: The table's.
            schema: The snapshot's schema.
            files: What ``slices`` point into.
            slices: File groups in order; or several as one (`storage.core.plan.slices.combine_slices`).
            columns: Per slice the columns it needs, of events and of registers, where a file has them; key columns
                and sort column among them.
            mergers: Custom mergers of the groups that are collapsed.
        """
        self._env, self._schema, self._files, self._mergers = env, schema, files, mergers
        self._columns = {file_slice.group: names for file_slice, names in zip(slices, columns, strict=True)}
        self._blocks: dict[BlockId, pa.RecordBatch] = {}
        self._uses: dict[BlockId, int] = {}
        self._kinds: list[_Kind] = []
        self._kind_of: dict[int, _Kind] = {}
        self._as_stored: set[int] = set()
        wanted: dict[int, set[str]] = {}
        for file_slice, names in zip(slices, columns, strict=True):
            for number in np.unique(file_slice.file).tolist():
                wanted.setdefault(number, set()).update(names)
            for block in _blocks_of(file_slice):
                self._uses[block] = self._uses.get(block, 0) + 1
        blocks: dict[int, list[int]] = {}
        for number, number_in_file in self._uses:
            blocks.setdefault(number, []).append(number_in_file)
        self._stored = LogBlocks(env, files, blocks, wanted)

    def collapse(
        self,
        file_slice: FileSlice,
        groups: Sequence[Group],
        values: Collection[str],
        wanted: KeyVector | None = None,
    ) -> LogState | None:
        """Keys and registers of one file group, of ``wanted`` keys alone if given; None where its logs have none.

        Of several file groups as one their keys are those of a run (`storage.core.merge.run_keys`).
        """
        self._stored.expect(_blocks_of(file_slice))
        folded = self._registers(file_slice, wanted)
        events = list(self._events(file_slice, wanted))
        ranges: list[LogRange | RegisterRange] = [*(log_range for own in folded for log_range in own), *events]
        if not ranges:
            return None
        run_keys = None
        if file_slice.slice_ordinal is not None:
            run_keys = RunKeys.of([log_range.keys for log_range in ranges], int(file_slice.slice_ordinal.max()) + 1)
            folded = [[_of_run(run_keys, log_range) for log_range in own] for own in folded]
            events = [_of_run(run_keys, log_range) for log_range in events]
            ranges = [*(log_range for own in folded for log_range in own), *events]
        columns = self._columns[file_slice.group]
        registers = {}
        for group in groups:
            parts = [group_registers(own, self._schema, group, columns) for own in folded]
            names = [name for name in group.columns if name in values]
            parts.append(collapse_group(events, self._schema, group, names, self._mergers))
            found = [part for part in parts if part is not None]
            if found:
                registers[group.id] = merge_registers(self._schema, group, found, self._mergers)
        return LogState(KeyDirectory.of(ranges, self._schema), registers, run_keys)

    def _registers(self, file_slice: FileSlice, wanted: KeyVector | None) -> list[list[RegisterRange]]:
        """Per fold file, those of one file group."""
        folded: dict[int, list[RegisterRange]] = {}
        for number, batch, slice_ordinals in self._rows(file_slice, form="register"):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            vector, slice_ordinal = key_vector(columns[self._schema.sort_column]), slice_ordinals
            if wanted is not None:
                _, found = find(wanted, vector)
                if not found.any():
                    continue
                vector, columns = take(vector, found), take_rows(columns, found)
                slice_ordinal = slice_ordinal[found] if slice_ordinal is not None else None
            log_range = RegisterRange(vector, self._files[number].file.groups, columns, slice_ordinal)
            folded.setdefault(number, []).append(log_range)
        return list(folded.values())

    def _events(self, file_slice: FileSlice, wanted: KeyVector | None) -> Iterator[LogRange]:
        """Small ranges of files that carry the same as one; those that carry a common group in version order."""
        together: dict[_Kind, _Together] = {}
        for number, batch, slice_ordinal in self._rows(file_slice, form="event"):
            kind = self._kind(number, batch.schema)
            # The order of versions is that of ranges: what carries a group comes after all before it that do.
            for other in [other for other in together if other != kind and not kind.groups.isdisjoint(other.groups)]:
                yield from self._piece(other, together.pop(other), wanted)
            own = together.setdefault(kind, _Together())
            own.add(batch, self._files[number].arrival, slice_ordinal)
            if own.rows >= self._env.tuning.coalesce_rows:
                yield from self._piece(kind, together.pop(kind), wanted)
        for kind, own in together.items():
            yield from self._piece(kind, own, wanted)

    def _piece(self, kind: _Kind, together: _Together, wanted: KeyVector | None) -> Iterator[LogRange]:
        table = pa.Table.from_batches(together.batches)
        arrival = np.repeat(together.arrivals, [len(batch) for batch in together.batches])
        vector = key_vector(table.column(self._schema.sort_column))
        slice_ordinal = np.concatenate(together.slice_ordinals) if together.slice_ordinals else None
        if wanted is not None:
            _, found = find(wanted, vector)
            if not found.any():
                return
            table, arrival, vector = table.filter(pa.array(found)), arrival[found], take(vector, found)
            slice_ordinal = slice_ordinal[found] if slice_ordinal is not None else None
        columns = {name: one_array(column) for name, column in zip(table.schema.names, table.columns, strict=True)}
        yield LogRange(vector, arrival, kind.groups, columns, slice_ordinal)

    def _rows(self, file_slice: FileSlice, *, form: str) -> Iterator[tuple[int, pa.RecordBatch, Indices | None]]:
        """Rows of ranges with the position of their file; files are in (arrival, place in the commit) order.

        And of several file groups which of them each row is of.
        """
        rows = zip(file_slice.start.tolist(), file_slice.rows.tolist(), strict=True)
        end = 0
        for block, (start, count) in zip(_blocks_of(file_slice), rows, strict=True):
            end += count
            if self._files[block[0]].file.form == form:
                slice_ordinal = (
                    None if file_slice.slice_ordinal is None else file_slice.slice_ordinal[end - count : end]
                )
                yield block[0], self._block(block).slice(start, count), slice_ordinal

    def _block(self, block: BlockId) -> pa.RecordBatch:
        if block not in self._blocks:
            self._blocks[block] = self._adapted(block[0], self._stored.take(block))
        self._uses[block] -= 1
        return self._blocks[block] if self._uses[block] else self._blocks.pop(block)

    def _adapted(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a file as they would be written now."""
        file = self._files[number].file
        if file.form == "register":
            return adapt_registers(self._schema, file.columns, batch)
        if number in self._as_stored:
            return batch
        adapted = adapt_events(self._schema, batch)
        if adapted is batch:
            self._as_stored.add(number)
        return adapted

    def _kind(self, number: int, columns: pa.Schema) -> _Kind:
        """The same object for all files that are alike."""
        found = self._kind_of.get(number)
        if found is None:
            groups = frozenset(self._files[number].file.groups)
            alike = (own for own in self._kinds if own.groups == groups and own.columns.equals(columns))
            found = next(alike, None)
            if found is None:
                found = _Kind(groups, columns)
                self._kinds.append(found)
            self._kind_of[number] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """What files have in common whose rows may follow each other in one range: groups, and columns as they are read."""

    groups: frozenset[int]
    columns: pa.Schema


@dataclass(slots=True)
class _Together:
    """Rows of files of one kind, with the arrival of every batch."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    slice_ordinals: list[Indices] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: pa.RecordBatch, arrival: int, slice_ordinal: Indices | None) -> None:
        self.batches.append(batch)
        self.arrivals.append(arrival)
        if slice_ordinal is not None:
            self.slice_ordinals.append(slice_ordinal)
        self.rows += len(batch)


def _of_run(run_keys: RunKeys, log_range: AnyRange) -> AnyRange:
    assert log_range.slice_ordinal is not None, "rows of a run know their file groups"
    return replace(log_range, keys=run_keys.vector(log_range.keys, log_range.slice_ordinal))


def _blocks_of(file_slice: FileSlice) -> list[BlockId]:
    return list(zip(file_slice.file.tolist(), file_slice.block.tolist(), strict=True))

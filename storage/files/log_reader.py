"""Reads the log ranges of file groups and collapses them, file group by file group, into keys and registers.

Ranges of folds contain registers already; the registers of events are merged with them. `weft.storage.core.plan.slices`
decides which ranges are read, so that each event counts once.

A block may contain several small file groups. File groups are read in order, and blocks contain them in order, so each
block is read once and released after the last file group that needs it. This takes memory for about the logs of one
file group.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from weft.storage.core.keys import Indices, KeyVector, find, key_vector, take
from weft.storage.core.merge.collapse import KeyDirectory, LogRange, collapse_group
from weft.storage.core.merge.locate_keys import in_bucket
from weft.storage.core.merge.registers import group_registers, merge_registers
from weft.storage.core.merge.run_keys import RunKeys
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.model import Group
from weft.storage.core.modes import Mergers
from weft.storage.core.names import SLICE_ORDINAL
from weft.storage.core.plan.key_ranges import KeyRange
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.core.schema.evolution import adapt_events, adapt_registers
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.fetch_blocks import BlockId, LogBlocks
from weft.storage.files.row_buffer import RowBuffer


class LogReader:
    """Reads the log ranges of slices. Call `collapse` once for each slice, in the order of ``slices``."""

    def __init__(
        self,
        env: Environment,
        schema: TableSchema,
        files: Sequence[LiveFile],
        slices: Sequence[FileSlice],
        columns: Sequence[Collection[str]],
        mergers: Mergers,
    ) -> None:
        """Prepare the reads; nothing is read yet.

        Args:
            env: The environment of the table.
            schema: The schema of the snapshot.
            files: The log files that ``slices`` refer to by position.
            slices: File groups in order, or runs of them (`weft.storage.core.plan.slices.combine_slices`).
            columns: For each slice the names of the columns to read of events and registers, if a file has them; key
                columns and sort column must be among them.
            mergers: The merge functions of the groups that are collapsed.
        """
        self._env, self._schema, self._files, self._mergers = env, schema, files, mergers
        self._columns = {file_slice.group: names for file_slice, names in zip(slices, columns, strict=True)}
        self._blocks: dict[BlockId, pa.RecordBatch] = {}
        self._uses: dict[BlockId, int] = {}
        self._kinds: list[_Kind] = []
        self._kind_of: dict[int, _Kind] = {}
        self._as_stored: set[int] = set()
        columns_by_file: dict[int, set[str]] = {}
        for file_slice, names in zip(slices, columns, strict=True):
            for number in np.unique(file_slice.file).tolist():
                columns_by_file.setdefault(number, set()).update(names)
            for block in _blocks_of(file_slice):
                self._uses[block] = self._uses.get(block, 0) + 1
        blocks: dict[int, list[int]] = {}
        for number, block_number in self._uses:
            blocks.setdefault(number, []).append(block_number)
        self._stored = LogBlocks(env, files, blocks, columns_by_file)

    def collapse(
        self,
        file_slice: FileSlice,
        groups: Sequence[Group],
        values: Collection[str],
        only_keys: KeyVector | None = None,
    ) -> LogState | None:
        """The keys and registers in the logs of one slice.

        Args:
            file_slice: The slice. For a run of file groups the keys are those of `weft.storage.core.merge.run_keys`;
                for a part of a file group (`FileSlice.within`) those of its key range.
            groups: The groups to collapse.
            values: Names of the columns whose values are needed.
            only_keys: Collapse only these keys; None for all.

        Returns:
            Keys and registers; None if the logs have none of the keys.

        Raises:
            CorruptData: A log file is missing or damaged.
            InvalidInput: A merge function has failed.
        """
        self._stored.expect(_blocks_of(file_slice))
        by_file = self._registers(file_slice, only_keys)
        events = list(self._events(file_slice, only_keys))
        ranges = [*itertools.chain(*by_file), *events]
        if not ranges:
            return None
        run_keys = None
        if file_slice.slice_ordinal is not None:
            run_keys = RunKeys.of([log_range.keys for log_range in ranges], int(file_slice.slice_ordinal.max()) + 1)
            by_file = [[_of_run(run_keys, log_range) for log_range in of_file] for of_file in by_file]
            events = [_of_run(run_keys, log_range) for log_range in events]
            ranges = [*itertools.chain(*by_file), *events]
        columns = self._columns[file_slice.group]
        registers = {}
        for group in groups:
            parts = [group_registers(of_file, self._schema, group, columns) for of_file in by_file]
            names = [name for name in group.columns if name in values]
            parts.append(collapse_group(events, self._schema, group, names, self._mergers))
            results = [part for part in parts if part is not None]
            if results:
                registers[group.id] = merge_registers(self._schema, group, results, self._mergers)
        return LogState(KeyDirectory.of(ranges, self._schema), registers, run_keys)

    def events(self, file_slice: FileSlice) -> Iterator[LogRange]:
        """The events of one slice that are not in a fold, without merging; those of a group are in version order.

        Call it in place of `collapse`.

        Raises:
            CorruptData: A log file is missing or damaged.
        """
        self._stored.expect(_blocks_of(file_slice))
        return self._events(file_slice, None)

    def rows_of(self, file_slice: FileSlice, only_keys: KeyVector) -> Iterator[tuple[LiveFile, dict[str, pa.Array]]]:
        """The rows of some keys as they are stored, without merging: events, and registers of folds.

        Call it in place of `collapse`.

        Args:
            file_slice: The slice, of one file group.
            only_keys: The keys, sorted and distinct.

        Yields:
            A file and columns of its rows with these keys, with the types of the schema: first folds, then commits in
            version order; the rows of a file in their order.

        Raises:
            CorruptData: A log file is missing or damaged.
        """
        self._stored.expect(_blocks_of(file_slice))
        for form in ("register", "event"):
            for number, batch, _ in self._rows(file_slice, form=form):
                _, is_match = find(only_keys, key_vector(batch.column(self._schema.sort_column)))
                if is_match.any():
                    rows = batch.filter(pa.array(is_match))
                    yield self._files[number], _columns_of(rows)

    def _registers(self, file_slice: FileSlice, only_keys: KeyVector | None) -> list[list[LogRange]]:
        """The registers of one slice, a list for each file of a fold."""
        ranges_by_file: dict[int, list[LogRange]] = {}
        for number, batch, slice_ordinals in self._rows(file_slice, form="register"):
            log_range = self._range(self._files[number].file.groups, batch, slice_ordinals, only_keys)
            if log_range is not None:
                ranges_by_file.setdefault(number, []).append(log_range)
        return list(ranges_by_file.values())

    def _events(self, file_slice: FileSlice, only_keys: KeyVector | None) -> Iterator[LogRange]:
        """The events of one slice. Small ranges of files of one kind are coalesced; each group is in version order."""
        pending: dict[_Kind, _Coalesced] = {}
        for number, batch, slice_ordinal in self._rows(file_slice, form="event"):
            kind = self._kind_of.get(number) or self._kind(number, batch.schema)
            coalesced = pending.get(kind)
            if coalesced is None or len(pending) > 1:
                # Versions are ordered by range: earlier ranges with a common group must come first.
                for other in [other for other in pending if other != kind and not kind.groups.isdisjoint(other.groups)]:
                    yield from self._log_range(other, pending.pop(other), only_keys)
                coalesced = pending.setdefault(kind, _Coalesced())
            coalesced.add(batch, self._files[number].arrival, slice_ordinal)
            if coalesced.batches.rows >= self._env.tuning.coalesce_rows:
                yield from self._log_range(kind, pending.pop(kind), only_keys)
        for kind, coalesced in pending.items():
            yield from self._log_range(kind, coalesced, only_keys)

    def _log_range(self, kind: _Kind, coalesced: _Coalesced, only_keys: KeyVector | None) -> Iterator[LogRange]:
        batches = coalesced.batches.take()
        # For many small batches this is several times as fast as combining the chunks of each column of a table.
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        arrival = np.repeat(coalesced.arrivals, coalesced.counts)
        slice_ordinals = np.concatenate(coalesced.slice_ordinals) if coalesced.slice_ordinals else None
        log_range = self._range(kind.groups, rows, slice_ordinals, only_keys, arrival)
        if log_range is not None:
            yield log_range

    def _range(
        self,
        groups: Collection[int],
        rows: pa.RecordBatch,
        slice_ordinals: Indices | None,
        only_keys: KeyVector | None,
        arrival: Indices | None = None,
    ) -> LogRange | None:
        """The rows with one of these sorted distinct keys, or all rows for None; returns None without such rows."""
        vector = key_vector(rows.column(self._schema.sort_column))
        if only_keys is not None:
            _, is_match = find(only_keys, vector)
            if not is_match.any():
                return None
            # For wide tables a batch is filtered several times as fast as its columns, one by one.
            rows, vector = rows.filter(pa.array(is_match)), take(vector, is_match)
            slice_ordinals = slice_ordinals[is_match] if slice_ordinals is not None else None
            arrival = arrival[is_match] if arrival is not None else None
        columns = _columns_of(rows)
        if slice_ordinals is not None:
            columns[SLICE_ORDINAL] = pa.array(slice_ordinals)
        return LogRange(vector, groups, columns, arrival)

    def _rows(self, file_slice: FileSlice, *, form: str) -> Iterator[tuple[int, pa.RecordBatch, Indices | None]]:
        """Position of the file, rows, and for a run the slice ordinals of the rows, of every range in version order."""
        forms = {number: self._files[number].file.form for number in np.unique(file_slice.file).tolist()}
        ordinals, shared, within = file_slice.slice_ordinal, file_slice.shared, file_slice.within
        rows = zip(file_slice.start.tolist(), file_slice.rows.tolist(), strict=True)
        end = 0
        for block, (start, count) in zip(_blocks_of(file_slice), rows, strict=True):
            end += count
            number = block[0]
            if forms[number] == form:
                row_ordinals = None if ordinals is None else ordinals[end - count : end]
                batch = self._block(block).slice(start, count)
                if within is not None:
                    assert ordinals is None, "a part of a file group is not combined with others"
                    batch = self._of_range(batch, within)
                if shared and self._files[number].file.bits < file_slice.group.bits:
                    assert ordinals is None, "rows of shared ranges are filtered for one file group"
                    batch = batch.filter(pa.array(in_bucket(self._schema, _columns_of(batch), file_slice.group)))
                if len(batch):
                    yield number, batch, row_ordinals

    def _of_range(self, batch: pa.RecordBatch, within: KeyRange) -> pa.RecordBatch:
        """The rows of one file group with a key in a range; rows are sorted by key."""
        first, end = within.positions(key_vector(batch.column(self._schema.sort_column)))
        return batch.slice(first, end - first)

    def _block(self, block: BlockId) -> pa.RecordBatch:
        if block not in self._blocks:
            self._blocks[block] = self._adapt(block[0], self._stored.take(block))
        self._uses[block] -= 1
        return self._blocks[block] if self._uses[block] else self._blocks.pop(block)

    def _adapt(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a file with the current schema."""
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
        """Determine the kind of a file; one object for all files of the kind."""
        groups = frozenset(self._files[number].file.groups)
        equal = (kind for kind in self._kinds if kind.groups == groups and kind.columns.equals(columns))
        match = next(equal, None)
        if match is None:
            match = _Kind(groups, columns)
            self._kinds.append(match)
        self._kind_of[number] = match
        return match


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Files whose rows can be coalesced into one range: those with the same groups and, when read, the same columns."""

    groups: frozenset[int]
    columns: pa.Schema


@dataclass(slots=True)
class _Coalesced:
    """Rows of files of one kind, with the arrival of every batch."""

    batches: RowBuffer = field(default_factory=RowBuffer)
    arrivals: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    slice_ordinals: list[Indices] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, arrival: int, slice_ordinal: Indices | None) -> None:
        self.batches.add(batch)
        self.arrivals.append(arrival)
        self.counts.append(len(batch))
        if slice_ordinal is not None:
            self.slice_ordinals.append(slice_ordinal)


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _of_run(run_keys: RunKeys, log_range: LogRange) -> LogRange:
    return replace(log_range, keys=run_keys.vector(log_range.keys, np.asarray(log_range.columns[SLICE_ORDINAL])))


def _blocks_of(file_slice: FileSlice) -> list[BlockId]:
    return list(zip(file_slice.file.tolist(), file_slice.block.tolist(), strict=True))

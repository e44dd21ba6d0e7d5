"""The merged rows of the file groups that a compaction rewrites: in key order, and in bounded memory.

The logs of a file group are in memory while they are merged. If they are larger than `Tuning.merge_bytes`, as after a
first load, the file group is merged in key ranges, one after the other:

    base       [a.....d][e.....h][i.....m]     row groups
    logs       [a...c][c......h][h......m]     blocks of one commit
               [a.....d][d....g][g......m]     blocks of another
    ranges              ^e       ^i            the logs of a range are read, merged, written, and forgotten

A block with keys of several ranges is read once, and kept until the last of them. So memory is proportional to the logs
of one range and the blocks that reach beyond it. The file of a large commit or fold has a block for each 4 MiB of its
rows, which are sorted by key. The file of a small commit has one block; many small commits are folded into few files.

Small file groups are merged together, as in a read (`weft.storage.core.merge.run_keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.arrays import Arrays, join_rows, take_rows
from weft.storage.core.log.file_refs import FileGroup, FileRef, SliceFile
from weft.storage.core.merge.contested import stored_bounds
from weft.storage.core.merge.stitch import LogState, Stitch, Stitched
from weft.storage.core.modes import Mergers
from weft.storage.core.names import Path
from weft.storage.core.plan.memory_cost import UNPACKED, log_memory_bytes
from weft.storage.core.plan.slices import FileSlice, LiveFile, combine_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.base_file import SliceReader
from weft.storage.files.log_reader import LogReader
from weft.storage.files.row_groups import LastRowGroups
from weft.storage.read.plan.divide_file_group import Division, State, divide_states
from weft.storage.read.plan.pruning import RowGroups

_Read = Callable[[Sequence[SliceFile | None]], Iterator[Arrays]]
"""Reads the base or shadow rows of slices in one file, with slice ordinals if there are several slices."""


class MergedRows:
    """The merged rows of file groups. Each file group is read once, in the order of ``runs``."""

    def __init__(
        self,
        env: Environment,
        schema: TableSchema,
        runs: Sequence[Sequence[FileSlice]],
        files: Sequence[LiveFile],
        mergers: Mergers,
    ) -> None:
        """Prepare the reads; reads the footers of base files of large file groups.

        Args:
            env: The environment of the table.
            schema: The schema of the snapshot.
            runs: The file groups, small ones together with others (`weft.storage.services.compaction.merge_steps`).
            files: The log files that they refer to by position.
            mergers: The custom mergers of the groups.

        Raises:
            CorruptData: A base file is missing, or its footer is damaged.
        """
        self._env, self._schema, self._mergers = env, schema, mergers
        self._columns = tuple(schema.slice.names)
        self._ranges: dict[FileGroup, list[FileSlice]] = {}
        for run in runs:
            # The more memory the logs need per stored byte, the fewer stored bytes a key range has.
            log_bytes = logs_at_once(env, schema, run[0]) if len(run) == 1 else 0
            ranges = [combine_slices(run)]
            if log_bytes:
                (parts,) = divide_states(env, schema, [Division((State(run[0], files),), log_bytes=log_bytes)])
                ranges = [part for (part,) in parts]
            self._ranges[run[0].group] = ranges
        in_order = [part for run in runs for part in self._ranges[run[0].group]]
        columns = frozenset((*self._columns, names.OP, names.SUPPLIED))
        self._logs = LogReader(env, schema, files, in_order, [columns] * len(in_order), mergers)
        self._collapsed: dict[FileGroup, LogState | None] = {}
        self._reader = SliceReader(env, schema, self._columns)
        # Base and shadow have separate caches: with wide rows, a row group of one would evict that of the other.
        self._base_reader = replace(self._reader, last=LastRowGroups())
        self._shadow_reader = replace(self._reader, last=LastRowGroups())

    def ranges(self, file_slice: FileSlice) -> Sequence[FileSlice]:
        """The key ranges in which a file group is merged, in order; usually one, the file group itself."""
        return self._ranges[file_slice.group]

    def logs(self, file_slice: FileSlice) -> Iterator[tuple[FileSlice, LogState | None]]:
        """Yield the key ranges of a file group in order, each with its collapsed logs; None without logs.

        Logs are read once. So for a file group with one range call this before `of`; with several, instead of it.

        Raises:
            CorruptData: A log file is missing or damaged.
            InvalidInput: A merge function has failed.
        """
        ranges = self.ranges(file_slice)
        if len(ranges) == 1 and file_slice.group not in self._collapsed:
            self._collapsed[file_slice.group] = self._collapse(file_slice)
        for key_range in ranges:
            yield key_range, self._collapsed[file_slice.group] if len(ranges) == 1 else self._collapse(key_range)

    def _collapse(self, key_range: FileSlice) -> LogState | None:
        return self._logs.collapse(key_range, self._schema.groups, self._columns)

    def of(self, run: Sequence[FileSlice]) -> Iterator[Stitched]:
        """Yield the rows of the file groups of a run, in order of file group, then of key.

        Rows of several file groups have the column ``names.SLICE_ORDINAL``, the position of the file group in ``run``.

        Raises:
            CorruptData: A file is missing or damaged.
            InvalidInput: A merge function has failed.
        """
        slices = [file_slice.slice for file_slice in run]
        if len(run) > 1:
            (combined_slice,) = self._ranges[run[0].group]
            bases = [part.base if part is not None else None for part in slices]
            shadows = [part.shadow if part is not None else None for part in slices]
            base = self._in_run(bases, slices, self._reader.base)
            shadow = self._in_run(shadows, slices, self._reader.shadow)
            yield from self._stitch(run).run([base] if base is not None else [], shadow, self._collapse(combined_slice))
            return
        stitch = self._stitch(run)
        for key_range, logs in self.logs(run[0]):
            self._collapsed.pop(run[0].group, None)
            base_batches, hidden = base_rows(self._base_reader, key_range), shadow_rows(self._shadow_reader, key_range)
            yield from stitch.run(base_batches, hidden, logs)

    def _in_run(
        self, files: Sequence[FileRef | None], slices: Sequence[SliceFile | None], read: _Read
    ) -> Arrays | None:
        """Rows of several slices with their slice ordinals, in order; None if there are none. Each file is read once.

        Slices of two files may alternate, because file groups of a shared file get newer slices at different times.
        """
        positions_by_file: dict[Path, list[int]] = {}
        for position, file in enumerate(files):
            if file is not None:
                positions_by_file.setdefault(file.path, []).append(position)
        parts = []
        for positions in positions_by_file.values():
            for rows in read([slices[position] for position in positions]):
                ordinal = np.asarray(rows.get(names.SLICE_ORDINAL, np.zeros(_count(rows), np.int64)))
                parts.append({**rows, names.SLICE_ORDINAL: pa.array(np.array(positions, np.int64)[ordinal])})
        merged_rows = join_rows(parts)
        if len(positions_by_file) > 1:
            order = np.argsort(np.asarray(merged_rows[names.SLICE_ORDINAL]), kind="stable")
            merged_rows = take_rows(merged_rows, order)
        return merged_rows or None

    def _stitch(self, run: Sequence[FileSlice]) -> Stitch:
        schema, ordinal_column = self._schema, (names.SLICE_ORDINAL,) if len(run) > 1 else ()
        return Stitch(
            schema,
            (*self._columns, *ordinal_column),
            schema.groups,
            exact=True,
            ordered=True,
            result=frozenset(self._columns),
            mergers=self._mergers,
            bounds=stored_bounds(schema, schema.groups, [file_slice.slice for file_slice in run]),
        )


def _count(rows: Arrays) -> int:
    return len(next(iter(rows.values())))


def logs_at_once(env: Environment, schema: TableSchema, file_slice: FileSlice) -> int:
    """Stored bytes of logs for each key range of a file group; 0 if the file group is merged at once."""
    limit = UNPACKED * env.tuning.merge_bytes
    memory_bytes = log_memory_bytes(schema, file_slice.log_bytes, int(file_slice.rows.sum()))
    return max(file_slice.log_bytes * limit // memory_bytes, 1) if memory_bytes > limit else 0


def base_rows(reader: SliceReader, key_range: FileSlice) -> Iterator[Arrays]:
    """The visible rows of a file group or of a key range of it; see `SliceReader.base`."""
    within, sort_column = key_range.within, reader.schema.sort_column
    for rows in reader.base([key_range.slice]):
        rows_within = rows if within is None or not within.within_row_groups else within.rows(rows, sort_column)
        if len(rows_within[sort_column]):
            yield rows_within


def shadow_rows(reader: SliceReader, key_range: FileSlice) -> Arrays | None:
    """The hidden rows of a file group or of a key range of it, as one batch; None if there are none."""
    within = key_range.within
    if within is None:
        return join_rows(list(reader.shadow([key_range.slice]))) or None
    row_groups = RowGroups(reader.schema, None, None, None, within)
    rows = join_rows(list(replace(reader, chosen=row_groups.may_match, last=None).shadow([key_range.slice])))
    return within.rows(rows, reader.schema.sort_column) if rows else None

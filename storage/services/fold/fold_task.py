"""The task of a fold: merges events and earlier folds of some adjacent file groups into one file of registers.

The file is not visible until a FOLD entry names it (`weft.storage.services.fold.fold`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.storage import mergers
from weft.storage.core import names
from weft.storage.core.log.file_refs import FileGroup, LogFile
from weft.storage.core.plan.memory_cost import block_bytes, cut_by_size, log_memory_bytes, merging_bytes
from weft.storage.core.plan.slices import FileSlice, combine_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.files.log_reader import LogReader
from weft.storage.files.register_file import write_register_file
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.services.steps.snapshot_task import SnapshotTask
from weft.storage.services.steps.tasks import COPIES, WORKING_BYTES


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """The result of a task.

    Attributes:
        file: The file; None if the events left no registers.
        groups: The file groups that have rows in it.
    """

    file: LogFile | None
    groups: frozenset[FileGroup]


@dataclass(frozen=True, slots=True)
class FoldTask(SnapshotTask):
    """Folds some file groups. ``slices`` are their log ranges, sorted by file group."""

    @property
    def bytes(self) -> int:
        """Stored bytes that the task reads."""
        return sum(ranges.log_bytes for ranges in self.slices)

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: everything that it reads."""
        rows = sum(fold_bytes(self.schema, ranges) for ranges in self.slices)
        columns = merging_bytes(self.schema) + block_bytes(self.slices, self.files)
        return WORKING_BYTES + COPIES * rows + columns

    def run(self) -> FoldedRows:
        """Write the file.

        Raises:
            CorruptData: A file is missing or damaged.
            SnapshotExpired: A file is missing because cleaning has aborted the fold as abandoned.
        """
        with explain_missing_file(self.env, self.at):
            return self._write()

    def _write(self) -> FoldedRows:
        schema, custom_mergers = self.schema, mergers.load(self.schema, self.env.mergers)
        columns = tuple(schema.slice.names)
        read_columns = frozenset((*columns, names.OP, names.SUPPLIED))
        runs = list(self._runs(together=not custom_mergers))
        ranges = [combine_slices(run) for run in runs]
        logs = LogReader(self.env, schema, self.files, ranges, [read_columns] * len(ranges), custom_mergers)
        collapsed_runs = (
            (run, logs.collapse(combined_slice, schema.groups, columns))
            for run, combined_slice in zip(runs, ranges, strict=True)
        )
        states = [
            ([file_slice.group for file_slice in run], state) for run, state in collapsed_runs if state is not None
        ]
        file = write_register_file(self.env, schema, names.fold_path(self.plan, self.env.ids.new()), states)
        return FoldedRows(file, frozenset(run[i] for run, state in states for i in state.slice_ordinals))

    def _runs(self, *, together: bool) -> Iterator[list[FileSlice]]:
        """Divide file groups into runs that are merged together, as a compaction does (`merge_steps`)."""
        limit = self.env.tuning.merge_together_bytes
        alone = limit + 1
        sizes = [fold_bytes(self.schema, part) if together and not part.shared else alone for part in self.slices]
        return cut_by_size(self.slices, sizes, limit)


def fold_bytes(schema: TableSchema, ranges: FileSlice) -> int:
    """Estimate of the memory for the folded rows of one file group."""
    return log_memory_bytes(schema, ranges.log_bytes, int(ranges.rows.sum()))

"""The task of a fold: merges the events and earlier folds of some adjacent file groups into registers, in one file.

The file is not visible until a FOLD entry names it (`storage.services.fold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage import mergers
from storage.core import names
from storage.core.log.cut import Cut
from storage.core.log.file_refs import FileGroup, LogFile
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.files.log_reader import LogReader
from storage.files.register_file import write_register_file
from storage.read.missing_file import explain_missing_file
from storage.read.read_task import only_needed
from storage.services.tasks import UNPACKED, WORKING_BYTES


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """What a task has folded.

    Attributes:
        file: The file; None if the events left no registers.
        groups: The file groups that have rows in it.
    """

    file: LogFile | None
    groups: frozenset[FileGroup]


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Folds some file groups. Can be pickled and run in any process.

    Attributes:
        env: The table's environment.
        schema: Schema of the snapshot.
        slices: The log ranges to merge, one item per file group, sorted by file group.
        files: The log files that ``slices`` refer to by number.
        at: Cut of the snapshot.
        plan: Slot of the fold's PLAN, which is part of the name of its file.
    """

    env: Environment
    schema: TableSchema
    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]
    at: Cut
    plan: int

    def __reduce__(self) -> tuple[Any, ...]:
        slices, files = only_needed(self.slices, self.files)
        return FoldTask, (self.env, self.schema, slices, files, self.at, self.plan)

    @property
    def bytes(self) -> int:
        """Stored bytes that the task reads."""
        return sum(ranges.log_bytes for ranges in self.slices)

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs: everything that it reads."""
        return WORKING_BYTES + UNPACKED * self.bytes

    def run(self) -> FoldedRows:
        """Write the file.

        Raises:
            CorruptData: A file is missing or damaged.
            SnapshotExpired: A file is missing because cleaning has aborted the fold as abandoned.
        """
        with explain_missing_file(self.env, self.at):
            return self._write()

    def _write(self) -> FoldedRows:
        schema, loaded = self.schema, mergers.load(self.schema, self.env.mergers)
        columns = tuple(schema.slice.names)
        wanted = frozenset((*columns, names.OP, names.SUPPLIED))
        logs = LogReader(self.env, schema, self.files, self.slices, [wanted] * len(self.slices), loaded)
        collapsed = ((ranges.group, logs.collapse(ranges, schema.groups, columns)) for ranges in self.slices)
        states = [(group, state) for group, state in collapsed if state is not None]
        file = write_register_file(self.env, schema, names.fold_path(self.plan, self.env.ids.new()), states)
        return FoldedRows(file, frozenset(group for group, _ in states))

"""The log files and file slices of one snapshot, computed once and cached."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.slices import FileSlices, LiveFile, plan_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.log import live_files
from weft.storage.log.table_log import TableLog
from weft.storage.read.missing_file import explain_missing_file


class SnapshotFiles:
    """The files of the snapshot that a state and a cut of the table describe.

    Attributes:
        table_log: The log of the table.
        state: The table state at the cut.
        at: The cut of the table alone.
    """

    def __init__(self, table_log: TableLog, state: TableState, at: Cut) -> None:
        self.table_log, self.state, self.at = table_log, state, at
        # Not cached properties: before Python 3.12 those hold a lock of the whole class while they read the store.
        self._files: list[LiveFile] | None = None
        self._slices: FileSlices | None = None

    @property
    def table_schema(self) -> TableSchema:
        """The schema of the table at the snapshot."""
        return self.state.schema

    @property
    def table_columns(self) -> pa.Schema:
        """The columns of the table alone in table order, with Arrow types and without metadata."""
        return pa.schema([field.remove_metadata() for field in self.table_schema.arrow])

    @property
    def files(self) -> list[LiveFile]:
        """The log files that at least one file group needs, in version order.

        Raises:
            SnapshotExpired: The snapshot has expired.
        """
        if self._files is None:
            with explain_missing_file(self.table_log.env, self.at):  # a large index is in a sidecar
                self._files = live_files.live_files(self.table_log, self.state, self.at)
        return self._files

    @property
    def is_planned(self) -> bool:
        """Whether `slices` was computed."""
        return self._slices is not None

    def groups_in(self, partitions: Collection[str]) -> set[FileGroup]:
        """The file groups of some partitions (folders), including those that have only logs."""
        folders = frozenset(partitions)
        groups = set(self.state.slices.in_partitions(folders))
        for live in self.files:
            index = live.index
            positions = [position for position, name in enumerate(index.partitions) if name in folders]
            if positions:
                ranges = index.ranges.arrays
                is_selected = np.isin(ranges["partition"], positions)
                pairs = zip(
                    ranges["partition"][is_selected].tolist(), ranges["bucket"][is_selected].tolist(), strict=True
                )
                groups.update(
                    FileGroup(index.partitions[position], live.file.bits, bucket) for position, bucket in pairs
                )
        return groups

    @property
    def slices(self) -> FileSlices:
        """Slices of all file groups with rows: base, shadow and log ranges, in order of file group."""
        if self._slices is None:
            self._slices = plan_slices(self.state, self.files)
        return self._slices

    def slices_of(self, groups: Collection[FileGroup]) -> FileSlices:
        """The slices of these file groups, in order of file group; plans no others."""
        if self._slices is None:
            return plan_slices(self.state, self.files, only=groups)
        return self._slices.select([number for number, group in enumerate(self._slices.groups) if group in groups])

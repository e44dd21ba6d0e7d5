"""ScanRequest: the arguments of a read of a snapshot, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.storage.core.keys import KeyVector
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.read.request.filter_input import ParsedFilter

Keys = Mapping[FileGroup, KeyVector]
"""Keys by file group, ascending and distinct. There may be file groups of other bits than those of the snapshot."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """The arguments of a read of a snapshot.

    Attributes:
        columns: Columns of the result, in this order; None for all columns of the table. State columns
            (`weft.storage.core.schema.state_columns`) must be listed.
        filter: Condition on merged rows, over any columns of the table and over state columns; None for all rows.
        require: Names of groups that must be present in a row.
        parallelism: Number of tasks that run at the same time; None for the number of cores.
        task_bytes: Maximum stored bytes of the columns of a task; None for
            `weft.storage.environment.Tuning.task_bytes`.
        read_optimized: Read the base files only, without merging (`weft.storage.read.base_files.read_optimized`).
        arrivals: Append the arrival (`weft.storage.core.names.arrival`, int64) of every group that is read; null where
            the group is absent.
        keys: Read only these keys, by file group; None for all keys that ``filter`` allows.
    """

    columns: Sequence[str] | None = None
    filter: ParsedFilter | None = None
    require: Sequence[str] | None = None
    parallelism: int | None = None
    task_bytes: int | None = None
    read_optimized: bool = False
    arrivals: bool = False
    keys: Keys | None = None

"""ScanRequest: the arguments of a read of a snapshot, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.storage.core.keys import KeyVector
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.read.request.filter_input import ParsedFilter

Keys = Mapping[FileGroup, KeyVector]
"""The wanted keys of each file group, ascending and distinct. Beside the file groups of a snapshot there may be others
with other bits."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """The arguments of a read of a snapshot.

    Attributes:
        columns: Columns of the result, in this order; None for all columns of the table. State columns
            (`weft.storage.core.schema.state_columns`) have to be named.
        filter: Condition on merged rows, over any columns of the table and over state columns; None for all rows.
        require: Names of groups that must be present in a row.
        parallelism: Number of tasks that run at the same time; None for the number of cores.
        task_bytes: Stored bytes of the columns of a task at most; None for
            `weft.storage.environment.Tuning.task_bytes`.
        read_optimized: Read the base files only, without merging (`weft.storage.read.base_files.read_optimized`).
        arrivals: Append the arrival (`weft.storage.core.names.arrival`, int64) of every group that is read; null where
            the group is absent.
        keys: Read only these keys, by file group; None for all that ``filter`` allows.
    """

    columns: Sequence[str] | None = None
    filter: ParsedFilter | None = None
    require: Sequence[str] | None = None
    parallelism: int | None = None
    task_bytes: int | None = None
    read_optimized: bool = False
    arrivals: bool = False
    keys: Keys | None = None

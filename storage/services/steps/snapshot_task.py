"""The common part of tasks of compactions and folds: some file groups of a snapshot, and the slot of the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from weft.storage.core.log.cut import Cut
from weft.storage.core.plan.slices import FileSlice, LiveFile
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.read.plan.read_task import only_needed, read_task
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.steps.service_plan import ServicePlan


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """Work on some file groups of a snapshot. It can be pickled, and run in any process.

    Attributes:
        env: The table's environment.
        schema: Schema of the snapshot.
        slices: The file groups, as planned at the snapshot.
        files: The log files that ``slices`` refer to by number.
        at: Cut of the snapshot.
        plan: Slot of the PLAN, which is part of the names of the files that the task writes.
    """

    env: Environment
    schema: TableSchema
    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]
    at: Cut
    plan: int

    @classmethod
    def of(cls, snapshot: Snapshot, plan: ServicePlan, slices: Sequence[FileSlice], **attributes: Any) -> Self:
        """Create a task for some file groups. ``attributes``: further attributes of a subclass."""
        work = read_task(slices, snapshot.files)
        env, schema = snapshot.table_log.env, snapshot.table_schema
        return cls(env, schema, tuple(work.slices), work.files, snapshot.cut, plan.slot, **attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        slices, files = only_needed(self.slices, self.files)
        reduced_task = dataclasses.replace(self, slices=slices, files=files)
        return type(self), tuple(getattr(reduced_task, field.name) for field in dataclasses.fields(reduced_task))

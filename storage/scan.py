"""Scan: the plan of one read of one snapshot, and its execution task by task.

A `Scan` is made on the driver from a snapshot, a projection and a predicate; its tasks can be pickled and read
anywhere. A read of columns C with predicate P equals reading everything, then filtering, then projecting (law L4): the
predicate sees merged rows only, never a version that lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage import mergers
from storage.base_file import read_base, read_shadow
from storage.core import names
from storage.core.cut import Cut
from storage.core.entries import FileRef
from storage.core.evolution import reads_as_it_is
from storage.core.model import Group
from storage.core.modes import MODES, mode_of
from storage.core.schema import TableSchema
from storage.core.slices import FileSlice, LiveFile
from storage.core.stitch import Stitch, needed_columns
from storage.errors import NotFound
from storage.expiry import reading
from storage.log_reader import LogReader
from storage.object_store import ObjectStore

TASK_MIN_BYTES: Final = 4 * 1024 * 1024  # a smaller task costs more to start than to read


@dataclass(frozen=True, slots=True)
class Projection:
    """What is read: columns of the answer, the predicate, and the groups that must be present.

    Attributes:
        columns: Of the answer, in its order.
        filter: Over the table's columns, applied to merged rows; None for all rows.
        filter_columns: Columns that ``filter`` looks at.
        require: Names of groups.
    """

    columns: tuple[str, ...]
    filter: pc.Expression | None
    filter_columns: tuple[str, ...]
    require: tuple[str, ...]

    def values(self, schema: TableSchema) -> tuple[str, ...]:
        """All user columns that must be stitched."""
        wanted = {*self.columns, *self.filter_columns}
        return tuple(column.name for column in schema.columns if column.name in wanted)


def make_projection(
    schema: TableSchema,
    columns: Sequence[str] | None,
    predicate: pc.Expression | None,
    require: Sequence[str] | None,
) -> Projection:
    """Check what a reader asks for.

    Raises:
        NotFound: A column or group that the table does not have; the hint lists those it has.
    """
    wanted = tuple(columns) if columns is not None else tuple(schema.arrow.names)
    for name in wanted:
        if name not in schema.column_by_name:
            raise NotFound(f"the table has no column {name!r}", hint=f"columns: {', '.join(schema.column_by_name)}")
    for name in require or ():
        if name not in schema.group_by_name:
            raise NotFound(f"the table has no group {name!r}", hint=f"groups: {', '.join(schema.group_by_name)}")
    looked_at = _filter_columns(schema, predicate) if predicate is not None else ()
    return Projection(wanted, predicate, looked_at, tuple(dict.fromkeys(require or ())))


def _filter_columns(schema: TableSchema, predicate: pc.Expression) -> tuple[str, ...]:
    """Columns that an expression looks at. Arrow does not tell, but it refuses to bind where one is missing."""
    if not _binds(schema.arrow, predicate):
        try:
            _bind(schema.arrow, predicate)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise NotFound(
                f"the filter does not fit the table: {str(error).splitlines()[0]}",
                hint=f"columns: {', '.join(schema.arrow.names)}",
            ) from None
    needed = list(schema.arrow.names)
    step = len(needed)
    # Drop halves, then quarters, ... : a few binds for a narrow filter on a wide table.
    while step:
        start = 0
        while start < len(needed):
            rest = needed[:start] + needed[start + step :]
            if _binds(pa.schema([schema.arrow.field(name) for name in rest]), predicate):
                needed = rest
            else:
                start += step
        step //= 2
    return tuple(needed)


def _bind(schema: pa.Schema, predicate: pc.Expression) -> None:
    ds.dataset(schema.empty_table()).scanner(columns=[], filter=predicate)


def _binds(schema: pa.Schema, predicate: pc.Expression) -> bool:
    try:
        _bind(schema, predicate)
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A run of neighbouring file groups, with the log files they need."""

    slices: tuple[FileSlice, ...]
    files: tuple[LiveFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file_slice.log_bytes + file_slice.base_bytes for file_slice in self.slices)


def make_tasks(slices: Sequence[FileSlice], files: Sequence[LiveFile], parallelism: int) -> list[ReadTask]:
    """Cut a snapshot into at most ``parallelism`` tasks of about equal bytes, none much below `TASK_MIN_BYTES`."""
    weights = [file_slice.log_bytes + file_slice.base_bytes for file_slice in slices]
    total = sum(weights)
    target = max(total / max(parallelism, 1), TASK_MIN_BYTES)
    runs: list[list[FileSlice]] = []
    filled = 0.0
    for file_slice, weight in zip(slices, weights, strict=True):
        if not runs or filled + weight / 2 > target * len(runs):
            runs.append([])
        runs[-1].append(file_slice)
        filled += weight
    return [read_task(run, files) for run in runs]


def read_task(run: Sequence[FileSlice], files: Sequence[LiveFile]) -> ReadTask:
    """The task that reads these file groups; carries only the log files that they need."""
    used = np.unique(np.concatenate([file_slice.file for file_slice in run]))
    return ReadTask(
        tuple(
            FileSlice(
                group=s.group,
                slice=s.slice,
                file=np.searchsorted(used, s.file),
                block=s.block,
                start=s.start,
                rows=s.rows,
                deletes=s.deletes,
                log_bytes=s.log_bytes,
            )
            for s in run
        ),
        tuple(files[i] for i in used.tolist()),
    )


@dataclass(frozen=True)
class Scan:
    """A planned read; what it needs of the store is fixed."""

    store: ObjectStore
    schema: TableSchema
    projection: Projection
    tasks: tuple[ReadTask, ...]
    mergers: frozenset[str]
    at: Cut

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch; keys not nullable."""
        return pa.schema([self.schema.field(name).remove_metadata() for name in self.projection.columns])

    @property
    def clean_files(self) -> list[FileRef] | None:
        """Base files that are the whole answer as they are; None where anything has to be merged, required, adapted."""
        slices = [file_slice for task in self.tasks for file_slice in task.slices]
        if self.projection.require or any(len(file_slice.rows) for file_slice in slices):
            return None
        files = [s.slice for s in slices if s.slice is not None and s.slice.base is not None]
        values = self.projection.values(self.schema)
        if not all(reads_as_it_is(self.schema, file.rev, values) for file in files):
            return None
        return [file.base for file in files if file.base is not None]

    def read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Rows of one task; about one batch per base row group.

        Raises:
            CorruptData: A file that the snapshot needs is missing or damaged. Nothing is skipped.
            SnapshotExpired: It is missing because cleaning has given the snapshot up.
        """
        mergers.prepare(self.schema, self.mergers)
        with reading(self.store, self.at):
            yield from self._read(task)

    def _read(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        needs = [_needs(self.schema, self.projection, file_slice) for file_slice in task.slices]
        logs = LogReader(self.store, self.schema, task.files, task.slices, [need.log_columns for need in needs])
        for file_slice, need in zip(task.slices, needs, strict=True):
            state = logs.collapse(file_slice, need.groups, need.values)
            stitch = Stitch(self.schema, need.columns, need.groups, exact=need.exact, ordered=False, result=need.result)
            base = read_base(self.store, self.schema, file_slice.slice, need.columns)
            shadow = read_shadow(self.store, self.schema, file_slice.slice, need.columns) if state is not None else None
            for stitched in stitch.run(base, shadow, state):
                if stitched.visible:
                    yield from self._finish(stitched.visible)

    def _finish(self, columns: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
        """Require, filter, project."""
        projection = self.projection
        rows = len(next(iter(columns.values())))
        keep: pa.Array | None = None
        for name in projection.require:
            present = columns[names.arrival(self.schema.group_by_name[name].id)].is_valid()
            keep = present if keep is None else pc.and_(keep, present)
        fields = [self.schema.field(name).remove_metadata() for name in projection.values(self.schema)]
        if not fields:  # only the number of rows is asked for
            batch = _row_count_batch(rows if keep is None else int(pc.sum(keep).as_py() or 0))
            if len(batch):
                yield batch
            return
        batch = pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))
        if keep is not None:
            batch = batch.filter(keep)
        if projection.filter is not None:
            batch = batch.filter(projection.filter)
        if len(batch):
            # `select` of no columns would forget how many rows there are.
            yield batch.select(list(projection.columns)) if projection.columns else _row_count_batch(len(batch))


def _row_count_batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


@dataclass(frozen=True, slots=True)
class _Needs:
    """What must be read of one file group.

    Attributes:
        values: User columns that are stitched.
        columns: Of base and shadow, named as in a slice.
        log_columns: Of log files, where they have them.
        groups: Groups whose state is merged.
        exact: Visibility must be decided, so the state of all groups is read.
        result: Those of ``columns`` that are looked at after merging.
    """

    values: tuple[str, ...]
    columns: tuple[str, ...]
    log_columns: frozenset[str]
    groups: tuple[Group, ...]
    exact: bool
    result: frozenset[str]


def _needs(schema: TableSchema, projection: Projection, file_slice: FileSlice) -> _Needs:
    values = projection.values(schema)
    if len(file_slice.rows) == 0:
        wanted = {*values, *(names.arrival(schema.group_by_name[name].id) for name in projection.require)}
        # Some column must be read, be it only to count the rows.
        columns = tuple(name for name in schema.slice.names if name in wanted) or (schema.sort_column,)
        return _Needs(values, columns, frozenset(), (), exact=False, result=frozenset(columns))
    exact = file_slice.deletes > 0 or (file_slice.slice is not None and file_slice.slice.shadow is not None)
    # A merger may say that upserts leave its group absent, and so hide a row.
    exact |= any(mode_of(group) is MODES["custom"] for group in schema.groups)
    asked = {schema.group_of_column[name].name for name in values if name in schema.group_of_column}
    groups = tuple(group for group in schema.groups if exact or group.name in asked or group.name in projection.require)
    # What a mode must see of an older register it must see of the events too: a merger sees all columns of its group.
    seen = {name for group in groups for name in mode_of(group).reads(group, schema.column_by_name, values)}
    values = tuple(column.name for column in schema.columns if column.name in values or column.name in seen)
    log_columns = {*values, *schema.key, schema.sort_column, *(name for group in groups for name in group.ordering)}
    if groups:
        log_columns.update((names.OP, names.SUPPLIED))
    columns = needed_columns(schema, values, groups, exact=exact)
    log_columns.update(columns)  # of folds, whose rows are registers
    state = {names.arrival(schema.group_by_name[name].id) for name in projection.require}
    if exact:
        state.update(name for group in groups for name in (names.arrival(group.id), names.floor_kind(group.id)))
    result = {*projection.values(schema), schema.sort_column, *state}.intersection(columns)
    return _Needs(values, columns, frozenset(log_columns), groups, exact, frozenset(result))

"""Scan: a planned read of one snapshot, and its execution task by task.

A `Scan` is planned on the driver; its tasks can be pickled and read anywhere. Reading columns C with filter F returns
the same rows as reading everything, then filtering, then projecting (MERGE.md, M4): the filter is evaluated on merged
rows, never on a version of a row that was overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage import mergers
from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, join_rows, take_rows
from weft.storage.core.keys import KeyVector
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.merge.contested import Bounds, contested, stored_bounds
from weft.storage.core.merge.stitch import LogState, Stitch, Stitched, needed_columns
from weft.storage.core.model import Group
from weft.storage.core.modes import Mergers, mode_of
from weft.storage.core.names import Path
from weft.storage.core.plan.key_ranges import KeyRange
from weft.storage.core.plan.overlaid import only_file
from weft.storage.core.plan.slices import FileSlice, FileSlices, combine_slices
from weft.storage.core.schema.evolution import reads_as_it_is
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import InvalidInput
from weft.storage.files.base_file import SliceReader
from weft.storage.files.log_reader import LogReader
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.plan.pruning import RowGroups, narrow_log_ranges
from weft.storage.read.plan.read_task import ReadTask
from weft.storage.read.plan.touched_keys import TouchedKeys
from weft.storage.read.request.projection import Projection
from weft.storage.read.request.scan_request import Keys
from weft.storage.read.scan.read_runs import cut_runs


@dataclass(frozen=True)
class Scan:
    """A planned read. It can be pickled if its environment can.

    Attributes:
        env: The environment of the table.
        schema: The schema of the snapshot.
        projection: Columns, filter and required groups of the result.
        slices: The file groups to read, in order of file group.
        tasks: The tasks that read them; the result is the union of their results, in no particular order.
        at: The cut of the snapshot.
        keys: Read only these keys, by file group; None for all.
        skipped: Number of file groups of the snapshot that no task reads, because they cannot have rows of the result.
        whole: Base files of the snapshot that contain only current rows of file groups without logs.
        threads: Number of tasks that `to_arrow` reads at the same time.
    """

    env: Environment
    schema: TableSchema
    projection: Projection
    slices: Sequence[FileSlice]
    tasks: tuple[ReadTask, ...]
    at: Cut
    keys: Keys | None = None
    skipped: int = 0
    whole: frozenset[Path] = frozenset()
    threads: int = 1

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch; keys are not nullable."""
        return self.projection.arrow(self.schema)

    @property
    def clean_files(self) -> list[FileRef] | None:
        """Base files, or overlays, that have the whole result after filtering; None if rows must be merged.

        A file may contain rows of file groups that were skipped: the filter removes them.
        """
        file_slices = FileSlices.of(self.slices)
        if self.projection.states(self.schema) or len(file_slices.rows):
            return None
        values = self.projection.values(self.schema)
        files: dict[Path, FileRef] = {}
        for slice_file in file_slices.slice_files:
            if slice_file is not None and slice_file.base is not None:
                file = only_file(self.schema, slice_file, values)
                if (
                    file is None
                    or slice_file.base.path not in self.whole
                    or not reads_as_it_is(self.schema, slice_file.rev, values)
                ):
                    return None
                files[file.path] = file
        return list(files.values())

    @property
    def divided(self) -> int:
        """Number of file groups that are divided between several tasks."""
        columns = [FileSlices.of(task.slices) for task in self.tasks]
        parts = [part.groups[i] for part in columns for i, within in enumerate(part.within) if within]
        return len(set(parts))

    def without_tasks(self) -> Scan:
        """A copy without the tasks and file groups, for processes to which tasks are sent one by one."""
        return replace(self, slices=(), tasks=(), whole=frozenset())

    def to_arrow(self) -> pa.Table:
        """The result as one table, read with several threads. Raises the errors of `read`."""
        threads = min(self.threads, len(self.tasks))
        if threads <= 1:
            parts = [list(self.read(task)) for task in self.tasks]
        else:
            with ThreadPoolExecutor(threads) as pool:
                parts = list(pool.map(lambda task: list(self.read(task)), self.tasks))
        return pa.Table.from_batches([batch for part in parts for batch in part], self.arrow)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream of batches, one task after the other. Reading it raises the errors of `read`."""
        batches = (batch for task in self.tasks for batch in self.read(task))
        return pa.RecordBatchReader.from_batches(self.arrow, batches)

    def read(self, task: ReadTask, requested_keys: Keys | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of one task; about one batch for each row group of a base file.

        Args:
            task: One of ``tasks``, or another task of the same snapshot.
            requested_keys: Read only these keys; None for `Scan.keys`. File groups without such keys are not read.

        Raises:
            CorruptData: A file that the snapshot needs is missing or damaged. Nothing is skipped.
            SnapshotExpired: A file is missing because the snapshot has expired.
            InvalidInput: A merge function has failed.
        """
        loaded = mergers.load(self.schema, self.env.mergers)
        selected = self.keys if requested_keys is None else requested_keys
        with explain_missing_file(self.env, self.at):
            yield from self._read(
                task if selected is None else _narrow_task(self.schema, task, selected), selected, loaded
            )

    def _read(self, task: ReadTask, requested_keys: Keys | None, loaded: Mergers) -> Iterator[pa.RecordBatch]:
        runs = [
            _Run.of(self.schema, self.projection, slices, keyed=requested_keys is not None or _cuts_row_groups(slices))
            for slices in cut_runs(task.slices, self.env.tuning.scan_run_bytes)
        ]
        columns = [run.needs.log_columns for run in runs]
        logs = LogReader(self.env, self.schema, task.files, [run.logs for run in runs], columns, loaded)
        for run in runs:
            run_keys = None
            if requested_keys is not None:
                run_keys = keys.union([requested_keys[group] for group in run.slices.groups])
            try:
                state = logs.collapse(run.logs, run.needs.groups, run.needs.values, run_keys)
                for stitched in self._stitch(run, run_keys, state, loaded):
                    if stitched.visible:
                        yield from self._finish(stitched.visible)
            except InvalidInput:
                self._fail_alone(run, task, requested_keys, loaded)
                raise

    def _fail_alone(self, run: _Run, task: ReadTask, requested_keys: Keys | None, loaded: Mergers) -> None:
        """Read the file groups of a failed run one by one, so that the error of a merge function names real keys."""
        if len(run.slices) > 1:
            for file_slice in run.slices:
                for _ in self._read(replace(task, slices=(file_slice,)), requested_keys, loaded):
                    pass

    def _stitch(
        self, run: _Run, requested_keys: KeyVector | None, logs: LogState | None, loaded: Mergers
    ) -> Iterator[Stitched]:
        need = run.needs
        files = run.slices.slice_files
        bounds = stored_bounds(self.schema, need.groups, files)
        columns = need.stored_columns(self.schema, _newest(need.groups, logs, bounds))
        stitch = Stitch(
            self.schema,
            columns,
            need.groups,
            exact=need.exact,
            ordered=False,
            result=need.result,
            mergers=loaded,
            bounds=bounds,
        )
        predicate = self.projection.predicate
        touched = None if logs is None or predicate is None else TouchedKeys(self.schema, predicate, logs, need.groups)
        reader = SliceReader(
            self.env, self.schema, columns, RowGroups(self.schema, predicate, requested_keys, touched).may_match
        )
        within = run.logs.within

        def of_keys(rows: Arrays, key_range: KeyRange | None) -> Arrays:
            if key_range is not None:
                rows = key_range.rows(rows, self.schema.sort_column)
            return (
                rows
                if requested_keys is None
                else _of_keys(self.schema, rows, requested_keys, in_order=len(files) == 1)
            )

        base_range = within if within is not None and within.within_row_groups else None
        base = (rows for rows in (of_keys(rows, base_range) for rows in reader.base(files)) if _count(rows))
        shadow = None
        if logs is not None:
            in_range = RowGroups(self.schema, None, None, None, within)
            hidden = join_rows(list(replace(reader, chosen=in_range.may_match).shadow(files)))
            shadow = of_keys(hidden, within) if hidden else None
        yield from stitch.run(base, shadow, logs)

    def _finish(self, columns: Arrays) -> Iterator[pa.RecordBatch]:
        """Apply required groups, filter and projection to merged rows."""
        projection = self.projection
        rows = _count(columns)
        keep: pa.Array | None = None
        for name in projection.require:
            present = columns[names.arrival(self.schema.group_by_name[name].id)].is_valid()
            keep = present if keep is None else pc.and_(keep, present)
        fields = [self.schema.field(name).remove_metadata() for name in projection.values(self.schema)]
        fields += [pa.field(names.arrival(group), pa.int64()) for group in projection.arrival_groups]
        if not fields:  # the result is a number of rows
            batch = row_count_batch(rows if keep is None else int(pc.sum(keep).as_py() or 0))
            if len(batch):
                yield batch
            return
        batch = pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))
        for state in {*projection.result_states, *projection.filter_states}:
            batch = batch.append_column(state.field, state.of(columns[names.arrival(state.group)]))
        if keep is not None:
            batch = batch.filter(keep)
        if projection.filter is not None:
            batch = batch.filter(projection.filter)
        if len(batch):
            # `select` of no columns loses the number of rows.
            yield batch.select(projection.output) if projection.output else row_count_batch(len(batch))


def _narrow_task(schema: TableSchema, task: ReadTask, requested_keys: Keys) -> ReadTask:
    """Reduce a task to the file groups and log ranges that can have requested keys."""
    slices = (file_slice for file_slice in task.slices if file_slice.group in requested_keys)
    return ReadTask(
        tuple(
            narrow_log_ranges(schema, file_slice, task.files, requested_keys[file_slice.group]) for file_slice in slices
        ),
        task.files,
    )


def _of_keys(schema: TableSchema, rows: Arrays, requested_keys: KeyVector, *, in_order: bool) -> Arrays:
    """The rows with a requested key; ``in_order`` if the rows are sorted by key."""
    vector = keys.key_vector(rows[schema.sort_column])
    if in_order:
        return take_rows(rows, pa.array(keys.positions(vector, requested_keys)))
    _, is_match = keys.find(requested_keys, vector)
    return take_rows(rows, pa.array(np.flatnonzero(is_match)))


def _newest(groups: Sequence[Group], logs: LogState | None, bounds: Bounds) -> list[Group]:
    """The groups whose registers in the logs are all newer than those of the slices with these bounds."""
    registers = logs.registers if logs is not None else {}
    merged = [
        (group, registers[group.id], bounds[group.id]) for group in groups if group.id in {*registers} & {*bounds}
    ]
    return [group for group, group_registers, bound in merged if not contested(group, group_registers, bound).any()]


def _cuts_row_groups(slices: FileSlices) -> bool:
    return any(within is not None and within.within_row_groups for within in slices.within)


def _count(rows: Arrays) -> int:
    return len(next(iter(rows.values())))


def row_count_batch(rows: int) -> pa.RecordBatch:
    """A batch with this number of rows and no columns."""
    return pa.record_batch(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


@dataclass(frozen=True, slots=True)
class _Run:
    """File groups that are read together; either all or none of them have logs.

    Attributes:
        slices: The file groups.
        logs: Their log ranges, combined into one slice.
        needs: The columns and groups to read.
    """

    slices: FileSlices
    logs: FileSlice
    needs: _Needs

    @classmethod
    def of(cls, schema: TableSchema, projection: Projection, slices: FileSlices, *, keyed: bool) -> _Run:
        return cls(slices, combine_slices(slices), _needs(schema, projection, slices, keyed=keyed))


@dataclass(frozen=True, slots=True)
class _Needs:
    """The columns and groups to read of a run.

    Attributes:
        values: Columns of the table to stitch.
        columns: Columns to read of base and shadow files, named as in a slice; see `stored_columns`.
        log_columns: Columns to read of log files, if a file has them.
        groups: Groups whose state is merged.
        exact: Whether rows may be hidden, so that the state of all groups is needed.
        result: The part of ``columns`` that is used after merging.
    """

    values: tuple[str, ...]
    columns: tuple[str, ...]
    log_columns: frozenset[str]
    groups: tuple[Group, ...]
    exact: bool
    result: frozenset[str]

    def stored_columns(self, schema: TableSchema, newest: Sequence[Group]) -> tuple[str, ...]:
        """The columns to read of base and shadow files if registers of ``newest`` groups replace all older ones."""
        replaced = {
            name for group in newest for name in mode_of(group).reads(group, schema.column_by_name, self.values)
        }
        return tuple(name for name in self.columns if name in self.result or name not in replaced)


def _needs(schema: TableSchema, projection: Projection, slices: FileSlices, *, keyed: bool) -> _Needs:
    """The columns to read of file groups; ``keyed`` if rows are selected by key."""
    values = projection.values(schema)
    states = projection.states(schema)
    if len(slices.rows) == 0:
        used = {*values, *states, *((schema.sort_column,) if keyed else ())}
        # At least one column must be read, to count the rows.
        columns = tuple(name for name in schema.slice.names if name in used) or (schema.sort_column,)
        return _Needs(values, columns, frozenset(), (), exact=False, result=frozenset(columns))
    exact = bool(slices.deletes.any()) or any(
        part is not None and part.shadow is not None for part in slices.slice_files
    )
    # A merge function may return that its group is absent despite upserts, which can hide a row.
    exact |= any(mode_of(group).may_hide_upsert for group in schema.groups)
    groups = schema.groups if exact else projection.groups(schema)
    # A mode needs the same columns of events as of older registers: a merge function gets all columns of its group.
    merge_columns = {name for group in groups for name in mode_of(group).reads(group, schema.column_by_name, values)}
    values = tuple(column.name for column in schema.columns if column.name in values or column.name in merge_columns)
    log_columns = {*values, *schema.key, schema.sort_column, *(name for group in groups for name in group.ordering)}
    if groups:
        log_columns.update((names.OP, names.SUPPLIED))
    columns = needed_columns(schema, values, groups, exact=exact)
    log_columns.update(columns)  # the rows of folds are registers
    if exact:
        states.update(name for group in groups for name in (names.arrival(group.id), names.floor_kind(group.id)))
    result = {*projection.values(schema), schema.sort_column, *states}.intersection(columns)
    return _Needs(values, columns, frozenset(log_columns), tuple(groups), exact, frozenset(result))

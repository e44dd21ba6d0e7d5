"""Scan: the plan of one read of one snapshot, and its execution task by task.

A `Scan` is made on the driver from a snapshot, a projection and a predicate; its tasks can be pickled and read
anywhere. A read of columns C with predicate P equals reading everything, then filtering, then projecting (M4): the
predicate sees merged rows only, never a version that lost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import mergers
from storage.core import keys, names
from storage.core.arrays import Arrays, take_rows
from storage.core.keys import KeyVector
from storage.core.log.cut import Cut
from storage.core.log.file_refs import FileRef
from storage.core.merge.stitch import LogState, Stitch, Stitched, needed_columns
from storage.core.model import Group
from storage.core.modes import Mergers, mode_of
from storage.core.names import Path
from storage.core.plan.slices import FileSlice, LiveFile, combine_slices, run_sums
from storage.core.schema.evolution import reads_as_it_is
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.errors import InvalidInput
from storage.files.base_file import read_base, read_shadow
from storage.files.log_reader import LogReader
from storage.read.missing_file import explain_missing_file
from storage.read.projection import Projection
from storage.read.pruning import Keys, RowGroups, narrowed

RUN_ROWS: Final = 64 * 1024  # and their rows, as in a row group: values that repeat are large in memory alone
# Bases are read batch by batch. But a delete in one file group has the state of all those of its run read.
RUN_BASE_ROWS: Final = 4 * RUN_ROWS
FULL_ENOUGH: Final = 0.5  # of a run that ends where a file ends
TASK_MIN_BYTES: Final = 4 * 1024 * 1024  # a smaller task costs more to start than to read


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
    if len(used) == len(files):
        return ReadTask(tuple(run), tuple(files))
    return ReadTask(
        tuple(replace(own, file=np.searchsorted(used, own.file)) for own in run),
        tuple(files[i] for i in used.tolist()),
    )


@dataclass(frozen=True)
class Scan:
    """A planned read; what it needs of the store is fixed.

    Attributes:
        keys: The keys that are wanted, of the file groups of ``tasks``; None for all.
        skipped: File groups of the snapshot that no task reads, because no row of theirs can be in the answer.
        whole: Base files of the snapshot that hold nothing else than file groups without logs.
    """

    env: Environment
    schema: TableSchema
    projection: Projection
    tasks: tuple[ReadTask, ...]
    at: Cut
    keys: Keys | None = None
    skipped: int = 0
    whole: frozenset[Path] = frozenset()

    @property
    def arrow(self) -> pa.Schema:
        """Schema of every batch; keys not nullable."""
        return self.projection.arrow(self.schema)

    @property
    def clean_files(self) -> list[FileRef] | None:
        """Base files that are the whole answer as they are, but for the filter; None where more has to be done.

        A file may hold file groups that were skipped: the filter leaves nothing of them.
        """
        slices = [file_slice for task in self.tasks for file_slice in task.slices]
        if self.projection.states(self.schema) or any(len(file_slice.rows) for file_slice in slices):
            return None
        files = [s.slice for s in slices if s.slice is not None and s.slice.base is not None]
        values = self.projection.values(self.schema)
        if not all(reads_as_it_is(self.schema, file.rev, values) for file in files):
            return None
        found = {file.base.path: file.base for file in files if file.base is not None}
        return list(found.values()) if self.whole.issuperset(found) else None

    def to_arrow(self) -> pa.Table:
        """The answer as one table, with one thread per task; rows in no particular order. Raises what `read` raises."""
        if len(self.tasks) <= 1:
            parts = [list(self.read(task)) for task in self.tasks]
        else:
            with ThreadPoolExecutor(len(self.tasks)) as pool:
                parts = list(pool.map(lambda task: list(self.read(task)), self.tasks))
        return pa.Table.from_batches([batch for part in parts for batch in part], self.arrow)

    def to_reader(self) -> pa.RecordBatchReader:
        """The answer as a stream of batches, one task after the other. Reading it raises what `read` raises."""
        batches = (batch for task in self.tasks for batch in self.read(task))
        return pa.RecordBatchReader.from_batches(self.arrow, batches)

    def read(self, task: ReadTask, wanted: Keys | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of one task; about one batch per base row group.

        Args:
            task: One of ``tasks``, or another one of the same snapshot.
            wanted: Read these keys alone, of these file groups alone; `Scan.keys` if None.

        Raises:
            CorruptData: A file that the snapshot needs is missing or damaged. Nothing is skipped.
            SnapshotExpired: It is missing because cleaning has given the snapshot up.
        """
        loaded = mergers.load(self.schema, self.env.mergers)
        chosen = self.keys if wanted is None else wanted
        with explain_missing_file(self.env, self.at):
            yield from self._read(task if chosen is None else _only(self.schema, task, chosen), chosen, loaded)

    def _read(self, task: ReadTask, wanted: Keys | None, loaded: Mergers) -> Iterator[pa.RecordBatch]:
        runs = [
            _Run.of(self.schema, self.projection, slices, keyed=wanted is not None)
            for slices in _runs(task.slices, self.env.tuning.scan_run_bytes)
        ]
        columns = [run.needs.log_columns for run in runs]
        logs = LogReader(self.env, self.schema, task.files, [run.logs for run in runs], columns, loaded)
        for run in runs:
            own_keys = None if wanted is None else keys.union([wanted[own.group] for own in run.slices])
            try:
                state = logs.collapse(run.logs, run.needs.groups, run.needs.values, own_keys)
                for stitched in self._stitch(run, own_keys, state, loaded):
                    if stitched.visible:
                        yield from self._finish(stitched.visible)
            except InvalidInput:
                self._fail_alone(run, task, wanted, loaded)
                raise

    def _fail_alone(self, run: _Run, task: ReadTask, wanted: Keys | None, loaded: Mergers) -> None:
        """A merger has failed, of single file groups: so it is told with the keys as they are, not as in a run."""
        if len(run.slices) > 1:
            for own in run.slices:
                for _ in self._read(replace(task, slices=(own,)), wanted, loaded):
                    pass

    def _stitch(
        self, run: _Run, wanted: KeyVector | None, logs: LogState | None, loaded: Mergers
    ) -> Iterator[Stitched]:
        need = run.needs
        stitch = Stitch(
            self.schema,
            need.columns,
            need.groups,
            exact=need.exact,
            ordered=False,
            result=need.result,
            mergers=loaded,
        )
        touched = self._touched(logs) if logs is not None and self.projection.predicate is not None else None
        chosen = RowGroups(self.schema, self.projection.predicate, wanted, touched)

        files = [own.slice for own in run.slices]

        def of_keys(rows: Arrays) -> Arrays:
            return rows if wanted is None else _of_keys(self.schema, rows, wanted, in_order=len(files) == 1)

        found = read_base(self.env, self.schema, files, need.columns, chosen.may_match)
        base = (own for own in map(of_keys, found) if _count(own))
        hidden = read_shadow(self.env, self.schema, files, need.columns) if logs is not None else None
        shadow = of_keys(hidden) if hidden is not None else None
        yield from stitch.run(base, shadow, logs)

    def _touched(self, logs: LogState) -> KeyVector:
        """The keys of logs, sorted as they are."""
        if logs.run_keys is None:
            return logs.directory.keys
        _, ordered = keys.in_order(keys.key_vector(logs.directory.columns[self.schema.sort_column]))
        return ordered

    def _finish(self, columns: Arrays) -> Iterator[pa.RecordBatch]:
        """Require, filter, project."""
        projection = self.projection
        rows = len(next(iter(columns.values())))
        keep: pa.Array | None = None
        for name in projection.require:
            present = columns[names.arrival(self.schema.group_by_name[name].id)].is_valid()
            keep = present if keep is None else pc.and_(keep, present)
        fields = [self.schema.field(name).remove_metadata() for name in projection.values(self.schema)]
        fields += [pa.field(names.arrival(group), pa.int64()) for group in projection.told]
        if not fields:  # only the number of rows is asked for
            batch = _row_count_batch(rows if keep is None else int(pc.sum(keep).as_py() or 0))
            if len(batch):
                yield batch
            return
        batch = pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))
        for state in {*projection.shown, *projection.filtered}:
            batch = batch.append_column(state.field, state.of(columns[names.arrival(state.group)]))
        if keep is not None:
            batch = batch.filter(keep)
        if projection.filter is not None:
            batch = batch.filter(projection.filter)
        if len(batch):
            # `select` of no columns would forget how many rows there are.
            yield batch.select(projection.output) if projection.output else _row_count_batch(len(batch))


def _only(schema: TableSchema, task: ReadTask, wanted: Keys) -> ReadTask:
    """What of a task can hold wanted keys."""
    slices = (own for own in task.slices if own.group in wanted)
    return ReadTask(tuple(narrowed(schema, own, task.files, wanted[own.group]) for own in slices), task.files)


def _of_keys(schema: TableSchema, rows: Arrays, wanted: KeyVector, *, in_order: bool) -> Arrays:
    """Those of the rows that have a wanted key."""
    vector = keys.key_vector(rows[schema.sort_column])
    if in_order:
        return take_rows(rows, pa.array(keys.positions(vector, wanted)))
    _, found = keys.find(wanted, vector)
    return take_rows(rows, pa.array(np.flatnonzero(found)))


def _count(rows: Arrays) -> int:
    return len(next(iter(rows.values())))


def _runs(slices: Sequence[FileSlice], run_bytes: int) -> list[list[FileSlice]]:
    """Small file groups together: what a file group costs besides its rows is felt where there are many.

    Those with logs apart from those without, which need less; each kind in order. A run ends where a file ends, if it
    can: what is on both sides is opened, and in part decoded, twice.
    """
    runs: list[list[FileSlice]] = []
    for with_logs in (True, False):
        own_run: list[FileSlice] = []
        filled = 0.0
        file: Path | None = None
        for own, log_rows in zip(slices, _log_rows(slices), strict=True):
            if (len(own.rows) > 0) is not with_logs:
                continue
            base = own.slice.base if own.slice is not None else None
            stays = base is None or base.path == file
            file = base.path if base is not None else file
            share = _share_of_run(own, log_rows, run_bytes)
            filled += share
            if not own_run or filled > (1 if stays else FULL_ENOUGH):
                own_run = []
                runs.append(own_run)
                filled = share
            own_run.append(own)
    return [part for run in runs for part in _apart(run)]


def _apart(run: Sequence[FileSlice]) -> list[list[FileSlice]]:
    """A run as several where base files take turns in it: each is opened, and its row groups decoded, once a run.

    Order within each stays. That happens where some of a file's groups have got newer slices in another one.
    """
    paths = [own.slice.base.path if own.slice is not None and own.slice.base is not None else None for own in run]
    turns = Counter(path for path, _ in itertools.groupby(filter(None, paths)))
    parts: dict[Path | None, list[FileSlice]] = {}
    for own, path in zip(run, paths, strict=True):
        parts.setdefault(path if path is not None and turns[path] > 1 else None, []).append(own)
    return list(parts.values())


def _log_rows(slices: Sequence[FileSlice]) -> list[int]:
    """Rows of the ranges of each file group."""
    bounds = np.cumsum([0, *(len(own.rows) for own in slices)])
    return run_sums(np.concatenate([np.empty(0, np.int64), *(own.rows for own in slices)]), bounds)


def _share_of_run(own: FileSlice, log_rows: int, run_bytes: int) -> float:
    """How much of a run a file group fills."""
    base_rows, shadow_rows, held = 0, 0, own.log_bytes
    if own.slice is not None:
        base_rows, shadow_rows = own.slice.base_rows, own.slice.shadow_rows
        held += own.slice.shadow_bytes
    return max(held / run_bytes, (shadow_rows + log_rows) / RUN_ROWS, base_rows / RUN_BASE_ROWS)


def _row_count_batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


@dataclass(frozen=True, slots=True)
class _Run:
    """File groups that are read together, all with logs or all without.

    Attributes:
        logs: Their log ranges, as those of one.
    """

    slices: tuple[FileSlice, ...]
    logs: FileSlice
    needs: _Needs

    @classmethod
    def of(cls, schema: TableSchema, projection: Projection, slices: Sequence[FileSlice], *, keyed: bool) -> _Run:
        return cls(tuple(slices), combine_slices(slices), _needs(schema, projection, slices, keyed=keyed))


@dataclass(frozen=True, slots=True)
class _Needs:
    """What must be read of a run of file groups.

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


def _needs(schema: TableSchema, projection: Projection, slices: Sequence[FileSlice], *, keyed: bool) -> _Needs:
    values = projection.values(schema)
    states = projection.states(schema)
    if all(len(own.rows) == 0 for own in slices):
        wanted = {*values, *states, *((schema.sort_column,) if keyed else ())}
        # Some column must be read, be it only to count the rows.
        columns = tuple(name for name in schema.slice.names if name in wanted) or (schema.sort_column,)
        return _Needs(values, columns, frozenset(), (), exact=False, result=frozenset(columns))
    exact = any(own.deletes or (own.slice is not None and own.slice.shadow is not None) for own in slices)
    # A merger may say that upserts leave its group absent, and so hide a row.
    exact |= any(mode_of(group).may_hide_upsert for group in schema.groups)
    groups = schema.groups if exact else projection.groups(schema)
    # What a mode must see of an older register it must see of the events too: a merger sees all columns of its group.
    seen = {name for group in groups for name in mode_of(group).reads(group, schema.column_by_name, values)}
    values = tuple(column.name for column in schema.columns if column.name in values or column.name in seen)
    log_columns = {*values, *schema.key, schema.sort_column, *(name for group in groups for name in group.ordering)}
    if groups:
        log_columns.update((names.OP, names.SUPPLIED))
    columns = needed_columns(schema, values, groups, exact=exact)
    log_columns.update(columns)  # of folds, whose rows are registers
    if exact:
        states.update(name for group in groups for name in (names.arrival(group.id), names.floor_kind(group.id)))
    result = {*projection.values(schema), schema.sort_column, *states}.intersection(columns)
    return _Needs(values, columns, frozenset(log_columns), tuple(groups), exact, frozenset(result))

"""Measures a table for monitoring: sizes, waiting work, watermarks, and samples of what only its files know.

`measure` uses the plan of a snapshot, and reads the last commit of each lane for its watermarks. `sample` reads footers
of some base files, and the waiting log rows of one file group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weft.storage import mergers
from weft.storage.core import keys, names, ordering
from weft.storage.core.log.file_refs import FileRef, Overlay
from weft.storage.core.merge.collapse import LogRange
from weft.storage.core.model import Group
from weft.storage.core.names import TABLE_LANE, LaneName, Path
from weft.storage.core.plan.due_policy import DuePolicy, propose_buckets
from weft.storage.core.plan.overlaid import files_of_columns
from weft.storage.core.plan.read_cost import read_amplification
from weft.storage.core.plan.regroup_slices import other_bits
from weft.storage.core.plan.slices import FileSlice, log_rows
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.log_reader import LogReader
from weft.storage.read.plan.read_task import read_task
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.due_work import find_due

Counts = npt.NDArray[np.int64]

SAMPLED_FILES: Final = 16
SAMPLED_EVENTS: Final = 200_000


@dataclass(frozen=True, slots=True)
class TableMeasures:
    """Sizes and waiting work of a table at one snapshot. Sizes are stored bytes.

    Attributes:
        buckets: The number of buckets that the table is set to.
        proposed_buckets: The number of buckets proposed for its size; equal to ``buckets`` if no split is proposed.
        unsplit_groups: File groups with another number of bits, which wait to be split or merged.
        file_groups: File groups that have rows.
        log_files: Log files with rows that are not in base files yet.
        commits_waiting: Commits and folds with such rows.
        events_waiting: Number of such rows.
        base_rows: Visible rows in base files.
        base_bytes: Size of base and shadow files.
        log_bytes: Size of the log rows that are not in base files yet.
        read_amplification: Bytes that a read of all file groups with a base fetches, divided by the bytes of their
            base; 1.0 if nothing waits. None without a base.
        max_read_amplification: Largest read amplification of a single file group. None without a base.
        due_groups: File groups that are due for compaction or a fold; None without a policy.
        due_bytes: Stored bytes that this work reads; None without a policy.
        plans_open: Compactions and folds that have begun and neither ended nor been aborted.
        log_objects: Objects that hold the entries of all lanes: one per archive, and one per entry outside archives.
        entries: Number of entries of each lane, "" for the table lane; never decreases.
        late: Events that were below the watermark of their lane, by stream and group; 0 without a lateness. Empty if
            they were not counted.
    """

    buckets: int
    proposed_buckets: int
    unsplit_groups: int
    file_groups: int
    log_files: int
    commits_waiting: int
    events_waiting: int
    base_rows: int
    base_bytes: int
    log_bytes: int
    read_amplification: float | None
    max_read_amplification: float | None
    due_groups: int | None
    due_bytes: int | None
    plans_open: int
    log_objects: int
    entries: Mapping[LaneName, int]
    late: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TableSample:
    """Measures of a sample of a table's files.

    Attributes:
        fill: Share of rows in the sampled base files in which a group is present, by group; empty without base files.
        events: Events of the sampled file group that are not in a base file or fold yet, counted once for each of their
            groups with ordering columns.
        late: Events with smaller ordering values than an earlier one of them with the same key and group. They lost.
        ties: Events with the same ordering values as the largest earlier one: a repeated message, or an ordering column
            that is too coarse.
    """

    fill: Mapping[str, float]
    events: int
    late: int
    ties: int


def measure(snapshot: Snapshot, policy: DuePolicy | None = None, *, watermarks: bool = True) -> TableMeasures:
    """Measure a head snapshot.

    Args:
        snapshot: The snapshot.
        policy: Decides what is due.
        watermarks: Count late events, which takes a request for each lane.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    slices, files, state = snapshot.slices, snapshot.files, snapshot.state
    with_base = [file_slice for file_slice in slices if file_slice.base_bytes]
    base_bytes = sum(file_slice.base_bytes for file_slice in slices)
    reads = [read_amplification(file_slice, files) for file_slice in with_base]
    fetched_bytes = sum(factor * file_slice.base_bytes for factor, file_slice in zip(reads, with_base, strict=True))
    due = None if policy is None else find_due(snapshot, policy).values()
    entries = {TABLE_LANE: state.head, **snapshot.cut.lanes}
    bits = snapshot.table_schema.bucket_bits
    return TableMeasures(
        buckets=1 << bits,
        proposed_buckets=propose_buckets(slices, bits),
        unsplit_groups=len(other_bits(slices, bits)),
        file_groups=len(slices),
        log_files=len(files),
        commits_waiting=len({(file.lane, file.seq) for file in files}),
        events_waiting=log_rows(slices),
        base_rows=sum(file_slice.slice.base_rows for file_slice in slices if file_slice.slice),
        base_bytes=base_bytes,
        log_bytes=sum(file_slice.log_bytes for file_slice in slices),
        read_amplification=fetched_bytes / base_bytes if base_bytes else None,
        max_read_amplification=max(reads, default=None),
        due_groups=None if due is None else len(due),
        due_bytes=None if due is None else sum(work.bytes for work in due),
        plans_open=len(state.plans),
        log_objects=_log_objects(snapshot, entries),
        entries=entries,
        late={
            (stream, group): mark.late
            for stream, marks in (snapshot.watermarks() if watermarks else {}).items()
            for group, mark in marks.items()
        },
    )


def _log_objects(snapshot: Snapshot, entries: Mapping[LaneName, int]) -> int:
    chunk = snapshot.table_log.env.tuning.archive_chunk
    archives = {lane: snapshot.state.archived.get(lane, 0) // chunk for lane in entries}
    return sum(count - archives[lane] * chunk + archives[lane] for lane, count in entries.items())


def sample(snapshot: Snapshot, *, max_files: int = SAMPLED_FILES, max_events: int = SAMPLED_EVENTS) -> TableSample:
    """Sample a snapshot: footers of some base files, and the waiting events of one file group.

    Args:
        snapshot: The snapshot.
        max_files: Number of base files, spread evenly over the table.
        max_events: Of the file groups with at most this many waiting rows, the one with the most is sampled.

    Raises:
        CorruptData: A file is missing or damaged.
        StoreUnavailable: The store does not answer.
    """
    candidates = [file_slice for file_slice in snapshot.slices if 0 < int(file_slice.rows.sum()) <= max_events]
    sampled_slice = max(candidates, key=lambda file_slice: int(file_slice.rows.sum()), default=None)
    counts = np.zeros(3, np.int64) if sampled_slice is None else _count_arrivals(snapshot, sampled_slice)
    events, late, ties = counts.tolist()
    return TableSample(_fill(snapshot, max_files), events, late, ties)


def _fill(snapshot: Snapshot, max_files: int) -> dict[str, float]:
    env, schema = snapshot.table_log.env, snapshot.table_schema
    bases: dict[Path, tuple[FileRef, Sequence[Overlay]]] = {
        file_slice.slice.base.path: (file_slice.slice.base, file_slice.slice.overlays)
        for file_slice in snapshot.slices
        if file_slice.slice and file_slice.slice.base
    }
    sampled_bases = list(bases.values())[:: max(1, -(-len(bases) // max_files))]
    rows = sum(base.rows for base, _ in sampled_bases)
    if not rows:
        return {}
    files = {file.path: file for base, overlays in sampled_bases for file in (base, *(part.file for part in overlays))}
    footers = dict(zip(files, read_footers(env, list(files.values())), strict=True))
    rows_with_group: Counter[str] = Counter()
    for base, overlays in sampled_bases:
        for group in schema.groups:
            arrival = names.arrival(group.id)
            (column_file,) = files_of_columns(schema, base, overlays, [arrival])
            rows_with_group[group.name] += _present_rows(footers[column_file.file.path], arrival)
    return {group.name: rows_with_group[group.name] / rows for group in schema.groups}


def _present_rows(footer: Footer, column: str) -> int:
    """Rows of a file with a non-null arrival of a group; 0 if the file is older than the group."""
    leaf = footer.leaves.get(column)
    if leaf is None:
        return 0
    row_groups = (footer.metadata.row_group(number) for number in range(footer.metadata.num_row_groups))
    return sum(row_group.num_rows - row_group.column(leaf).statistics.null_count for row_group in row_groups)


def _count_arrivals(snapshot: Snapshot, file_slice: FileSlice) -> Counts:
    """Count (events, late, ties) of the waiting events of one file group, see `TableSample`."""
    schema, env = snapshot.table_schema, snapshot.table_log.env
    groups = [group for group in schema.groups if group.ordering]
    columns = {*schema.key, schema.sort_column, names.OP, *(name for group in groups for name in group.ordering)}
    work = read_task([file_slice], snapshot.files)
    custom_mergers = mergers.load(schema, env.mergers)
    ranges = list(LogReader(env, schema, work.files, work.slices, [columns], custom_mergers).events(work.slices[0]))
    counts = np.zeros(3, np.int64)
    for group in groups:
        group_ranges = [log_range for log_range in ranges if group.id in log_range.groups]
        if group_ranges:
            counts += _arrivals_of_group(group_ranges, group)
    return counts


def _arrivals_of_group(ranges: Sequence[LogRange], group: Group) -> Counts:
    """Count (events, late, ties) of one group. Events of a key are in version order within ``ranges``."""
    values = [pa.concat_arrays([log_range.columns[name] for log_range in ranges]) for name in group.ordering]
    vector = keys.concat([log_range.keys for log_range in ranges])
    has_no_version = ordering.all_null(values)
    if has_no_version is not None:  # such events do not touch the group
        vector = keys.take(vector, ~has_no_version)
        values = [column.filter(pa.array(~has_no_version)) for column in values]
    if not len(vector):
        return np.zeros(3, np.int64)
    order, ordered_keys = keys.in_order(vector)
    starts = keys.run_starts(ordered_keys)
    ordinal = np.zeros(len(order), np.int64)
    ordinal[starts[1:]] = 1
    dense = np.unique(ordering.ranks(values), return_inverse=True)[1][order]
    # One number for (key, version): its running maximum never falls back to an earlier key.
    version = np.cumsum(ordinal) * (len(order) + 1) + dense
    highest = np.maximum.accumulate(version)[:-1]
    is_repeated = ordinal[1:] == 0
    late, ties = is_repeated & (version[1:] < highest), is_repeated & (version[1:] == highest)
    return np.array([len(order), late.sum(), ties.sum()], np.int64)

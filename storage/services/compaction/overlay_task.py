"""Writes an overlay instead of a base: a file with the column groups that have changed (PROTOCOL.md, "Overlays").

A compaction may do so if its logs add no row, hide no row, and have no key of the shadow. Then the new slice has the
rows of the old base in the same order, and only the column groups in the logs differ.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays
from weft.storage.core.log.file_refs import FileRef, Overlay, SliceFile
from weft.storage.core.merge.stitch import LogState, Stitch
from weft.storage.core.model import Group
from weft.storage.core.modes import Mergers, mode_of
from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.base_file import SliceReader
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.slice_file_writer import SliceFileWriter
from weft.storage.files.slice_statistics import SliceStatistics
from weft.storage.services.compaction.merged_rows import base_rows, shadow_rows


@dataclass(frozen=True, slots=True)
class OverlayPlan:
    """What an overlay contains.

    Attributes:
        base: The base file that it belongs to.
        groups: The column groups to write.
        kept_overlays: The older overlays of the slice, with the groups that are still read from them.
        row_groups: Number of rows in each row group.
    """

    base: FileRef
    groups: tuple[Group, ...]
    kept_overlays: tuple[Overlay, ...]
    row_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewOverlay:
    """An overlay that was written: the overlays of the new slice, and the statistics of all its rows."""

    overlays: list[Overlay]
    statistics: SliceStatistics
    groups: tuple[Group, ...]


def plan_overlay(
    env: Environment, schema: TableSchema, file_slice: FileSlice, changed_groups: Collection[int]
) -> OverlayPlan | None:
    """Plan an overlay; None if a base has to be written.

    That is so if the slice has no base, shares it, or has columns of an older schema, or if the overlay would be larger
    than `Tuning.overlay_percent`. A slice has at most `Tuning.overlay_files` overlays; a further one replaces them all.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        file_slice: The file group.
        changed_groups: Ids of the column groups that its logs change.

    Raises:
        CorruptData: A file is missing, or its footer is damaged.
    """
    slice_file = file_slice.slice
    if not schema.overlays or not changed_groups or slice_file is None:
        return None
    if slice_file.base is None or slice_file.base_part is not None or slice_file.rev < schema.changed:
        return None
    group_ids = set(changed_groups)
    kept_overlays = [
        Overlay(file=overlay.file, groups=remaining_ids)
        for overlay in slice_file.overlays
        if (remaining_ids := sorted({*overlay.groups} - group_ids))
    ]
    if len(kept_overlays) >= env.tuning.overlay_files:
        group_ids |= {group for overlay in kept_overlays for group in overlay.groups}
        kept_overlays = []
    footers = read_footers(env, [slice_file.base, *(overlay.file for overlay in slice_file.overlays)])
    groups = tuple(group for group in schema.groups if group.id in group_ids)
    size = _stored_bytes(footers[0], {*schema.key, schema.sort_column})
    for footer, file_groups in _groups_by_footer(footers, slice_file.overlays, groups):
        size += _stored_bytes(footer, {name for group in file_groups for name in schema.group_columns(group)})
    if not groups or size * 100 > env.tuning.overlay_percent * slice_file.base.size:
        return None
    starts = footers[0].starts
    rows = tuple(end - first for first, end in itertools.pairwise(starts))
    return OverlayPlan(slice_file.base, groups, tuple(kept_overlays), rows)


def _groups_by_footer(
    footers: Sequence[Footer], overlays: Sequence[Overlay], groups: Sequence[Group]
) -> Iterator[tuple[Footer, list[Group]]]:
    """The footers of base and overlays, each with the groups whose newest values are in that file."""
    ids_by_overlay = [set(overlay.groups) for overlay in overlays]
    overlaid_ids = set().union(*ids_by_overlay)
    for footer, group_ids in zip(footers[1:], ids_by_overlay, strict=True):
        yield footer, [group for group in groups if group.id in group_ids]
    yield footers[0], [group for group in groups if group.id not in overlaid_ids]


def _stored_bytes(footer: Footer, columns: set[str]) -> int:
    """Stored bytes of some columns of a file."""
    paths = [footer.metadata.schema.column(leaf).path for leaf in range(footer.metadata.num_columns)]
    leaves = [leaf for leaf, path in enumerate(paths) if path in columns or path.split(".", 1)[0] in columns]
    row_groups = [footer.metadata.row_group(number) for number in range(footer.metadata.num_row_groups)]
    return sum(row_group.column(leaf).total_compressed_size for row_group in row_groups for leaf in leaves)


def write_overlay(
    env: Environment,
    schema: TableSchema,
    file_slice: FileSlice,
    plan: OverlayPlan,
    path: Path,
    logs: Iterable[tuple[FileSlice, LogState | None]],
    mergers: Mergers,
) -> NewOverlay | None:
    """Write an overlay. None, and no file, if the logs would add or hide a row, or change a hidden one.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        file_slice: The file group.
        plan: What to write.
        path: Path of the file.
        logs: The key ranges of the file group in order, each with its collapsed logs.
        mergers: Its custom mergers.

    Raises:
        CorruptData: A file is missing or damaged.
        InvalidInput: A merge function has failed.
    """
    column_names = {
        *schema.key,
        schema.sort_column,
        *(name for group in plan.groups for name in schema.group_columns(group)),
    }
    columns = [name for name in schema.slice.names if name in column_names]
    statistics = SliceStatistics(schema, plan.groups)
    exact = bool(file_slice.deletes) or any(mode_of(group).may_hide_upsert for group in schema.groups)
    if exact:
        column_names.update(
            name for group in schema.groups for name in (names.arrival(group.id), names.floor_kind(group.id))
        )
    reads = tuple(name for name in schema.slice.names if name in column_names)
    stitch = Stitch(schema, reads, plan.groups, exact=exact, ordered=True, result=frozenset(reads), mergers=mergers)
    reader = SliceReader(env, schema, reads)
    writer = SliceFileWriter(env, path, schema, columns=columns, row_groups=plan.row_groups, index=schema.index)
    try:
        for key_range, changes in logs:
            hidden = shadow_rows(SliceReader(env, schema, columns), key_range)
            if hidden is not None:
                _check_unchanged(schema, hidden, changes)
                statistics.add(hidden)
            for rows in _same_rows(schema, stitch, base_rows(reader, key_range), changes):
                statistics.add(rows)
                writer.write(rows)
        file = writer.close()
    except _RowsDiffer as reason:
        writer.discard(reason)
        return None
    except BaseException as error:
        writer.discard(error)
        raise
    assert file is not None, "a base has rows"
    overlay = Overlay(file=file, groups=sorted(group.id for group in plan.groups))
    return NewOverlay([*plan.kept_overlays, overlay], statistics, plan.groups)


def _check_unchanged(schema: TableSchema, hidden: Arrays, logs: LogState | None) -> None:
    """Check that the logs have no key of the shadow."""
    if logs is not None:
        _, is_in_logs = keys.find(logs.directory.keys, keys.key_vector(hidden[schema.sort_column]))
        if is_in_logs.any():
            raise _RowsDiffer


def _same_rows(
    schema: TableSchema, stitch: Stitch, base: Iterable[Arrays], logs: LogState | None
) -> Iterator[dict[str, pa.Array]]:
    """The merged rows of a key range, which must have the keys of the base in the same batches."""
    sort_columns: deque[pa.Array] = deque()

    def remembered() -> Iterator[Arrays]:
        for rows in base:
            sort_columns.append(rows[schema.sort_column])
            yield rows

    for stitched in stitch.run(remembered(), None, logs):
        if not sort_columns or stitched.hidden or not stitched.visible:  # only new rows, or rows that are hidden now
            raise _RowsDiffer
        if not stitched.visible[schema.sort_column].equals(sort_columns.popleft()):
            raise _RowsDiffer
        yield stitched.visible


class _RowsDiffer(Exception):
    """An overlay is not possible: its rows would differ from those of the base, or it would change hidden rows."""


def overlaid_slice(schema: TableSchema, slice_file: SliceFile, overlay: NewOverlay) -> dict[str, object]:
    """The fields of a slice that an overlay changes: its overlays, and statistics of their groups."""
    columns = {schema.column_by_name[name].id for group in overlay.groups for name in group.columns}
    other_overflows = {column: count for column, count in slice_file.overflows.items() if column not in columns}
    ordering_max = {**slice_file.ordering_max, **overlay.statistics.ordering_max}
    return {
        "overlays": overlay.overlays,
        "ordering_max": ordering_max,
        "overflows": {**other_overflows, **overlay.statistics.overflows},
    }

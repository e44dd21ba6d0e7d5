"""Finds the file of each column of a slice: overlays replace column groups of a base file (FORMAT.md, "Overlays")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, FileRef, Overlay, SliceFile
from weft.storage.core.plan.slices import FileSlice
from weft.storage.core.schema.table_schema import TableSchema


class ReadFile(NamedTuple):
    """A file, and the columns that are read from it."""

    file: FileRef
    columns: tuple[str, ...]


def overlaid_columns(schema: TableSchema, overlays: Sequence[Overlay]) -> Mapping[str, int]:
    """For each column of an overlay, the position of the overlay with its newest values."""
    if not overlays:
        return {}
    groups = {group.id: group for group in schema.groups}
    return {
        name: position
        for position, overlay in enumerate(overlays)
        for group in overlay.groups
        for name in schema.group_columns(groups[group])
    }


def files_of_columns(
    schema: TableSchema, base: FileRef, overlays: Sequence[Overlay], columns: Collection[str]
) -> list[ReadFile]:
    """The files to read for columns of a base, at least one file, each with its columns.

    Key columns are in every file, and are read from the first one.

    Args:
        schema: The schema of the table.
        base: The base file.
        overlays: The overlays of its slice.
        columns: Names of columns of the slice schema, hidden ones included.
    """
    columns_by_file: dict[int, list[str]] = {}
    newer = overlaid_columns(schema, overlays)
    in_keys = {*schema.key, schema.sort_column}
    for name in columns:
        if name not in in_keys:
            columns_by_file.setdefault(newer.get(name, -1), []).append(name)
    positions = sorted(columns_by_file) or [-1]
    columns_by_file.setdefault(positions[0], []).extend(name for name in columns if name in in_keys)
    files = {-1: base, **{position: overlay.file for position, overlay in enumerate(overlays)}}
    return [ReadFile(files[position], tuple(columns_by_file[position])) for position in positions]


def only_file(schema: TableSchema, file_slice: SliceFile, columns: Collection[str]) -> FileRef | None:
    """The file that has all these columns of the visible rows of a slice; None if they are in several files."""
    if file_slice.base is None:
        return None
    files = files_of_columns(schema, file_slice.base, file_slice.overlays, columns)
    return files[0].file if len(files) == 1 else None


def overlaid_groups(slices: Iterable[FileSlice], heads: cut.Seqs) -> frozenset[FileGroup]:
    """File groups whose slices have overlays that a compaction can replace.

    Args:
        slices: Slices of a snapshot.
        heads: Last entry of the snapshot in each lane. A slice with this cut is not compacted, because its successor
            would have the same cut (PROTOCOL.md, K3).
    """
    return frozenset(
        file_slice.group
        for file_slice in slices
        if file_slice.slice is not None
        and file_slice.slice.overlays
        and any(file_slice.slice.cut.get(lane, 0) != seq for lane, seq in heads.items())
    )

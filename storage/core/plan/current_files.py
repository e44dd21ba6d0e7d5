"""The base files of a state, and their current rows.

A shared base file may contain rows of file groups that have a newer slice in another file. Readers that open base files
themselves must leave these rows out (FORMAT.md, "Base and shadow files").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.storage.core.log.file_refs import FilePart, FileRef
from weft.storage.core.names import Path
from weft.storage.core.plan.slices import FileSlice, whole_files
from weft.storage.core.schema.evolution import reads_as_it_is
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class CurrentFile:
    """A base file with its current rows.

    Attributes:
        file: The file.
        rev: Revision of the schema that it was written with.
        parts: The current rows, ascending, if some file groups of the file have newer slices; None for all rows.
        overlaid: Ids of the column groups that overlays replace; the file has older values of these groups.
    """

    file: FileRef
    rev: int
    parts: tuple[FilePart, ...] | None
    overlaid: frozenset[int] = frozenset()

    @property
    def unused(self) -> list[tuple[int, int]]:
        """The rows that are not current, as spans [first, end) of row numbers, ascending."""
        spans, end = [], 0
        for part in () if self.parts is None else self.parts:
            if part.first > end:
                spans.append((end, part.first))
            end = part.first + part.rows
        if self.parts is not None and end < self.file.rows:
            spans.append((end, self.file.rows))
        return spans

    @property
    def unused_rows(self) -> int:
        """The number of rows that are not current."""
        return sum(end - first for first, end in self.unused)


def current_files(slices: Sequence[FileSlice]) -> list[CurrentFile]:
    """One entry for every base file of the slices, in the order in which the slices refer to them."""
    whole = whole_files(slices)
    files: dict[Path, tuple[FileRef, int, list[FilePart], frozenset[int]]] = {}
    for slice_file in (file_slice.slice for file_slice in slices):
        if slice_file is not None and slice_file.base is not None:
            overlaid = frozenset(group for overlay in slice_file.overlays for group in overlay.groups)
            parts = files.setdefault(slice_file.base.path, (slice_file.base, slice_file.rev, [], overlaid))[2]
            if slice_file.base_part is not None:
                parts.append(slice_file.base_part)
    return [
        CurrentFile(
            file, rev, None if file.path in whole else tuple(sorted(parts, key=lambda part: part.first)), overlaid
        )
        for file, rev, parts, overlaid in files.values()
    ]


def check_current_values(
    schema: TableSchema,
    files: Sequence[CurrentFile],
    columns: Sequence[str],
    *,
    overlaid_advice: str,
    older_advice: str,
) -> None:
    """Check that the values in files are those of the table, for other Parquet readers.

    Args:
        schema: Schema of the table.
        files: Base files.
        columns: Columns to read.
        overlaid_advice: End of the hint for columns of overlays.
        older_advice: End of the hint for files of older schemas.

    Raises:
        InvalidInput: Overlays have newer values of a column, or some files have an older schema with other values in a
            value column. Keys cannot have defaults: they can only differ by a narrower type, which readers widen.
    """
    groups, overlays = schema.group_of_column, frozenset[int]().union(*(file.overlaid for file in files))
    if overlaid := [name for name in columns if name in groups and groups[name].id in overlays]:
        raise InvalidInput(
            f"overlays have newer values than base files in column {', '.join(overlaid)}",
            hint=f"list only other columns{overlaid_advice}",
        )
    revs = {file.rev for file in files}
    values = (name for name in columns if name not in schema.key)
    if older := [name for name in values if not all(reads_as_it_is(schema, rev, (name,)) for rev in revs)]:
        raise InvalidInput(
            f"base files of an older schema have other values than the table in column {', '.join(older)}",
            hint=f"list only other columns{older_advice}",
        )

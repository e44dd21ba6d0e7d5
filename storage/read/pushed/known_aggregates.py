"""Computes counts, minima and maxima of file groups without logs from metadata, without reading rows.

The number of rows is in the entry of a slice. The number of nulls and the extremes of a column are in the footers of
base files and overlays, and are used only where they are exact:

* All rows of the file are current rows of file groups of the read, and the read has neither a filter nor required
  groups.
* The file has the column with the values and the type that the table shows.
* Extremes are of integers, dates, times or booleans. Extremes of texts, binaries, floats and decimals are read from
  rows, because Parquet may truncate a text, does not order NaN and the zeros, and has several orders for decimals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from weft.storage.core.log.file_refs import FileRef, SliceFile
from weft.storage.core.names import Path
from weft.storage.core.plan.overlaid import only_file
from weft.storage.core.plan.slices import FileSlice
from weft.storage.core.predicate import ColumnRange
from weft.storage.core.schema.evolution import reads_as_it_is
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.row_group_statistics import column_ranges
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.pushed.partial_aggregates import Aggregate, AggregateKind, Aggregation
from weft.storage.read.scan.scan import Scan

MOST_FOOTERS: Final = 256
"""With more files, tasks read the rows, because planning the query reads the footers."""

_EXTREMES: Final = (AggregateKind.MIN, AggregateKind.MAX)
_IN_METADATA: Final = (AggregateKind.COUNT_ROWS, AggregateKind.COUNT, *_EXTREMES)


def known_aggregates(scan: Scan, aggregation: Aggregation) -> tuple[Scan, pa.RecordBatch | None]:
    """Divide a scan into the file groups whose rows must be read, and the partial result of the others.

    Args:
        scan: A scan whose file groups are not divided yet.
        aggregation: The aggregation of its rows.

    Returns:
        The scan without the file groups whose aggregates are known, and their result, with the schema of
        `weft.storage.read.pushed.partial_aggregates.Aggregation.result`; None if no aggregates are known.

    Raises:
        CorruptData: A base file is missing, or its footer is damaged.
        SnapshotExpired: A base file is missing because the snapshot has expired.
    """
    if not _may_be_known(scan, aggregation):
        return scan, None
    columns = tuple(dict.fromkeys(aggregate.column for aggregate in aggregation.aggregates if aggregate.column))
    candidates = _whole_files(scan, columns) if columns else [_Unlogged([part], {}) for part in _without_logs(scan)]
    if not candidates:
        return scan, None
    files = {file.path: file for unlogged in candidates for file in unlogged.files.values()}
    footers: dict[Path, Footer] = {}
    if files:
        with explain_missing_file(scan.env, scan.at):
            footers.update(zip(files, read_footers(scan.env, list(files.values())), strict=True))
    totals = _Totals(aggregation.aggregates)
    added = [unlogged for unlogged in candidates if totals.add(scan.schema, unlogged, footers)]
    aggregated = {part.group for unlogged in added for part in unlogged.slices}
    if not aggregated:
        return scan, None
    rest = tuple(part for part in scan.slices if part.group not in aggregated)
    return replace(scan, slices=rest), totals.result(aggregation, scan.arrow)


def _may_be_known(scan: Scan, aggregation: Aggregation) -> bool:
    projection, names = scan.projection, scan.schema.arrow.names
    if aggregation.groups or projection.filter is not None or projection.require or scan.keys is not None:
        return False
    return all(
        aggregate.kind in _IN_METADATA
        and (not aggregate.column or aggregate.column in names)
        and (aggregate.kind not in _EXTREMES or _has_exact_extremes(scan.schema.arrow.field(aggregate.column).type))
        for aggregate in aggregation.aggregates
    )


def _has_exact_extremes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


@dataclass(frozen=True, slots=True)
class _Unlogged:
    """File groups without logs: one, or all whose rows are in one base file.

    Attributes:
        slices: The file groups.
        files: The file with the values of each column; empty if the file group has no rows, or no columns are needed.
    """

    slices: Sequence[FileSlice]
    files: dict[str, FileRef]

    @property
    def rows(self) -> int:
        return sum(part.slice.base_rows for part in self.slices if part.slice is not None)


def _without_logs(scan: Scan) -> list[FileSlice]:
    return [part for part in scan.slices if not len(part.rows) and part.within is None]


def _whole_files(scan: Scan, columns: Sequence[str]) -> list[_Unlogged]:
    """Base files whose rows are all current and read, and that have all columns as the table shows them."""
    by_base: dict[FileRef, list[SliceFile]] = {}
    result = []
    groups: dict[FileRef, list[FileSlice]] = {}
    for part in _without_logs(scan):
        if part.slice is None or part.slice.base is None:
            result.append(_Unlogged([part], {}))
        else:
            by_base.setdefault(part.slice.base, []).append(part.slice)
            groups.setdefault(part.slice.base, []).append(part)
    for base, slice_files in by_base.items():
        files = {name: file for name in columns if (file := _file_of(scan.schema, slice_files, name)) is not None}
        if len(files) == len(columns) and sum(part.base_rows for part in slice_files) == base.rows:
            result.append(_Unlogged(groups[base], files))
    paths = {file.path for unlogged in result for file in unlogged.files.values()}
    return result if len(paths) <= MOST_FOOTERS else []


def _file_of(schema: TableSchema, slice_files: Iterable[SliceFile], column: str) -> FileRef | None:
    """The file with the values of a column of slices that share a base; None if some of them are elsewhere."""
    files = [
        only_file(schema, part, [column]) if reads_as_it_is(schema, part.rev, [column]) else None
        for part in slice_files
    ]
    return files[0] if files[0] is not None and all(file == files[0] for file in files) else None


class _Totals:
    """Aggregates of the file groups that were added."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self._aggregates = aggregates
        self._values: list[Any] = [None if aggregate.kind in _EXTREMES else 0 for aggregate in aggregates]

    def add(self, schema: TableSchema, unlogged: _Unlogged, footers: dict[Path, Footer]) -> bool:
        """Add file groups; returns False and adds nothing if one of their aggregates is unknown."""
        ranges = {name: column_ranges(footers[file.path], schema, name) for name, file in unlogged.files.items()}
        values = [_value(aggregate, ranges.get(aggregate.column, []), unlogged.rows) for aggregate in self._aggregates]
        if any(value is _UNKNOWN for value in values):
            return False
        self._values = [_combine(*row) for row in zip(self._aggregates, self._values, values, strict=True)]
        return True

    def result(self, aggregation: Aggregation, schema: pa.Schema) -> pa.RecordBatch:
        result = aggregation.result(schema)
        assert result is not None, "the caller has checked the types"
        arrays = [pa.array([value], field.type) for value, field in zip(self._values, result, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=result)


_UNKNOWN: Final = object()


def _value(aggregate: Aggregate, row_groups: Sequence[ColumnRange | None], rows: int) -> Any:
    """The aggregate of the row groups of a file; `_UNKNOWN` if statistics do not contain it."""
    if aggregate.kind is AggregateKind.COUNT_ROWS:
        return rows
    values: list[Any] = []
    count = 0
    for column_range in row_groups:
        if column_range is None or column_range.nulls is None:
            return _UNKNOWN
        count += column_range.rows - column_range.nulls
        if column_range.rows > column_range.nulls:
            if aggregate.kind in _EXTREMES and (column_range.least is None or column_range.largest is None):
                return _UNKNOWN
            values.append(column_range.least if aggregate.kind is AggregateKind.MIN else column_range.largest)
    if aggregate.kind is AggregateKind.COUNT:
        return count
    return _extreme(aggregate.kind, values)


def _combine(aggregate: Aggregate, so_far: Any, value: Any) -> Any:
    if aggregate.kind not in _EXTREMES:
        return so_far + value
    return _extreme(aggregate.kind, [part for part in (so_far, value) if part is not None])


def _extreme(kind: AggregateKind, values: Sequence[Any]) -> Any:
    return (min if kind is AggregateKind.MIN else max)(values, default=None)

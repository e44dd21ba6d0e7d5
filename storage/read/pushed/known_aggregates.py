"""Counts, minima and maxima that are known without reading rows: of file groups that have no logs.

The number of rows is in the entry of a slice. The number of nulls and the extremes of a column are in the footers of
base files and overlays, and are used only where they are exact:

* All rows of the file are current rows of file groups that the read has, and it has neither a filter nor groups that
  must be present.
* The file has the column with the values and the type that the table shows.
* Extremes of integers, dates, times and booleans. Those of texts, binaries, floats and decimals are read: Parquet
  may truncate a text, has no order for NaN and the zeros, and has several orders for decimals.
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
"""Tasks read the rows if there are more files: the footers are read where the query is planned."""

_EXTREMES: Final = (AggregateKind.MIN, AggregateKind.MAX)
_KNOWN: Final = (AggregateKind.COUNT_ROWS, AggregateKind.COUNT, *_EXTREMES)


def known_aggregates(scan: Scan, aggregation: Aggregation) -> tuple[Scan, pa.RecordBatch | None]:
    """The file groups whose rows have to be read, and the partial result of the others.

    Args:
        scan: A scan whose file groups are not divided yet.
        aggregation: What is computed of its rows.

    Returns:
        The scan without the file groups whose aggregates are known, and their result, with the schema of
        `weft.storage.read.pushed.partial_aggregates.Aggregation.result`; None if there are none.

    Raises:
        CorruptData: A base file is missing, or its footer is damaged.
        SnapshotExpired: A base file is missing because the snapshot has expired.
    """
    if not _may_be_known(scan, aggregation):
        return scan, None
    columns = tuple(dict.fromkeys(each.column for each in aggregation.aggregates if each.column))
    found = _whole_files(scan, columns) if columns else [_Clean([each], {}) for each in _clean(scan)]
    if not found:
        return scan, None
    files = {file.path: file for each in found for file in each.files.values()}
    footers: dict[Path, Footer] = {}
    if files:
        with explain_missing_file(scan.env, scan.at):
            footers.update(zip(files, read_footers(scan.env, list(files.values())), strict=True))
    state = _Known(aggregation.aggregates)
    done = {part.group for each in found if state.add(scan.schema, each, footers) for part in each.slices}
    if not done:
        return scan, None
    rest = tuple(part for part in scan.slices if part.group not in done)
    return replace(scan, slices=rest), state.result(aggregation, scan.arrow)


def _may_be_known(scan: Scan, aggregation: Aggregation) -> bool:
    projection, names = scan.projection, scan.schema.arrow.names
    if aggregation.groups or projection.filter is not None or projection.require or scan.keys is not None:
        return False
    return all(
        each.kind in _KNOWN
        and (not each.column or each.column in names)
        and (each.kind not in _EXTREMES or _has_exact_extremes(scan.schema.arrow.field(each.column).type))
        for each in aggregation.aggregates
    )


def _has_exact_extremes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


@dataclass(frozen=True, slots=True)
class _Clean:
    """File groups without logs; with columns, all those whose rows are in one base file.

    Attributes:
        slices: The file groups.
        files: The file with the values of each column; empty if the columns have no rows or are not needed.
    """

    slices: Sequence[FileSlice]
    files: dict[str, FileRef]

    @property
    def rows(self) -> int:
        return sum(part.slice.base_rows for part in self.slices if part.slice is not None)


def _clean(scan: Scan) -> list[FileSlice]:
    return [part for part in scan.slices if not len(part.rows) and part.within is None]


def _whole_files(scan: Scan, columns: Sequence[str]) -> list[_Clean]:
    """Base files of which all rows are read and current, if they have all columns as the table shows them."""
    by_base: dict[FileRef, list[SliceFile]] = {}
    result = []
    groups: dict[FileRef, list[FileSlice]] = {}
    for part in _clean(scan):
        if part.slice is None or part.slice.base is None:
            result.append(_Clean([part], {}))
        else:
            by_base.setdefault(part.slice.base, []).append(part.slice)
            groups.setdefault(part.slice.base, []).append(part)
    for base, made in by_base.items():
        files = {name: file for name in columns if (file := _file_of(scan.schema, made, name)) is not None}
        if len(files) == len(columns) and sum(each.base_rows for each in made) == base.rows:
            result.append(_Clean(groups[base], files))
    most = {file.path for each in result for file in each.files.values()}
    return result if len(most) <= MOST_FOOTERS else []


def _file_of(schema: TableSchema, made: Iterable[SliceFile], column: str) -> FileRef | None:
    """The file with the values of a column of slices that share a base; None if some of them are elsewhere."""
    found = [only_file(schema, each, [column]) if reads_as_it_is(schema, each.rev, [column]) else None for each in made]
    return found[0] if found[0] is not None and all(file == found[0] for file in found) else None


class _Known:
    """Aggregates of whole files, united."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self._aggregates = aggregates
        self._values: list[Any] = [None if each.kind in _EXTREMES else 0 for each in aggregates]

    def add(self, schema: TableSchema, clean: _Clean, footers: dict[Path, Footer]) -> bool:
        """Add file groups; False if one of their aggregates is not known."""
        found = {name: column_ranges(footers[file.path], schema, name) for name, file in clean.files.items()}
        values = [_value(each, found.get(each.column, []), clean.rows) for each in self._aggregates]
        if any(value is _UNKNOWN for value in values):
            return False
        self._values = [_united(*each) for each in zip(self._aggregates, self._values, values, strict=True)]
        return True

    def result(self, aggregation: Aggregation, schema: pa.Schema) -> pa.RecordBatch:
        result = aggregation.result(schema)
        assert result is not None, "the caller has checked the types"
        arrays = [pa.array([value], field.type) for value, field in zip(self._values, result, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=result)


_UNKNOWN: Final = object()


def _value(aggregate: Aggregate, row_groups: Sequence[ColumnRange | None], rows: int) -> Any:
    """The aggregate of the row groups of a file; `_UNKNOWN` if statistics do not say it."""
    if aggregate.kind is AggregateKind.COUNT_ROWS:
        return rows
    values: list[Any] = []
    count = 0
    for known in row_groups:
        if known is None or known.nulls is None:
            return _UNKNOWN
        count += known.rows - known.nulls
        if known.rows > known.nulls:
            if aggregate.kind in _EXTREMES and (known.least is None or known.largest is None):
                return _UNKNOWN
            values.append(known.least if aggregate.kind is AggregateKind.MIN else known.largest)
    if aggregate.kind is AggregateKind.COUNT:
        return count
    return _extreme(aggregate.kind, values)


def _united(aggregate: Aggregate, so_far: Any, value: Any) -> Any:
    if aggregate.kind not in _EXTREMES:
        return so_far + value
    return _extreme(aggregate.kind, [each for each in (so_far, value) if each is not None])


def _extreme(kind: AggregateKind, values: Sequence[Any]) -> Any:
    return (min if kind is AggregateKind.MIN else max)(values, default=None)

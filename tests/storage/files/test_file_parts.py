"""Parts of files, as spans of rows and as row groups: compared with every row, one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.log.file_refs import FilePart, FileRef
from weft.storage.core.names import Path
from weft.storage.environment import Tuning
from weft.storage.errors import CorruptData
from weft.storage.files.file_parts import (
    StoredRows,
    coalesce,
    group_by_file,
    row_groups_of,
    row_spans,
    rows_within,
)
from weft.storage.files.footers import Footer

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)
"""Rows of the row groups of a file."""


def file_of(rows: int, name: str = "a") -> FileRef:
    return FileRef(path=Path(name), size=1, crc32=0, tail_size=1, tail_crc32=0, rows=rows)


def footer_of(sizes: list[int]) -> Footer:
    """The footer of a file with row groups of these sizes."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("k", pa.int64())])
    with pq.ParquetWriter(sink, schema) as writer:
        for size in sizes:
            writer.write_table(pa.table({"k": list(range(size))}, schema=schema))
    return Footer.of(pq.read_metadata(pa.BufferReader(sink.getvalue())))


@st.composite
def files_with_parts(draw: st.DrawFn) -> tuple[list[int], list[FilePart]]:
    """Sizes of row groups, and parts of the file: ascending, not empty, without overlap."""
    sizes = draw(SIZES)
    edges = sorted(draw(st.sets(st.integers(0, sum(sizes)), min_size=2, max_size=8)) | {0, sum(sizes)})
    parts = [FilePart(first=first, rows=end - first) for first, end in itertools.pairwise(edges)]
    chosen = draw(st.lists(st.sampled_from(range(len(parts))), min_size=1, unique=True))
    return sizes, [parts[number] for number in sorted(chosen)]


@given(files_with_parts())
def test_row_groups_and_rows_of_parts(drawn: tuple[list[int], list[FilePart]]) -> None:
    sizes, parts = drawn
    footer = footer_of(sizes)
    spans = row_spans(footer, file_of(sum(sizes)), parts)
    rows = [row for part in parts for row in range(part.first, part.first + part.rows)]
    row_group = [number for number, size in enumerate(sizes) for _ in range(size)]
    assert row_groups_of(footer, spans) == sorted({row_group[row] for row in rows})
    assert rows_within({"k": pa.array(range(sum(sizes)))}, spans)["k"].to_pylist() == rows


def test_without_parts_all_rows_are_one_span() -> None:
    footer = footer_of([2, 3])
    assert row_spans(footer, file_of(5), None).tolist() == [[0], [5]]
    assert row_groups_of(footer, np.array([[0], [5]])) == [0, 1]


def test_a_part_beyond_the_end_of_its_file_is_refused() -> None:
    with pytest.raises(CorruptData, match="has 5 rows, but its entry refers to rows 3 to 6"):
        row_spans(footer_of([2, 3]), file_of(5), [FilePart(first=3, rows=3)])


@given(SIZES, st.data())
def test_row_groups_are_coalesced_in_order_up_to_the_rows_of_one(sizes: list[int], data: st.DataObject) -> None:
    numbers = sorted(data.draw(st.sets(st.sampled_from(range(len(sizes))))))
    limit = data.draw(st.integers(1, 12))
    runs = list(coalesce(footer_of(sizes), numbers, Tuning(row_group_rows=limit)))
    assert [number for run in runs for number in run] == numbers
    for run in runs:
        assert run == list(range(run[0], run[-1] + 1)), "row groups of a run are neighbours"
        assert len(run) == 1 or sum(sizes[number] for number in run) <= limit
    for run, following in itertools.pairwise(runs):
        joined = [*run, following[0]]
        fits = sum(sizes[number] for number in joined) <= limit
        assert not (following[0] == run[-1] + 1 and fits), "a run ends only where it must"


def test_adjacent_slices_of_one_file_are_read_together() -> None:
    one, two = file_of(10, "one"), file_of(4, "two")
    stored = [
        StoredRows(1, one, FilePart(first=0, rows=3)),
        None,  # a file group without slice
        StoredRows(1, None, None),  # a slice without rows
        StoredRows(1, one, FilePart(first=5, rows=2)),
        StoredRows(1, one, FilePart(first=1, rows=1)),  # not after the part before it: read on its own
        StoredRows(2, two, None),
        StoredRows(2, two, None),
    ]
    groups = [(rows.file.path, rows.parts, rows.slice_ordinals) for rows in group_by_file(stored)]
    assert groups == [
        ("one", [FilePart(first=0, rows=3), FilePart(first=5, rows=2)], [0, 3]),
        ("one", [FilePart(first=1, rows=1)], [4]),
        ("two", None, [5]),
        ("two", None, [6]),
    ]

"""Snapshots by example: the traps of merged reads, each named by its phenomenon, and the ways to name a cut."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from storage import Table

TWO_GROUPS = {
    "key": ["k"],
    "buckets": 1,
    "columns": {"k": "bigint", "a": "bigint", "sa": "bigint", "b": "bigint", "sb": "bigint"},
    "groups": {"g1": {"columns": ["a", "sa"], "ordering": ["sa"]}, "g2": {"columns": ["b", "sb"], "ordering": ["sb"]}},
    "streams": {"own": {"groups": ["g1"], "on_delete": "row"}, "other": {"groups": ["g2"]}},
}


@pytest.fixture
def table() -> Table:
    return Table.create(f"memory://snapshot/{uuid.uuid4().hex}", TWO_GROUPS)


def append(table: Table, stream: str, rows: Sequence[Mapping[str, Any]]) -> None:
    with table.writer(stream) as writer:
        writer.append(pa.Table.from_pylist(list(rows)))


def rows_of(table: Table, **arguments: Any) -> list[dict[str, Any]]:
    return sorted(table.snapshot().to_arrow(**arguments).to_pylist(), key=repr)


@pytest.mark.usefixtures("small_files")
def test_a_clean_slice_of_several_row_groups_is_read_without_its_keys(table: Table) -> None:
    append(table, "own", [{"k": k, "a": k * 10, "sa": 1} for k in range(5)])
    table.compact()
    assert rows_of(table, columns=["a"]) == [{"a": a} for a in (0, 10, 20, 30, 40)]
    assert table.snapshot().to_arrow(columns=[]).num_rows == 5

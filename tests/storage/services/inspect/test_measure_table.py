"""Measures and samples of a table, compared with what its commits are known to contain."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from weft import DuePolicy, Table
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.measure import measure, sample

CONFIG = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "a": "string", "at": "bigint", "b": "double", "bt": "timestamp", "no": "int"},
    "groups": {
        "ga": {"columns": ["a", "at"], "ordering": ["at"]},
        "gb": {"columns": ["b", "bt", "no"], "ordering": ["bt", "no"]},
    },
    "streams": {"sa": {"groups": ["ga"]}, "sb": {"groups": ["gb"]}},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "wide", CONFIG)


def of_a(*events: tuple[int, int | None]) -> pa.Table:
    ids, ats = zip(*events, strict=True)
    return pa.table({"id": ids, "a": ["x"] * len(ids), "at": pa.array(ats, pa.int64())})


def of_b(*events: tuple[int, int, int | None]) -> pa.Table:
    ids, times, numbers = zip(*events, strict=True)
    when = pa.array(times, pa.timestamp("us", tz="UTC"))
    return pa.table({"id": ids, "b": [0.5] * len(ids), "bt": when, "no": pa.array(numbers, pa.int32())})


def test_an_empty_table(table: Table) -> None:
    found = measure(table.snapshot(), DuePolicy())
    assert (found.file_groups, found.log_files, found.base_bytes, found.due_bytes) == (0, 0, 0, 0)
    assert (found.read_amplification, found.max_read_amplification) == (None, None)
    taken = sample(table.snapshot())
    assert (taken.fill, taken.events, taken.late, taken.ties) == ({}, 0, 0, 0)


def test_sizes_and_waiting_work(table: Table) -> None:
    with table.writer("sa") as writer:
        writer.append(of_a((1, 10), (2, 10), (3, 10)))
        table.compact()
        compacted = measure(table.snapshot(), DuePolicy())
        assert (compacted.read_amplification, compacted.max_read_amplification) == (1.0, 1.0)
        assert (compacted.due_groups, compacted.due_bytes, compacted.commits_waiting) == (0, 0, 0)
        for at in (11, 12):
            writer.append(of_a((4, at)))
    found = measure(table.snapshot(), DuePolicy(min_commits=2))
    overview = Inspection(table.uri).overview()
    assert (found.events_waiting, found.commits_waiting, found.log_files, found.base_rows) == (2, 2, 2, 3)
    assert (found.base_bytes, found.log_bytes) == (overview.base_bytes, overview.log_bytes)
    assert found.due_groups == 1
    assert found.due_bytes == found.base_bytes + found.log_bytes
    assert found.read_amplification is not None
    assert found.read_amplification > 1.0
    assert found.entries["sa"] == 4, "a claim and three commits"
    assert measure(table.snapshot()).due_bytes is None


def test_objects_of_the_log_are_those_in_the_store(table: Table, tmp_path: Path) -> None:
    with table.writer("sa") as writer:
        for at in range(20):
            writer.append(of_a((1, at)))
    stored = list(Path(tmp_path, "wide/_weft/timeline").rglob("*.json"))
    assert measure(table.snapshot()).log_objects == len(stored)


def test_late_events_of_lanes_with_a_lateness(table: Table) -> None:
    with table.writer("sa", lateness=5) as writer:
        writer.append(of_a((1, 100)))
        writer.append(of_a((2, 96), (3, 94), (4, 50)))
    assert measure(table.snapshot()).late == {("sa", "ga"): 2, ("sb", "gb"): 0}


def test_events_that_lost_and_ties_are_sampled(table: Table) -> None:
    with table.writer("sa") as sa, table.writer("sb") as sb:
        sa.append(of_a((1, 10), (2, 10), (3, 10)))
        sa.append(of_a((1, 9), (2, 10), (3, 11), (4, 1)))  # late, tie, newer, first
        sa.append(of_a((1, 10), (3, 10), (5, None)))  # tie with the largest, late, without effect
        sb.append(of_b((1, 5, 1), (2, 5, None)))
        sb.append(of_b((1, 5, 1), (2, 5, 0), (1, 4, 9)))  # tie, newer: NULL is first; late
    taken = sample(table.snapshot())
    assert (taken.events, taken.late, taken.ties) == (9 + 5, 2 + 1, 2 + 1)


def test_events_that_are_compacted_or_folded_are_not_sampled(table: Table) -> None:
    with table.writer("sa") as writer:
        writer.append(of_a((1, 10)))
        table.compact()
        writer.append(of_a((1, 9)))
        table.fold()
        writer.append(of_a((1, 8)))
        writer.append(of_a((1, 7)))
    taken = sample(table.snapshot())
    assert (taken.events, taken.late, taken.ties) == (2, 1, 0)


def test_a_file_group_with_more_events_than_the_limit_is_not_sampled(table: Table) -> None:
    with table.writer("sa") as writer:
        writer.append(of_a((1, 10), (2, 10)))
    assert sample(table.snapshot(), max_events=1).events == 0
    assert sample(table.snapshot(), max_events=2).events == 2


def test_the_fill_rate_of_each_group(table: Table) -> None:
    with table.writer("sa") as sa, table.writer("sb") as sb:
        sa.append(of_a((1, 1), (2, 1), (3, 1), (4, 1)))
        sb.append(of_b((1, 5, 1)))
    table.compact()
    assert sample(table.snapshot()).fill == {"ga": 1.0, "gb": 0.25}


def test_a_group_that_is_younger_than_the_files(table: Table) -> None:
    with table.writer("sa") as sa:
        sa.append(of_a((1, 1)))
    table.compact()
    table.add_group("gc", {"c": "string", "ct": "bigint"}, ordering=["ct"], streams=["sb"])
    assert sample(table.snapshot()).fill == {"ga": 1.0, "gb": 0.0, "gc": 0.0}

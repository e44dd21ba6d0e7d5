"""Inspections of a table, compared with the operations on it."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.tuning import tune
from weft import Table
from weft.storage.errors import CorruptData, NotFound
from weft.storage.services.inspect.inspect import Inspection

CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "a": "string", "at": "bigint", "b": "double"},
    "groups": {"ga": {"columns": ["a", "at"], "ordering": ["at"]}, "gb": {"columns": ["b"]}},
    "streams": {"sa": {"groups": ["ga"], "on_delete": "row"}, "sb": {"groups": ["gb"]}},
}


def rows(*ids: int, at: int = 1, op: str = "u") -> pa.Table:
    count = len(ids)
    return pa.table({"id": ids, "a": ["x"] * count, "at": pa.array([at] * count, pa.int64()), "_op": [op] * count})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three commits of sa in two claims, one of sb; a compaction after the second; a delete after it."""
    table = Table.create(tmp_path / "wide", CONFIG)
    with table.writer("sa", owner="first") as writer:
        writer.append(rows(1, 2, 3), batch=("q", 0), source={"offsets": [7]})
    with table.writer("sb", lane="sb-backfill") as writer:
        writer.append(pa.table({"id": [1, 9], "b": [0.5, 1.5]}))
    table.compact()
    with table.writer("sa", owner="second") as writer:
        writer.append(rows(4), batch=("q", 1))
        writer.append(rows(2, at=5, op="d"), batch=("q", 2), source={"offsets": [9]})
    return table


def test_overview(table: Table) -> None:
    found = Inspection(table.uri).overview()
    assert found.uri == table.uri
    assert (found.rows_in_base, found.events_in_logs, found.commits_waiting) == (4, 2, 2)
    assert found.file_groups == 2
    assert found.cut == str(table.snapshot().cut)
    assert found.base_bytes > 0
    assert found.log_bytes > 0
    assert found.compactions_open == 0
    assert found.schema == table.schema


def test_a_table_that_was_deleted_under_an_open_one(table: Table) -> None:
    opened = Table.open(table.uri)
    opened.snapshot()
    shutil.rmtree(table.uri.removeprefix("file://"))
    with pytest.raises(CorruptData, match="was moved, deleted or replaced"):
        table.writer("sb").__enter__()
    with pytest.raises(CorruptData, match=r"the first entry of the table at .* is missing"):
        opened.snapshot(as_of=dt.datetime(1999, 1, 1, tzinfo=dt.UTC))


def test_the_timeline_has_all_lanes_newest_first(table: Table) -> None:
    entries = Inspection(table.uri).timeline(100)
    assert [(e.lane, e.kind) for e in entries] == [
        ("sa", "DATA"),
        ("sa", "DATA"),
        ("sa", "CLAIM"),
        ("", "BASE"),
        ("", "PLAN"),
        ("sb-backfill", "DATA"),
        ("sb-backfill", "CLAIM"),
        ("", "LANE_ADD"),
        ("sa", "DATA"),
        ("sa", "CLAIM"),
        ("", "LANE_ADD"),
        ("", "CREATE"),
    ]
    assert [e.rows for e in entries if e.kind == "DATA"] == [1, 1, 2, 3]
    assert entries[0].detail == "stream sa, batch 2"
    assert entries[2].detail == "claim 2 by second"
    base = entries[3]
    assert (base.rows, base.files > 0, base.bytes > 0) == (4, True, True)
    assert Inspection(table.uri).timeline(3) == entries[:3]


def test_files(table: Table) -> None:
    files = Inspection(table.uri).files()
    assert [f.file_group for f in files] == ["b01-00000", "b01-00001"]
    assert sum(f.base_rows for f in files) == 4
    assert sum(f.log_rows for f in files) == 2
    assert sum(f.commits for f in files) == 2


def test_lanes(table: Table) -> None:
    first, second = Inspection(table.uri).lanes()
    assert (first.lane, first.stream, first.epoch, first.owner) == ("sa", "sa", 2, "second")
    assert (first.head, first.last_commit, first.last_rows, first.batch, first.query_id) == (5, 5, 1, 2, "q")
    assert (first.rows, first.rows_complete, first.rows_waiting) == (5, True, 2)
    assert first.source == {"offsets": [9]}
    assert (second.lane, second.stream, second.epoch, second.batch, second.rows_waiting) == (
        "sb-backfill",
        "sb",
        1,
        None,
        0,
    )


def test_rolled_back_commits_are_marked_and_not_counted(table: Table) -> None:
    table.savepoint("good")
    with table.writer("sa", owner="third") as writer:
        writer.append(rows(7, 8), batch=("q", 3))
    table.restore("good")
    found = Inspection(table.uri)
    first, second = found.lanes()
    assert (first.rows, first.last_commit, first.batch, first.rows_waiting) == (5, 5, 2, 2)
    assert second.rows == 2
    told = {
        entry.seq: "rolled back" in entry.detail
        for entry in found.timeline(100)
        if (entry.lane, entry.kind) == ("sa", "DATA")
    }
    assert told == {2: False, 4: False, 5: False, 7: True}


def test_a_long_lane_is_not_read_from_its_beginning(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, inspected_entries=2)
    first, _ = Inspection(table.uri).lanes()
    assert (first.rows, first.rows_complete) == (2, False)
    assert (first.epoch, first.owner) == (2, "second")


def test_a_lane_that_was_only_claimed(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    with table.writer("sa", owner="me"):
        (lane,) = Inspection(table.uri).lanes()
    assert (lane.owner, lane.last_commit, lane.committed_at_ms, lane.rows) == ("me", None, None, 0)


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no table at"):
        Inspection(str(tmp_path / "none"))

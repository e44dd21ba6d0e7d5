"""The states that a log names, and the files of a snapshot."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.errors import SnapshotExpired
from weft.storage.read.bucket_numbers import bucket_numbers
from weft.storage.services.inspect.file_groups import stored_files
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.services.inspect.snapshots import snapshot_points
from weft.storage.store.open_store import list_folders

CONFIG = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "bigint", "a": "string"},
    "groups": {"g": {"columns": ["a"]}},
    "streams": {"s": {"groups": ["g"]}},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "table", CONFIG)
    with made.writer("s") as writer:
        writer.append(pa.table({"id": list(range(40)), "a": ["x"] * 40}))
        made.savepoint("kept")
        made.compact()
        writer.append(pa.table({"id": [1, 2], "a": ["y", "y"]}))
    return made


def test_states_that_the_log_names_are_readable_exactly_if_they_are_kept(table: Table) -> None:
    table.clean(dt.timedelta(0))
    with table.writer("s") as writer:
        writer.append(pa.table({"id": [3], "a": ["z"]}))
    table.compact()
    points = snapshot_points(table.snapshot())
    assert [(point.kind, point.name) for point in points[:2]] == [("newest", ""), ("compaction", "")]
    assert {(point.kind, point.name) for point in points} >= {("savepoint", "kept"), ("compaction", "")}
    assert {point.readable for point in points} == {True, False}
    for point in points:
        if point.readable:
            assert table.snapshot(point.cut).to_arrow().num_rows == 40
        else:
            with pytest.raises(SnapshotExpired):
                table.snapshot(point.cut)


def test_the_files_of_a_snapshot_are_those_that_it_reads(table: Table) -> None:
    found = stored_files(table.snapshot())
    assert [file.kind for file in found].count("log") == 1
    assert sum(file.rows for file in found if file.kind == "base") == 40
    here = Path(table.uri.removeprefix("file://"))
    assert all((here / file.path).stat().st_size == file.bytes for file in found)
    assert stored_files(table.snapshot("kept"))[0].kind == "log"


def test_the_timeline_of_an_older_snapshot_ends_with_it(table: Table) -> None:
    everything, then = (Inspection.of(table.snapshot(point)).timeline() for point in (None, "kept"))
    assert len(everything) > len(then) > 0
    assert all(entry.kind != "BASE" for entry in then)


def test_bucket_numbers_are_those_of_the_file_groups(table: Table) -> None:
    rows = table.snapshot().to_arrow()
    numbers = bucket_numbers(table.schema, rows).to_pylist()
    assert set(numbers) == {file_slice.group.bucket for file_slice in table.snapshot().slices}


def test_folders_are_listed_without_what_is_in_them(table: Table) -> None:
    assert list_folders(table.uri) == ["_weft", "base", "log"]
    assert list_folders(f"{table.uri}/nothing") is None

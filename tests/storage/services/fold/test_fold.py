"""Folds: their contents, the cost of reading them, older snapshots, and their number (S9, S11, S12, M3)."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock, FaultyStore, other_process
from tests.storage.support.counts import (
    COUNTS,
    MANY,
    chain,
    count,
    during,
    entries,
    event_rows,
    fold_files,
    home,
    named_files,
)
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments, statuses
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.file_refs import Sidecar
from weft.storage.core.names import Path
from weft.storage.core.plan.fold_plan import MAX_CHAIN
from weft.storage.store.open_store import open_store


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP)


@pytest.fixture
def counts(uri: str) -> Table:
    return Table.create(uri, COUNTS)


def test_nothing_to_do_publishes_nothing(table: Table, uri: str) -> None:
    assert table.fold().done == ()
    append(table, orders(1))
    table.fold()
    before = entries(uri)
    again = table.fold()
    assert (again.done, again.skipped, again.files_read, again.bytes_written) == ((), {}, 0, 0)
    assert entries(uri) == before


def test_a_fold_reports_what_it_did_and_changes_no_result(table: Table, uri: str) -> None:
    for ts in range(10):
        append(table, orders(*range(ts, 20), status=str(ts), ts=ts))
    append(table, payments(3, 30), "payments")
    append(table, orders(4, op="D", ts=50))
    rows = contents(table)
    result = table.fold()
    assert sorted(result.done) == [file_slice.group for file_slice in table.snapshot().slices]
    assert result.skipped == {}
    assert result.rows == 21
    assert result.files_read == 12
    assert result.bytes_written > 0
    assert result.bytes_read > 0
    assert result.seconds > 0
    assert contents(table) == contents(Table.open(uri)) == rows
    assert [entry.kind for entry in entries(uri)[-2:]] == ["PLAN", "FOLD"]
    assert table.state().plans == {}
    assert fold_files(uri) == named_files(table)
    # Only entries after the fold are still read from the lanes.
    assert table.state().log_start() == dict(table.snapshot().cut.lanes)
    table.compact()
    assert contents(table) == contents(Table.open(uri)) == rows
    assert table.state().folds == ()


@pytest.mark.parametrize("columns", [["id"], ["status"], ["paid", "id"], ["pts"], []])
def test_reading_one_column_sees_rows_hidden_and_shown_by_other_groups(table: Table, columns: list[str]) -> None:
    append(table, orders(1, 2, 3))
    append(table, payments(1, 2, 3, 4), "payments")
    table.compact()
    append(table, orders(1, op="D", ts=5))
    append(table, orders(2, op="D", ts=5))
    append(table, orders(2, status="back", ts=6))
    expected = contents(table, columns)
    table.fold()
    assert contents(table, columns) == expected
    append(table, orders(1, status="late", ts=4))
    assert contents(table, columns) == expected
    table.fold()
    assert contents(table, columns) == expected
    if "id" in columns:
        assert 1 not in {row[columns.index("id")] for row in expected}


def test_a_file_group_has_few_folds_until_one_replaces_them(counts: Table) -> None:
    count(counts, *MANY)  # many events, so that the following ones are few in comparison
    counts.fold()
    expected = dict.fromkeys(MANY, 1)
    lengths = []
    for _ in range(2 * MAX_CHAIN):
        count(counts, 1)
        expected[1] += 1
        counts.fold()
        lengths.append(len(chain(counts, home(1))))
        assert dict(contents(counts, ["id", "n"])) == expected
    assert max(lengths) == MAX_CHAIN
    assert lengths == [2, 3, 4, 1, 2, 3, 4, 1]
    # Folds that are not read any more are dropped, and file groups without new events keep theirs.
    assert all(fold.groups for fold in counts.state().folds)
    assert len(counts.state().folds) == 2


def test_a_large_fold_replaces_smaller_ones(counts: Table) -> None:
    count(counts, 1)
    counts.fold()
    (first,) = chain(counts, home(1))
    count(counts, *MANY)
    counts.fold()
    (second,) = chain(counts, home(1))
    assert second > first
    assert dict(contents(counts, ["id", "n"])) == {key: 1 + (key == 1) for key in MANY}


def test_each_event_is_read_once_after_any_folds_and_compactions(counts: Table, uri: str) -> None:
    """S11: counts show events that are in both a slice and a fold, or in neither."""
    for number in range(12):
        count(counts, *range(number, 20))
        if number % 2:
            counts.fold()
        if number % 3 == 2:
            first, *_ = counts.snapshot().slices
            counts.compact(only=lambda s, group=first.group: s.group == group)
        expected = {key: min(key, number) + 1 for key in range(20)}
        for opened in (counts, Table.open(uri)):
            assert dict(contents(opened, ["id", "events"])) == expected
            assert {key: len(seen) for key, seen in contents(opened, ["id", "seen"])} == expected
    counts.compact()
    assert dict(contents(counts, ["id", "n"])) == {key: min(key, 11) + 1 for key in range(20)}


def test_store_requests_of_a_read_do_not_grow_with_commits(uri: str) -> None:
    def asked(commits: int, *, folded: bool) -> int:
        copy_uri = f"{uri}-{commits}-{folded}"
        table = Table.create(copy_uri, COUNTS)
        with table.writer("events") as writer:
            for number in range(commits):
                writer.append(event_rows(1, 2, 3, number + 4))
        if folded:
            table.fold()
        store = FaultyStore(open_store(copy_uri))
        assert len(contents(other_process(copy_uri, FakeClock(), store))) == commits + 3
        return len(store.calls)

    few, many = asked(6, folded=True), asked(60, folded=True)
    assert many <= few < asked(6, folded=False)
    assert many * 5 < asked(60, folded=False)


def test_snapshots_taken_before_a_fold_give_the_same_rows_after_it(table: Table, uri: str) -> None:
    append(table, orders(1, 2, 3))
    old = table.snapshot()
    rows = contents(table)
    append(table, orders(2, op="D", ts=2))
    newer = table.snapshot()
    table.fold()
    after = table.snapshot()
    append(table, orders(1, op="D", ts=3))
    for opened in (table, Table.open(uri)):
        assert contents(opened, as_of=str(old.cut)) == rows
        assert sorted(statuses(opened, as_of=str(newer.cut))) == [1, 3]
        assert sorted(statuses(opened, as_of=str(after.cut))) == [1, 3]
        assert sorted(statuses(opened)) == [3]
    assert old.to_arrow().num_rows == 3


def test_as_of_a_time_ignores_folds_with_later_commits() -> None:
    uri = new_uri()
    clock = FakeClock(1_000_000)
    writer = Table.create(uri, SHOP, clock=clock)
    append(writer, orders(1, status="first"))
    clock.time_ms = 2_000_000
    append(writer, orders(1, status="second", ts=2))
    other_process(uri, FakeClock(1_200_000)).fold()
    moment = dt.datetime.fromtimestamp(1_500, dt.UTC)
    assert statuses(writer, as_of=moment) == {1: "first"}
    assert statuses(writer) == {1: "second"}


def test_a_fold_ends_only_when_a_compaction_contains_it(counts: Table) -> None:
    count(counts, *range(20))
    counts.fold()
    first, *others = [file_slice.group for file_slice in counts.snapshot().slices]
    counts.compact(only=lambda file_slice: file_slice.group == first)
    assert set(counts.state().folds[0].groups) == set(others)
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)
    counts.compact()
    assert counts.state().folds == ()
    assert dict(contents(counts, ["id", "n"])) == dict.fromkeys(range(20), 1)


def test_large_lists_and_indexes_go_to_sidecars(counts: Table, uri: str) -> None:
    counts = tuned(counts, inline_list_bytes=10, inline_index_bytes=10)
    count(counts, *range(20))
    counts.fold()
    stored = open_store(uri).get(Path(f"_weft/timeline/table/{counts.state().head:020d}.json"))
    assert stored is not None
    assert b'"file_groups":{"path"' in stored
    assert [name.rsplit(".")[-1] for name in fold_files(uri)] == ["arrow", "json"]
    assert isinstance(counts.state().folds[0].files[0].index, Sidecar)
    for opened in (counts, Table.open(uri)):
        assert dict(contents(opened, ["id", "n"])) == dict.fromkeys(range(20), 1)
    # Entries that are not read any more are dropped from the cache.
    counts.compact()
    contents(counts)
    assert counts._table_log.commit_log.sidecars._indexes == {}
    # Expired folds leave no sidecars.
    count(counts, *range(20))
    store = FaultyStore(open_store(uri))
    during(store, counts.fold)
    before = fold_files(uri)
    assert other_process(uri, FakeClock(), store).fold().done == ()
    assert len(fold_files(uri)) == len(before) + 2


@pytest.mark.usefixtures("small_files")
def test_a_large_fold_has_several_files_with_each_file_group_in_one(counts: Table, uri: str) -> None:
    for _ in range(3):
        count(counts, *range(100))
    biggest = max(file_slice.log_bytes for file_slice in counts.snapshot().slices)
    result = tuned(counts, fold_file_bytes=biggest * 5 // 2).fold()
    files = counts.snapshot().files
    assert 1 < len(files) < 4
    assert result.rows == 100 == sum(file.file.file.rows for file in files)
    found = [bucket for file in files for bucket in set(file.index.ranges.bucket)]
    assert sorted(found) == [0, 1, 2, 3]
    assert all(len(file.index.blocks.rows) > 1 for file in files)
    assert dict(contents(Table.open(uri), ["id", "n"])) == dict.fromkeys(range(100), 3)


def test_a_file_contains_only_groups_with_registers(table: Table) -> None:
    append(table, orders(1, 2))
    table.fold()
    (file,) = table.snapshot().files
    (group,) = file.file.groups
    assert table.schema.groups[0].id == group
    assert not {"paid", "pts"} & set(file.file.columns)
    append(table, payments(1, 2), "payments")
    assert contents(table) == [(1, "new", 1, 1.0, 1), (2, "new", 1, 1.0, 1)]


def test_rows_without_registers_are_not_kept(uri: str) -> None:
    config = {**COUNTS, "streams": {"events": {"groups": ["all"]}}}
    config["groups"] = {"all": {**COUNTS["groups"]["all"], "columns": ["n"], "functions": {"n": "sum"}}}
    config["columns"] = {"id": "bigint", "n": "bigint"}
    table = Table.create(uri, config)
    append(table, pa.table({"id": [1], "n": pa.array([None], pa.int64()), "_op": ["D"]}), "events")
    result = table.fold()
    assert (len(result.done), result.rows) == (1, 0)
    assert fold_files(uri) == []
    assert contents(table) == []
    append(table, pa.table({"id": [1], "n": [5]}), "events")
    table.fold()
    assert contents(table) == [(1, 5)]


def test_a_fold_keeps_a_retraction_that_arrives_first(uri: str) -> None:
    config = {**COUNTS, "streams": {"events": {"groups": ["all"]}}}
    config["groups"] = {"all": {**COUNTS["groups"]["all"], "columns": ["n"], "functions": {"n": "sum"}}}
    config["columns"] = {"id": "bigint", "n": "bigint"}
    table = Table.create(uri, config)
    append(table, pa.table({"id": [1], "n": [5], "_op": ["D"]}), "events")
    table.fold()
    assert contents(table) == []
    append(table, pa.table({"id": [1], "n": [7]}), "events")
    assert contents(table) == [(1, 2)]
    table.fold()
    assert contents(table) == [(1, 2)]
    table.compact()
    assert contents(table) == [(1, 2)]

"""Rows and ranges of Spark's CHANGES clause; without Spark. `tests/sql/past.sql` runs the statements."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.catalog.catalog_jvm import ChangesRange
from weft.streams.catalog.changelog import changelog_rows, changelog_schema, range_options

CREATED_MS = 1_000
CREATED_US = CREATED_MS * 1_000


def rows_of(table: Table, since: str) -> list[dict[str, Any]]:
    batches = table.changes(since, before=True)
    found = [row for batch in batches for each in changelog_rows(batch, "cut:v", 7) for row in each.to_pylist()]
    return sorted(found, key=lambda row: (row["id"], row["_change_type"]))


def test_an_update_has_both_images_and_a_delete_the_row_that_is_gone(tmp_path: Path) -> None:
    table = Table.create(tmp_path, SHOP)
    append(table, orders(1, 2, 3))
    append(table, payments(1), "payments")
    table.savepoint("first")
    append(table, payments(1, 4, paid=5.0, ts=2), "payments")
    append(table, orders(2, ts=2, op="delete"))
    rows = rows_of(table, "first")
    assert [(row["id"], row["_change_type"], row["status"], row["paid"]) for row in rows] == [
        (1, "update_postimage", "new", 5.0),
        (1, "update_preimage", "new", 1.0),
        (2, "delete", "new", None),
        (4, "insert", None, 5.0),
    ]
    assert {(row["_commit_version"], row["_commit_timestamp"].timestamp()) for row in rows} == {("cut:v", 0.007)}
    assert list(rows[0]) == changelog_schema(table.snapshot().schema).names


def test_the_time_of_a_state_is_that_of_its_newest_commit(tmp_path: Path) -> None:
    table = Table.create(tmp_path, SHOP)
    created = table.snapshot().committed_at_ms()
    assert created == table.snapshot().table_log.created_at_ms()
    append(table, orders(1))
    first = table.snapshot()
    time.sleep(0.002)
    append(table, payments(1), "payments")
    newest = table.snapshot()
    (*_, last) = newest.table_log.commit_log.read_after("payments", 0)
    assert created <= first.committed_at_ms() < newest.committed_at_ms() == last.committed_at_ms


def test_a_column_of_the_name_of_an_added_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'_commit_version' of the table has the same name"):
        changelog_schema(pa.schema({"id": pa.int64(), "_commit_version": pa.int64()}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ChangesRange(None, None, True, True), {"since": "earliest"}),
        (ChangesRange("a", None, False, True), {"since": "a"}),
        (ChangesRange("a", "b", False, True), {"since": "a", "until": "b"}),
        (ChangesRange("earliest", "b", True, True), {"since": "earliest", "until": "b"}),
        (ChangesRange(CREATED_US, None, True, True), {"since": "earliest"}),
        (ChangesRange(CREATED_US, None, False, True), {"since": "1970-01-01T00:00:01+00:00"}),
        (ChangesRange(CREATED_US + 1, None, True, True), {"since": "1970-01-01T00:00:01+00:00"}),
        (
            ChangesRange(0, CREATED_US + 5, False, True),
            {"since": "earliest", "until": "1970-01-01T00:00:01.000005+00:00"},
        ),
        (
            ChangesRange(0, CREATED_US + 5, False, False),
            {"since": "earliest", "until": "1970-01-01T00:00:01.000004+00:00"},
        ),
    ],
)
def test_a_time_of_a_bound_that_is_part_of_the_range_is_in_the_changes(
    given: ChangesRange, expected: dict[str, str]
) -> None:
    assert range_options(given, CREATED_MS) == {f"changes_{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ChangesRange("a", None, True, True), "CHANGES FROM VERSION 'a': a version is a state"),
        (ChangesRange("a", "b", False, False), "CHANGES TO VERSION 'b' EXCLUSIVE: a version is a state"),
    ],
)
def test_a_version_is_not_a_commit(given: ChangesRange, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        range_options(given, CREATED_MS)

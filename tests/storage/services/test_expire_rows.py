"""Rows that expire by a column: which go, which stay, and what later events of their keys are."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Append, Compact, Story, mode_of, stories, type_of
from weft import Table
from weft.storage.errors import InvalidInput, NotFound

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "a": "string",
        "at": {"type": "date", "default": "1990-01-01"},
        "b": "string",
        "n": "int",
    },
    "groups": {
        "g": {"columns": ["a", "at"], "ordering": ["at"]},
        "h": {"columns": ["b"]},
        "k": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}, "w": {"groups": ["k"]}},
    "buckets": 2,
}


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


def write(table: Table, ids: list[int], at: dt.date, op: str | None = None) -> None:
    size = len(ids)
    operations = pa.array([op] * size, pa.string())
    with table.writer("s") as writer:
        writer.append(pa.table({"id": ids, "a": ["x"] * size, "at": [at] * size, "_op": operations}))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows 1 and 2 of day 1 and 9, row 3 without a day, and row 4, which is deleted since day 2."""
    table = Table.create(tmp_path / "table", CONFIG)
    write(table, [1, 4], day(1))
    with table.writer("u") as writer:
        writer.append(pa.table({"id": [1, 3], "b": ["old", "kept"]}))
    table.compact()
    write(table, [2], day(9))
    write(table, [4], day(2), "D")
    return table


def rows(table: Table) -> dict[int, Any]:
    return {row["id"]: row["b"] for row in table.snapshot().to_arrow(["id", "b"]).to_pylist()}


def test_rows_before_the_limit_are_removed_with_all_their_groups(table: Table) -> None:
    result = table.expire_rows("at", day(5), note="retention")
    assert result.entry == table.state().rewritten
    assert (result.rows, result.deletes) == (1, 0)
    assert rows(table) == {2: None, 3: "kept"}
    write(table, [1], dt.date(2025, 1, 1))
    assert rows(table) == {1: None, 2: None, 3: "kept"}, "a later event is new data, and the other group is gone"
    write(table, [4], day(1))
    assert 4 not in rows(table), "a hidden row keeps its delete"
    assert table.verify().ok


def test_the_limit_is_in_the_log_and_not_an_age(table: Table) -> None:
    result = table.expire_rows("at", "2026-01-05")
    entry = Path(table.uri.removeprefix("file://"), f"_weft/timeline/table/{result.entry:020d}.json").read_text()
    assert "expiry of rows with at before 2026-01-05" in entry


@pytest.mark.parametrize(
    ("column", "before", "error"),
    [
        ("none", 1, NotFound),
        ("id", 1, InvalidInput),
        ("n", 1, InvalidInput),
        ("at", "x", InvalidInput),
        ("at", None, InvalidInput),
    ],
)
def test_refusals(table: Table, column: str, before: object, error: type[Exception]) -> None:
    head = table.state().head
    with pytest.raises(error):
        table.expire_rows(column, before)
    assert table.state().head == head


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8), st.data())
def test_the_table_shows_what_the_events_of_other_keys_say(story: Story, data: st.DataObject) -> None:
    """M9."""
    columns = [
        (name, column)
        for name, declared in story.config["groups"].items()
        if mode_of(story.config, name) in {"latest", "latest_non_null"}
        for column in declared["columns"]
        if "<" not in type_of(story.config, column) and type_of(story.config, column) not in {"double", "float"}
    ]
    assume(columns)
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            if isinstance(step, Append) and data.draw(st.booleans(), label="expire"):
                group, column = data.draw(st.sampled_from(columns), label="column")
                seen = [row[column] for each in story.appends for row in each.rows if row.get(column) is not None]
                if seen:
                    before = data.draw(st.sampled_from(seen), label="before")
                    shown = world.table.snapshot().to_arrow().num_rows
                    removed = world.table.expire_rows(column, before).rows
                    assert removed == shown - world.table.snapshot().to_arrow().num_rows
                    world.oracle.erase(world.oracle.old_rows(group, column, before))
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()

"""Forgetting old deletes: what is forgotten, what stays, and what a late event does then."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Append, Compact, Story, mode_of, stories
from weft import Table
from weft.storage.errors import InvalidInput, NotFound

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "columns": {"id": "bigint", "a": "string", "ts": "timestamp", "b": "string", "n": "bigint"},
    "groups": {
        "g": {"columns": ["a", "ts"], "ordering": ["ts"]},
        "h": {"columns": ["b"]},
        "k": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}, "w": {"groups": ["k"]}},
    "buckets": 2,
}


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number, tzinfo=dt.UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Row 1 is deleted on day 5, row 2 on day 6, row 3 on day 5 and has another group, row 4 is live."""
    table = Table.create(tmp_path / "table", CONFIG)
    write(table, [1, 2, 3, 4], day(1))
    with table.writer("u") as writer:
        writer.append(pa.table({"id": [3], "b": ["kept"]}))
    write(table, [1, 3], day(5), "D")
    write(table, [2], day(6), "D")
    return table


def write(table: Table, ids: list[int], ts: dt.datetime, op: str | None = None) -> None:
    size = len(ids)
    operations = pa.array([op] * size, pa.string())
    with table.writer("s") as writer:
        writer.append(pa.table({"id": ids, "a": ["x"] * size, "ts": [ts] * size, "_op": operations}))


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow(["id"]).column("id").to_pylist())


def shadow_rows(table: Table) -> int:
    return sum(made.shadow_rows for made in table.state().slices.values())


@pytest.mark.parametrize("services", [[], ["compact"], ["fold"]], ids=str)
def test_only_old_deletes_of_rows_without_other_groups_are_forgotten(table: Table, services: list[str]) -> None:
    for service in services:
        getattr(table, service)()
    assert ids(table) == [4]
    result = table.forget_deletes("g", day(6), note="January")
    assert result.entry == table.state().rewritten
    assert ids(table) == [4]
    assert shadow_rows(table) == 2
    write(table, [1, 2, 3], day(2))  # older than all deletes
    assert ids(table) == [1, 4]
    write(table, [3], day(7))
    assert table.get([3]).column("b").to_pylist() == ["kept"]
    assert table.verify().ok


def test_state_of_an_aggregate_keeps_the_row(table: Table) -> None:
    with table.writer("w") as writer:
        writer.append(pa.table({"id": [1], "n": [5], "_op": ["-U"]}))
    table.forget_deletes("g", day(9))
    assert shadow_rows(table) == 2  # row 1 has a sum that was taken back before it came, row 3 a value


def test_the_limit_may_be_text(table: Table) -> None:
    table.forget_deletes("g", "2026-01-06T00:00:00Z")
    assert shadow_rows(table) == 2


@pytest.mark.parametrize(
    ("group", "before", "error", "words"),
    [
        ("none", day(1), NotFound, "none"),
        ("h", day(1), InvalidInput, "no deletes with ordering values"),
        ("k", 1, InvalidInput, "no deletes with ordering values"),
        ("g", "soon", InvalidInput, "'soon'"),
        ("g", None, InvalidInput, "limit is missing"),
    ],
)
def test_refusals(table: Table, group: str, before: object, error: type[Exception], words: str) -> None:
    head = table.state().head
    with pytest.raises(error, match=words):
        table.forget_deletes(group, before)
    assert table.state().head == head


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8, modes=["latest", "latest", "latest_non_null", "aggregate"]), st.data())
def test_the_table_shows_what_the_events_of_other_keys_say(story: Story, data: st.DataObject) -> None:
    """M9."""
    groups = [
        name
        for name, declared in story.config["groups"].items()
        if declared["ordering"] and mode_of(story.config, name) in {"latest", "latest_non_null"}
    ]
    assume(groups)
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            if isinstance(step, Append) and data.draw(st.booleans(), label="forget"):
                group = data.draw(st.sampled_from(groups), label="group")
                column = story.config["groups"][group]["ordering"][0]
                seen = [row[column] for each in story.appends for row in each.rows if row.get(column) is not None]
                if seen:
                    before = data.draw(st.sampled_from(seen), label="before")
                    world.table.forget_deletes(group, before)
                    world.oracle.erase(world.oracle.old_deletes(group, before))
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()

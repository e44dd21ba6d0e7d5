"""Rows without an ordering value: they are counted apart from deletes that a stream ignores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.shop import new_uri
from weft import Table
from weft.storage.core.merge.events import count_unordered
from weft.storage.write.write_task import WriteTicket, write_rows

COLUMNS = {"id": "bigint", "a": "string", "at": "bigint", "b": "string", "bt": "bigint", "bn": "int", "c": "string"}
GROUPS = {
    "ga": {"columns": ["a", "at"], "ordering": ["at"]},
    "gb": {"columns": ["b", "bt", "bn"], "ordering": ["bt", "bn"]},
    "gc": {"columns": ["c"]},
}
STREAMS = {
    "one": {"groups": ["ga"]},
    "careful": {"groups": ["ga"], "on_delete": "ignore"},
    "two": {"groups": ["ga", "gb"]},
    "all": {"groups": ["ga", "gb", "gc"]},
}
TYPES = {"at": pa.int64(), "bt": pa.int64(), "bn": pa.int32()}
ROW = st.fixed_dictionaries(
    {name: st.none() | st.just("x") for name in "abc"} | {name: st.none() | st.integers(0, 3) for name in TYPES}
)


def table() -> Table:
    return Table.create(new_uri(), {"key": ["id"], "columns": COLUMNS, "groups": GROUPS, "streams": STREAMS})


def batch(rows: list[dict[str, Any]], stream: str, **more: Any) -> pa.Table:
    names = [name for group in STREAMS[stream]["groups"] for name in GROUPS[group]["columns"]]
    columns = {name: pa.array([row[name] for row in rows], TYPES.get(name, pa.string())) for name in names}
    return pa.table({"id": pa.array(range(len(rows)), pa.int64()), **columns, **more})


@given(st.lists(ROW, max_size=6), st.sampled_from(sorted(STREAMS)))
def test_a_row_without_any_ordering_value_is_not_in_the_table(rows: list[dict[str, Any]], stream: str) -> None:
    shop = table()
    given_rows = batch(rows, stream)
    with shop.writer(stream) as writer:
        ticket = writer.begin()
        assert isinstance(ticket, WriteTicket)
        written = write_rows(ticket, given_rows)
        commit = writer.commit(ticket, [written])
    shown = shop.snapshot().to_arrow()
    assert written.rows_unordered == commit.rows_ignored == len(rows) - len(shown)
    # What a row says of a group is lost if the group is absent where it had a value.
    by_id = {row["id"]: row for row in shown.to_pylist()}
    lost = count_unordered(given_rows, shop.schema, shop.schema.stream(stream))
    groups = STREAMS[stream]["groups"]
    for name in groups:
        ordering = GROUPS[name].get("ordering", [])
        values = [each for each in GROUPS[name]["columns"] if each not in ordering]
        expected = sum(
            all(by_id.get(number, {}).get(each) is None for each in GROUPS[name]["columns"])
            and (len(groups) == 1 or any(row[each] is not None for each in values))
            for number, row in enumerate(rows)
        )
        assert lost.get(name, 0) == expected, name


@pytest.mark.parametrize(("stream", "unordered"), [("one", 1), ("careful", 1)])
def test_ignored_deletes_are_not_unordered(stream: str, unordered: int) -> None:
    """Before-images are ignored by every stream, deletes by one that says so, with an ordering value or not."""
    rows = [{"a": "x", "at": 1}, {"a": "x", "at": None}, {"a": "x", "at": None}, {"a": "x", "at": 2}]
    operations = ["u", "u", "-U", "-U"]
    with table().writer(stream) as writer:
        ticket = writer.begin()
        assert isinstance(ticket, WriteTicket)
        written = write_rows(ticket, batch(rows, stream, _op=operations))
    assert (written.rows_ignored, written.rows_unordered) == (3, unordered)


def test_counts_of_tasks_are_added() -> None:
    shop = table()
    with shop.writer("one") as writer:
        ticket = writer.begin()
        assert isinstance(ticket, WriteTicket)
        parts = [write_rows(ticket, batch([{"a": "x", "at": None}] * n, "one"), task=n) for n in (1, 2)]
    assert type(parts[0]).joined(parts).rows_unordered == 3

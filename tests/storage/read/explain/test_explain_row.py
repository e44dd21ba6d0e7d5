"""Explanations of rows, by example: who wins and why, history, older snapshots, refusals, and what is read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from tests.tuning import tune
from weft import Table
from weft.storage.errors import InvalidInput, NotFound, SnapshotExpired
from weft.storage.read.explain.explanation import EXPLANATION_SCHEMA, Explanation


def reason_of(explanation: Explanation, group: str) -> list[tuple[str, str]]:
    return [(str(one.result), str(one.reason)) for one in explanation.of_group(group)]


@pytest.fixture
def table() -> Table:
    return Table.create(new_uri(), SHOP)


def test_winner_and_losers_have_stream_lane_commit_time_ordering_and_file(table: Table) -> None:
    before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
    append(table, orders(1, status="older", ts=5))
    append(table, orders(1, status="tie", ts=7))
    with table.writer("orders", lane="backfill") as backfill:
        backfill.append(orders(1, 2, status="wins", ts=7))
    found = table.explain_row(1)
    assert found.row == {"id": 1, "status": "wins", "ots": 7, "paid": None, "pts": None}
    assert reason_of(found, "order") == [("loses", "older"), ("loses", "tie"), ("wins", "newest")]
    winner = found.of_group("order")[-1]
    assert (winner.stream, winner.lane, winner.commit) == ("orders", "backfill", 2)
    assert winner.committed_at is not None
    assert before < winner.committed_at < dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
    assert (winner.ordering, winner.values, winner.columns) == ({"ots": 7}, {"status": "wins"}, ("status", "ots"))
    assert (winner.stored_in, winner.operation, winner.late) == ("log", "upsert", False)
    assert [file.file.file.path for file in table.snapshot().files][-1] == winner.file
    table.compact()
    (kept,) = table.explain_row(1).of_group("order")
    assert (kept.stream, kept.lane, kept.commit) == ("orders", "backfill", 2)
    assert (kept.committed_at, kept.stored_in) == (winner.committed_at, "base")


def test_a_delete_of_the_row_hides_what_would_win_in_other_groups(table: Table) -> None:
    append(table, orders(1))
    append(table, payments(1, paid=2.0), "payments")
    append(table, orders(1, ts=9, op="D"))
    append(table, orders(1, ts=3))
    found = table.explain_row(1)
    assert found.row is None
    assert [(group.state, group.hides_row) for group in found.groups] == [("deleted", True), ("present", False)]
    assert reason_of(found, "order") == [("loses", "tombstone"), ("wins", "newest"), ("loses", "tombstone")]
    assert reason_of(found, "payment") == [("loses", "hidden")]
    assert "is hidden by a delete of group order" in found.to_text()
    table.fold()
    folded = table.explain_row(1)
    assert [(one.group, one.reason, one.stored_in) for one in folded.versions] == [
        ("order", "newest", "fold"),
        ("payment", "hidden", "fold"),
    ]
    table.compact()
    (delete,) = table.explain_row(1).of_group("order")
    assert (delete.operation, delete.result, delete.stored_in, delete.ordering) == (
        "delete row",
        "wins",
        "shadow",
        {"ots": 9},
    )


def test_an_event_below_the_watermark_is_late_and_may_win(table: Table) -> None:
    with table.writer("payments", lateness=5) as writer:
        writer.append(payments(1, ts=100))
        writer.append(payments(2, ts=10))
        writer.append(payments(1, ts=95))
        writer.append(payments(1, ts=94))
    assert [one.late for one in table.explain_row(1).of_group("payment")] == [False, False, True]
    (late,) = table.explain_row(2).versions
    assert (late.late, late.result) == (True, "wins")
    assert "late" in late.words


def test_an_older_snapshot_is_explained_as_it_was(table: Table) -> None:
    append(table, orders(1, status="then"))
    cut = str(table.snapshot().cut)
    table.savepoint("then")
    append(table, orders(1, status="now", ts=2))
    table.compact()
    for point in (cut, "then"):
        for history in (False, True):
            found = table.explain_row(1, as_of=point, history=history)
            assert found.row is not None
            assert found.row["status"] == "then"
            assert reason_of(found, "order") == [("wins", "newest")]
    found = table.explain_row(1, history=True)
    assert reason_of(found, "order") == [("loses", "older"), ("wins", "newest")]


def test_the_history_begins_with_the_oldest_row_that_is_retained(table: Table) -> None:
    for ts in (1, 2):
        append(table, orders(1, ts=ts))
    table.compact()
    append(table, orders(1, ts=3))
    table.clean(dt.timedelta(0))
    append(table, orders(1, ts=4))
    table.compact()
    found = table.explain_row(1, history=True)
    assert [(one.ordering["ots"], one.stored_in) for one in found.of_group("order")] == [
        (2, "base"),
        (3, "log"),
        (4, "log"),
    ]
    assert [(one.lane, one.commit) for one in found.of_group("order")] == [("orders", n) for n in (4, 6, 8)]
    assert len(table.explain_row(1).versions) == 1


def test_the_history_has_neither_what_was_rolled_back_nor_what_was_rewritten(table: Table) -> None:
    append(table, orders(1, status="a@x"))
    cut = str(table.snapshot().cut)
    append(table, orders(1, status="undone", ts=5))
    table.compact()
    table.restore(cut)
    append(table, orders(1, status="b@x", ts=2))
    assert [one.values["status"] for one in table.explain_row(1, history=True).versions] == ["a@x", "b@x"]
    table.rewrite("status", lambda values: pa.array(["#"] * len(values)))
    found = table.explain_row(1, history=True)
    assert [one.values["status"] for one in found.versions] == ["#"]
    table.erase([1], expire_snapshots=True, release_savepoints=True)
    with pytest.raises(NotFound, match="id=1"):
        table.explain_row(1, history=True)


def test_the_history_after_a_restore_does_not_begin_with_a_slice_that_was_undone(table: Table) -> None:
    append(table, orders(1, status="kept"))
    table.savepoint("kept")
    append(table, orders(1, status="undone", ts=5))
    table.compact()
    table.clean(dt.timedelta(0))
    table.restore("kept")
    append(table, orders(1, status="after", ts=2))
    found = table.explain_row(1, history=True)
    assert [one.values["status"] for one in found.versions] == ["kept", "after"]
    assert found.row == table.get([1]).to_pylist()[0]


def test_an_added_column_comes_from_the_events_that_have_it() -> None:
    group = {"columns": ["a", "b", "ts"], "ordering": ["ts"], "merge": "latest_non_null"}
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "a": "string", "b": "string", "ts": "int"},
        "groups": {"g": group},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    append(table, pa.table({"id": [1], "a": ["x"], "b": ["y"], "ts": pa.array([1], pa.int32())}), "s")
    append(table, pa.table({"id": [1], "a": ["z"], "ts": pa.array([3], pa.int32())}), "s")
    table.compact()
    table.add_column("g", "c", "string")
    table.widen_column("ts", "bigint")
    append(table, pa.table({"id": [1], "c": ["late"], "ts": [2]}), "s")
    for service in (lambda: None, table.fold, table.compact):
        service()
        for history in (False, True):
            found = table.explain_row(1, history=history)
            given = {name: one.ordering["ts"] for one in found.versions for name in one.columns}
            assert given == {"a": 3, "b": 1, "c": 2, "ts": 3}
            assert found.row == {"id": 1, "a": "z", "b": "y", "c": "late", "ts": 3}


def test_the_answer_as_a_table_has_the_declared_columns(table: Table) -> None:
    append(table, orders(1))
    append(table, payments(1, paid=float("nan")), "payments")
    rows = table.snapshot().explain({"id": 1}).to_arrow()
    assert rows.schema == EXPLANATION_SCHEMA
    assert rows.select(["group", "result", "ordering", "values", "columns"]).to_pylist() == [
        {
            "group": "order",
            "result": "wins",
            "ordering": '{"ots": 1}',
            "values": '{"status": "new"}',
            "columns": ["status", "ots"],
        },
        {
            "group": "payment",
            "result": "wins",
            "ordering": '{"pts": 1}',
            "values": '{"paid": "nan"}',
            "columns": ["paid", "pts"],
        },
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("1", "string is not int64"),
        (None, "null"),
        ((1, 2), "has 2 values"),
        ({"order": 1}, "the key has the columns order"),
        ({"id": 2**70}, "do not fit"),
    ],
)
def test_a_key_that_does_not_fit_the_table_is_refused(table: Table, key: Any, message: str) -> None:
    append(table, orders(1))
    with pytest.raises(InvalidInput, match=message):
        table.explain_row(key)


def test_a_key_of_which_nothing_is_stored_and_an_expired_snapshot_are_refused(table: Table) -> None:
    append(table, orders(1))
    snapshot = table.snapshot()
    with pytest.raises(NotFound, match="neither a row nor a delete with key id=2"):
        snapshot.explain(2)
    table.compact()
    append(table, orders(1, ts=2))
    table.compact()
    table.clean(dt.timedelta(0))
    with pytest.raises(SnapshotExpired):
        snapshot.explain(1)
    with pytest.raises(SnapshotExpired):
        table.explain_row(1, as_of=str(snapshot.cut))


def test_only_the_blocks_of_the_key_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, block_min_bytes=400, block_max_bytes=800)
    table = Table.create(new_uri(), {**SHOP, "buckets": 1})
    append(table, orders(*range(1000)))
    (log_file,) = table.snapshot().files
    lengths = log_file.index.blocks.length
    assert len(lengths) > 5
    store = table.env.store
    asked: list[int] = []
    read = store.read_ranges

    def watched(wanted: Sequence[Any]) -> Any:
        asked.extend(end for one in wanted for _, end in one.ranges)
        return read(wanted)

    monkeypatch.setattr(store, "read_ranges", watched)
    assert table.explain_row(500).row is not None
    assert 0 < len(asked) <= 2, "one block, and the tail of the file"


AGGREGATES: dict[str, Any] = {
    "key": ["id"],
    "columns": dict.fromkeys(("id", "ts", "total", "low", "high", "begin", "end"), "bigint"),
    "groups": {
        "g": {
            "columns": ["ts", "total", "low", "high", "begin", "end"],
            "ordering": ["ts"],
            "merge": "aggregate",
            "functions": {"total": "sum", "low": "min", "high": "max", "begin": "first", "end": "last"},
        }
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
}


def test_columns_of_an_aggregate_group_name_the_events_that_they_come_from() -> None:
    table = Table.create(new_uri(), AGGREGATES)

    def write(ts: int, value: int, end: int | None) -> None:
        values = {name: [value] for name in ("total", "low", "high", "begin")}
        append(table, pa.table({"id": [1], "ts": [ts], **values, "end": pa.array([end], pa.int64())}), "s")

    write(20, 5, 50)
    write(10, 9, 90)
    write(30, 5, None)  # the newest, but without a value of `end`
    found = table.explain_row(1)
    assert found.row == {"id": 1, "ts": 30, "total": 19, "low": 5, "high": 9, "begin": 9, "end": 50}
    assert [(str(one.result), one.ordering["ts"], one.columns) for one in found.versions] == [
        ("counts", 20, ("total", "low", "end")),
        ("counts", 10, ("total", "high", "begin")),
        ("counts", 30, ("ts", "total", "low")),
    ]
    table.compact()
    write(40, 7, 70)
    write(5, 1, None)
    merged = table.explain_row(1)
    assert [(one.stored_in, one.columns) for one in merged.versions] == [
        ("base", ("total", "high")),
        ("log", ("ts", "total", "end")),
        ("log", ("total", "low", "begin")),
    ]
    history = table.explain_row(1, history=True)
    assert [one.columns for one in history.versions] == [
        ("total",),
        ("total", "high"),
        ("total",),
        ("ts", "total", "end"),
        ("total", "low", "begin"),
    ]
    assert "gives total, low, begin" in merged.to_text()

"""Explanations of rows: the winner is what a read shows, and every loser has the reason that the oracle gives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from storage import Table
from storage.engine import explain_row
from storage.errors import InvalidInput, NotFound, SnapshotExpired
from storage.read.explanation import EXPLANATION_SCHEMA, Explanation, StoredVersion
from tests.oracle import Event, touches, version
from tests.storage.shop import SHOP, append, new_uri, orders, payments
from tests.storage.world import World, canonical
from tests.strategies import Append, Story, stories
from tests.tuning import tune

Where = tuple[str, int]
"""Lane and slot of a commit."""


class ExplainedWorld(World):
    """Remembers the commit of every event of the oracle."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.commits: dict[int, Where] = {}

    def append(self, append: Append, batch: tuple[str, int] | None = None) -> Any:
        commit = super().append(append, batch)
        self.commits[self.arrival] = (commit.lane, commit.seq)
        return commit

    def known_keys(self) -> set[tuple[Any, ...]]:
        return {tuple(event.row[name] for name in self.config["key"]) for event in self.oracle.events}

    def events_of(self, key: tuple[Any, ...]) -> list[Event]:
        names = self.config["key"]
        found = [event for event in self.oracle.events if tuple(event.row[name] for name in names) == key]
        return [event for event in found if self.is_stored(event)]

    def is_stored(self, event: Event) -> bool:
        """Rows that change nothing are not stored: no group is touched, or no group takes values back."""
        groups = [{"ordering": [], "merge": "latest", **group} for group in self.config["groups"].values()]
        having = [group for group in groups if any(name in event.row for name in group["columns"])]
        if event.op == "retract" and not any(group["merge"] == "aggregate" for group in having):
            return False
        return any(touches(event, group) for group in having)


def reasons(events: Sequence[Event], group: Mapping[str, Any], *, hidden: bool) -> list[tuple[str, str]]:
    """Result and reason of every event of one key that has columns of a group, in version order; by MERGE.md."""
    given = {"ordering": [], "merge": "latest", **group}
    having = [event for event in events if any(name in event.row for name in given["columns"])]
    ordered = sorted(having, key=lambda event: (event.arrival, event.position))
    found: dict[int, tuple[str, str]] = {}
    competing: list[Event] = []
    for event in ordered:
        if not touches(event, given):
            found[id(event)] = ("loses", "no_ordering")
        elif event.op == "retract" and given["merge"] != "aggregate":
            found[id(event)] = ("loses", "update_before")
        elif given["merge"] not in {"latest", "latest_non_null"}:
            found[id(event)] = ("loses", "hidden") if hidden else ("counts", "merged")
        else:
            competing.append(event)
    competing.sort(key=lambda event: version(event, given["ordering"]))
    rule = _latest if given["merge"] == "latest" else _non_null
    for event, (result, reason) in zip(competing, rule(competing, given), strict=True):
        hides = hidden and result == "wins" and event.op == "upsert"
        found[id(event)] = ("loses", "hidden") if hides else (result, reason)
    return [found[id(event)] for event in ordered]


def _beaten(event: Event, rivals: Sequence[Event], ordering: Sequence[str]) -> tuple[str, str]:
    """Why an event lost to these."""
    mine = version(event, ordering)[0]
    tie = bool(ordering) and any(version(rival, ordering)[0] == mine for rival in rivals)
    return ("loses", "tie" if tie else "older")


def _latest(events: Sequence[Event], group: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not events:
        return []
    *losers, winner = events
    if winner.op != "upsert":
        return [("loses", "tombstone")] * len(losers) + [("wins", "newest")]
    return [*(_beaten(event, [winner], group["ordering"]) for event in losers), ("wins", "newest")]


def _supplies(event: Event, name: str) -> bool:
    return event.row.get(name) is not None or name in (event.row.get("_supplied") or ())


def _non_null(events: Sequence[Event], group: Mapping[str, Any]) -> list[tuple[str, str]]:
    deletes = [i for i, event in enumerate(events) if event.op != "upsert"]
    floor = deletes[-1] if deletes else -1
    if floor == len(events) - 1:
        return [("loses", "tombstone")] * max(floor, 0) + [("wins", "newest")] * bool(events)
    top = events[-1]
    values = [name for name in group["columns"] if name not in group["ordering"]]
    supplier = {
        name: next((event for event in reversed(events[floor + 1 :]) if _supplies(event, name)), None)
        for name in values
    }
    found = [("loses", "tombstone")] * max(floor, 0)
    if floor >= 0:
        found.append(_beaten(events[floor], [top], group["ordering"]))
    for event in events[floor + 1 :]:
        rivals = [supplier[name] for name in values if _supplies(event, name)] or [top]
        wins = event is top or any(event is winner for winner in supplier.values())
        found.append(("wins", "newest") if wins else _beaten(event, [r for r in rivals if r], group["ordering"]))
    return found


def winners(explanation: Explanation) -> set[tuple[Any, ...]]:
    """Which commit every column comes from, and which delete wins. A merged row has one version for one commit."""
    return {
        (one.group, one.lane, one.commit, one.operation, canonical(one.ordering), column)
        for one in explanation.versions
        if one.result == "wins"
        for column in (one.columns if one.operation == "upsert" else [None])
    }


def given_by(one: StoredVersion) -> dict[str, Any]:
    """The values of the row that come from a winner."""
    return {name: {**one.ordering, **one.values}.get(name) for name in one.columns}


def check(world: ExplainedWorld) -> None:
    """Check the explanations of every key, without and with history."""
    snapshot = world.table.snapshot()
    rows = {tuple(row[name] for name in world.config["key"]): row for row in snapshot.to_arrow().to_pylist()}
    declared = {name: {"ordering": [], "merge": "latest", **group} for name, group in world.config["groups"].items()}
    for key in world.known_keys():
        events = world.events_of(key)
        if not events:
            with pytest.raises(NotFound):
                snapshot.explain(key, history=True)
            continue
        history = snapshot.explain(key, history=True)
        for name, group in declared.items():
            found = [(str(one.result), str(one.reason)) for one in history.of_group(name)]
            where = [(one.lane, one.commit) for one in history.of_group(name)]
            hidden = any(state.hides_row for state in history.groups)
            assert found == reasons(events, group, hidden=hidden), (key, name)
            having = [event for event in events if any(column in event.row for column in group["columns"])]
            assert where == [world.commits[event.arrival] for event in having]
        try:
            present = snapshot.explain(key)
        except NotFound:
            # Events without effect are gone after a compaction.
            assert key not in rows
            assert not winners(history)
            continue
        for explanation in (history, present):
            assert canonical(explanation.row) == canonical(rows.get(key))
            assert len(explanation.to_arrow()) == len(explanation.versions)
            assert explanation.to_text()
            for one in explanation.versions:
                if one.result == "wins" and explanation.row is not None:
                    expected = {name: explanation.row[name] for name in one.columns}
                    assert canonical(given_by(one)) == canonical(expected)
            for name, group in declared.items():
                if explanation.row is None or group["merge"] not in {"latest", "latest_non_null"}:
                    continue
                given = [column for one in explanation.of_group(name) for column in one.columns]
                assert len(given) == len(set(given)), "a column has two winners"
                state = next(state for state in explanation.groups if state.name == name)
                unsupplied = {c for c in group["columns"] if c not in given}
                assert state.state != "present" or all(explanation.row[column] is None for column in unsupplied)
        assert winners(present) == winners(history)
        for explanation in (history, present):
            check_aggregates(explanation, declared)


def check_aggregates(explanation: Explanation, declared: Mapping[str, Mapping[str, Any]]) -> None:
    """A column that shows one of its values comes from versions with that value; no other version gives it."""
    for name, group in declared.items():
        present = next(state for state in explanation.groups if state.name == name).state == "present"
        if explanation.row is None or group["merge"] != "aggregate" or not present:
            continue
        versions = explanation.of_group(name)
        assert len([one for one in versions if set(group["ordering"]) & set(one.columns)]) <= 1
        for column, declared_function in group["functions"].items():
            function = declared_function if isinstance(declared_function, str) else next(iter(declared_function))
            given = [one.values.get(column) for one in versions if column in one.columns]
            shown = explanation.row[column]
            if function in {"min", "max", "first", "last"}:
                assert bool(given) == (shown is not None), (column, function)
                assert all(canonical(value) == canonical(shown) for value in given), (column, function)
            if function in {"first", "last"}:
                assert len(given) <= 1
            if function in {"sum", "count"}:
                assert len(given) == sum(one.values.get(column) is not None for one in versions)


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8))
def test_the_winner_is_what_a_read_shows_and_losers_have_the_reason_of_the_oracle(story: Story) -> None:
    with ExplainedWorld(story.config) as world:
        world.run(story.steps)
        if world.oracle.events:
            check(world)


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
    rows = explain_row(table.snapshot(), {"id": 1})
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
        ("1", "string was given for int64"),
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
    with pytest.raises(NotFound, match="no row with key id=2"):
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

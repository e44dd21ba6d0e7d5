"""Changes by example: what counts as a change, its form, and ranges that are refused instead of answered partly."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest

from storage import Table
from storage.core.log.cut import Cut
from storage.core.names import LaneName
from storage.errors import InvalidInput, NotFound, OffsetExpired, OffsetInvalidated, SnapshotExpired
from storage.read.changes import change_scan as changes_room
from storage.read.snapshot import Snapshot
from tests.faulty_store import FakeClock, other_process
from tests.storage.support.cleaning import ALL, NOW, compacted, moment, stored
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from tests.tuning import tuned

Changed = dict[int, tuple[str, list[str]]]


@pytest.fixture
def table(clock: FakeClock) -> Table:
    return Table.create(new_uri(), SHOP, clock=clock)


def cut(table: Table) -> str:
    return str(table.snapshot().cut)


def rows(table: Table, since: Any, until: Any = None, **arguments: Any) -> list[dict[str, Any]]:
    return sorted(table.changes(since, until, **arguments).read_all().to_pylist(), key=lambda row: row["id"])


def changes(table: Table, since: Any, until: Any = None, **arguments: Any) -> Changed:
    """The kind of change and the changed groups, by key."""
    changed = rows(table, since, until, **arguments)
    result = {row["id"]: (row["_change"], row["_changed_groups"]) for row in changed}
    assert len(result) == len(changed), "a key comes twice"
    return result


class TestWhatIsAChange:
    def test_inserts_updates_and_deletes_are_reported_once(self, table: Table) -> None:
        append(table, orders(1, 2, 3))
        start = cut(table)
        append(table, orders(2, 4, status="paid", ts=2))
        append(table, payments(2, 5, paid=7.0), "payments")
        append(table, orders(4, status="sent", ts=3))
        append(table, orders(3, ts=4, op="delete"))
        assert rows(table, start) == [
            {**row(2, "paid", 2, 7.0, 1), "_change": "update", "_changed_groups": ["order", "payment"]},
            {**row(3), "_change": "delete", "_changed_groups": ["order"]},
            {**row(4, "sent", 3), "_change": "insert", "_changed_groups": ["order"]},
            {**row(5, paid=7.0, pts=1), "_change": "insert", "_changed_groups": ["payment"]},
        ]

    def test_commits_without_effect_are_not_changes(self, table: Table) -> None:
        append(table, orders(1, 2, ts=5), batch=("q", 1))
        start = cut(table)
        append(table, orders(1, 2, status="late", ts=4))
        append(table, orders(1, 2, ts=5), batch=("q", 1))
        append(table, orders(2, ts=9))
        append(table, orders(9, ts=1, op="delete"))
        with table.writer("orders", lane="backfill") as writer:
            writer.append(orders(1, status="older", ts=3))
        assert changes(table, start) == {2: ("update", ["order"])}  # its ordering value

    def test_a_row_that_returns_to_its_old_values_is_not_a_change(self, table: Table) -> None:
        append(table, orders(1))
        start = cut(table)
        append(table, payments(1), "payments")
        between = cut(table)
        append(table, pa.table({**columns(payments(1, ts=2)), "_op": ["delete"]}), "payments")
        assert changes(table, start, between) == {1: ("update", ["payment"])}
        assert changes(table, between) == {1: ("update", ["payment"])}
        assert changes(table, start) == {}

    def test_changes_of_a_hidden_row_are_not_reported(self, table: Table) -> None:
        append(table, orders(1))
        append(table, orders(1, ts=5, op="delete"))
        hidden = cut(table)
        append(table, payments(1), "payments")
        assert changes(table, hidden) == {}
        append(table, orders(1, ts=6))
        assert changes(table, hidden) == {1: ("insert", ["order", "payment"])}
        back = cut(table)
        append(table, orders(1, ts=7, op="delete"))
        assert changes(table, back) == {1: ("delete", ["order", "payment"])}
        append(table, orders(1, status="again", ts=8))
        assert changes(table, back) == {1: ("update", ["order"])}

    def test_a_schema_change_is_not_a_change_and_both_sides_use_the_later_schema(self, table: Table) -> None:
        append(table, orders(1))
        append(table, payments(2), "payments")
        table.compact()
        start = cut(table)
        table.add_column("order", "note", "string", default="none")
        table.set_default("status", "unknown")
        table.widen_column("id", "bigint")
        assert changes(table, start) == {}
        table.compact()
        assert changes(table, start) == {}
        append(table, orders(2, status="unknown"))
        (changed,) = rows(table, start, before=True)
        assert changed["_changed_groups"] == ["order"]
        assert changed["note"] is None
        assert changed["_before"] == {"status": "unknown", "ots": None, "paid": 1.0, "pts": 1, "note": "none"}


def row(key: int, status: Any = None, ots: Any = None, paid: Any = None, pts: Any = None) -> dict[str, Any]:
    return {"id": key, "status": status, "ots": ots, "paid": paid, "pts": pts}


def columns(rows: pa.Table) -> dict[str, Any]:
    return {name: rows.column(name) for name in rows.column_names}


class TestHowItIsAsked:
    def test_since_none_every_row_is_an_insert(self, table: Table) -> None:
        append(table, orders(1, 2))
        append(table, payments(2), "payments")
        append(table, orders(1, ts=2, op="delete"))
        assert changes(table, None) == {2: ("insert", ["order", "payment"])}
        table.compact()
        (only,) = rows(table, None, before=True)
        assert only == {
            **row(2, "new", 1, 1.0, 1),
            "_change": "insert",
            "_changed_groups": ["order", "payment"],
            "_before": None,
        }

    def test_a_range_may_be_empty_but_not_backwards(self, table: Table) -> None:
        start = cut(table)
        append(table, orders(1))
        end = cut(table)
        assert changes(table, end, end) == changes(table, start, start) == changes(table, end) == {}
        assert table.changes(end, end).schema == table.changes(start).schema
        for since, until in ((end, start), (end, start.replace("cut:1:1", "cut:1:2"))):
            with pytest.raises((InvalidInput, NotFound)) as caught:
                table.changes(since, until)
        with pytest.raises(InvalidInput, match="no changes from cut:1:2:orders=2 up to cut:1:1:") as caught:
            table.changes(end, start)
        assert "the earlier cut as since" in caught.value.hint

    def test_no_lane_of_a_range_may_go_backwards(self, table: Table) -> None:
        append(table, orders(1))
        append(table, payments(1), "payments")
        end = table.snapshot().cut
        older = Cut(end.table, {**end.lanes, "payments": 1})  # type: ignore[dict-item]
        assert changes(table, str(older)) == {1: ("update", ["payment"])}
        with pytest.raises(InvalidInput, match="not after it"):
            table.changes(str(end), str(older))

    def test_times_and_savepoints_can_be_ends_of_a_range(self, table: Table, clock: FakeClock) -> None:
        append(table, orders(1))
        table.savepoint("one")
        clock.time_ms += 1_000
        then = moment(clock)
        clock.time_ms += 1_000
        append(table, orders(2))
        assert changes(table, "one") == changes(table, then) == {2: ("insert", ["order"])}
        assert changes(table, None, "one") == changes(table, None, then) == {1: ("insert", ["order"])}
        with pytest.raises(NotFound, match="no savepoint 'two'"):
            table.changes("two")

    def test_only_the_requested_columns_are_compared(self, table: Table) -> None:
        append(table, orders(1, 2, 3))
        start = cut(table)
        append(table, orders(1, status="paid", ts=2))
        append(table, orders(2, ts=2))
        append(table, payments(2, 3), "payments")
        assert changes(table, start, columns=["status"]) == {1: ("update", ["order"])}
        assert changes(table, start, columns=["ots"]) == {1: ("update", ["order"]), 2: ("update", ["order"])}
        assert changes(table, start, columns=["pts", "id"]) == {2: ("update", ["payment"]), 3: ("update", ["payment"])}
        assert changes(table, start, columns=["id"]) == {}
        append(table, payments(4), "payments")
        assert changes(table, start, columns=["status"]) == {1: ("update", ["order"]), 4: ("insert", [])}
        answer = table.changes(start, columns=["status"], before=True)
        assert answer.schema.names == ["id", "status", "_change", "_changed_groups", "_before"]
        with pytest.raises(NotFound, match="no column 'state'"):
            table.changes(start, columns=["state"])

    def test_before_returns_the_earlier_row(self, table: Table) -> None:
        append(table, orders(1, 2))
        start = cut(table)
        append(table, orders(1, status="paid", ts=2))
        append(table, orders(2, ts=2, op="delete"))
        append(table, orders(3))
        was = {"status": "new", "ots": 1, "paid": None, "pts": None}
        assert [(r["_change"], r["_before"]) for r in rows(table, start, before=True)] == [
            ("update", was),
            ("delete", was),
            ("insert", None),
        ]

    def test_with_require_a_row_is_inserted_when_its_groups_are_complete(self, table: Table) -> None:
        cuts = [cut(table)]
        for stream, batch in (
            ("orders", orders(1)),
            ("payments", payments(1, 2)),
            ("orders", orders(1, status="paid", ts=2)),
            ("payments", pa.table({**columns(payments(1, ts=2)), "_op": ["delete"]})),
        ):
            append(table, batch, stream)
            cuts.append(cut(table))
        both = ["order", "payment"]
        seen = [changes(table, since, until, require=both) for since, until in itertools.pairwise(cuts)]
        assert seen == [
            {},
            {1: ("insert", both)},
            {1: ("update", ["order"])},
            {1: ("delete", both)},
        ]
        assert changes(table, cuts[0], cuts[3], require=["payment"]) == {
            1: ("insert", both),
            2: ("insert", ["payment"]),
        }
        with pytest.raises(NotFound, match="no group 'refund'"):
            table.changes(cuts[0], require=["refund"])


class TestServices:
    def test_compactions_and_folds_do_not_affect_changes(self, table: Table) -> None:
        append(table, orders(*ALL))
        table.compact()
        append(table, orders(1, 2, status="paid", ts=2))
        table.fold()
        start = cut(table)
        append(table, orders(2, 3, status="sent", ts=3))
        append(table, orders(4, ts=9, op="delete"))
        expected = {2: ("update", ["order"]), 3: ("update", ["order"]), 4: ("delete", ["order"])}
        assert changes(table, start) == expected
        for service in (table.fold, table.compact, table.fold):
            service()
            assert changes(table, start) == expected
            assert changes(Table.open(table.uri), start) == expected
        append(table, orders(5, status="late", ts=0))
        table.compact()
        table.clean()  # keeps snapshots of the last day
        assert changes(table, start) == expected

    def test_expired_ends_are_refused_and_retained_ones_work(self, table: Table) -> None:
        append(table, orders(1))
        start = cut(table)
        kept = str(compacted(table, "second", 2).cut)
        append(table, orders(3, status="third", ts=3))
        newest = cut(table)
        table.clean(NOW)
        for since, until in ((start, None), (None, start), (start, start)):
            with pytest.raises(OffsetExpired, match="no longer kept") as caught:
                table.changes(since, until)
            assert "since=None" in caught.value.hint
            assert isinstance(caught.value, SnapshotExpired)
        assert changes(table, kept) == changes(table, kept, newest) == {3: ("update", ["order"])}

    def test_a_savepoint_can_be_an_end_even_if_later_logs_were_deleted(self, table: Table) -> None:
        append(table, orders(1, 2, 3))
        compacted(table, "first", 2)
        table.savepoint("then")
        append(table, orders(2, ts=3, op="delete"))
        append(table, orders(99))
        compacted(table, "second", 4)
        append(table, orders(3, status="last", ts=5))
        expected = changes(table, "then")
        assert set(expected) == {*ALL, 99}
        assert expected[2] == ("update", ["order"])
        logs = stored(table, "log")
        table.clean(NOW)
        assert logs - stored(table, "log")
        assert changes(table, "then") == expected

    def test_file_groups_without_commits_are_not_read(self, table: Table) -> None:
        append(table, orders(*ALL))
        table.compact()
        table.savepoint("then")
        start = cut(table)
        append(table, orders(1, status="paid", ts=2))
        for since in (start, "then"):
            earlier, later = table.snapshot(since), table.snapshot()
            (task,) = changes_room.scan_changes(earlier, later, None, None, before=False).tasks
            assert len(task.after.slices) == 1
            assert task.touched is not None
        # After the savepoint logs may have been deleted, so compacted file groups are compared as a whole.
        compacted(table, "second", 3)
        table.clean(NOW)
        append(table, orders(1, status="paid", ts=4))
        (task,) = changes_room.scan_changes(table.snapshot("then"), table.snapshot(), None, None, before=False).tasks
        assert task.touched is None
        assert len(task.after.slices) == 4

    @pytest.mark.usefixtures("own_files")
    def test_a_file_group_with_many_commits_is_compared_as_a_whole(self, table: Table) -> None:
        append(table, orders(*ALL))
        table.compact()
        start = cut(table)
        chance = random.Random(7)
        for ts in range(2, 42):
            append(table, orders(*ALL, status=chance.randbytes(500).hex(), ts=ts))
        table.compact()
        scan = changes_room.scan_changes(table.snapshot(start), table.snapshot(), None, None, before=False)
        # One file group has a single row, so its commits are not larger than its base file.
        assert [(len(task.after.slices), task.touched is None) for task in scan.tasks] == [(1, False), (3, True)]
        assert changes(table, start) == dict.fromkeys(ALL, ("update", ["order"]))

    def test_tasks_can_be_read_in_another_process(self, table: Table) -> None:
        append(table, orders(*ALL))
        start = cut(table)
        append(table, orders(1, 2, 3, status="paid", ts=2))
        append(table, orders(77, 78, 79))
        scan = changes_room.scan_changes(table.snapshot(start), table.snapshot(), ["status"], None, before=True)
        copy = pickle.loads(pickle.dumps(scan))
        batches = [batch for task in copy.tasks for batch in copy.read(task)]
        assert {row["id"] for batch in batches for row in batch.to_pylist()} == {1, 2, 3, 77, 78, 79}
        assert all(batch.schema == scan.arrow for batch in batches)


class TestNothingIsAnsweredInPart:
    def test_cleaning_while_changes_are_read_raises_offset_expired(self, table: Table) -> None:
        compacted(table, "first", 1)
        start = cut(table)
        append(table, orders(1, status="paid", ts=2))
        reader = table.changes(start)
        compacted(table, "second", 3)
        compacted(table, "third", 4)
        assert table.clean(NOW).files
        with pytest.raises(OffsetExpired) as caught:
            reader.read_all()
        assert "since=None" in caught.value.hint

    def test_logs_after_a_savepoint_deleted_while_changes_are_read(self, table: Table) -> None:
        compacted(table, "first", 1)
        table.savepoint("then")
        append(table, orders(1, status="paid", ts=2))
        reader = table.changes("then")
        compacted(table, "second", 3)
        compacted(table, "third", 4)
        assert table.clean(NOW).files
        with pytest.raises(OffsetExpired, match="was committed after"):
            reader.read_all()
        assert changes(table, "then")[1] == ("update", ["order"])  # read again, by comparing whole file groups

    @pytest.mark.parametrize("how", ["restore", "undo"])
    def test_an_offset_from_before_a_restore_is_invalid(self, table: Table, clock: FakeClock, how: str) -> None:
        append(table, orders(1))
        good = cut(table)
        clock.time_ms += 1_000
        since = moment(clock)
        append(table, orders(2))
        bad = cut(table)
        if how == "restore":
            table.restore(good)
        else:
            table.undo("orders", since)
        for offset in (good, bad):
            with pytest.raises(OffsetInvalidated, match="was restored") as caught:
                table.changes(offset)
            assert "read the whole table again" in caught.value.hint
        # Ranges entirely before or entirely after the restore are valid.
        assert changes(table, good, bad) == {2: ("insert", ["order"])}
        after = cut(table)
        append(table, orders(3))
        assert changes(table, after) == {3: ("insert", ["order"])}
        assert changes(table, None) == {1: ("insert", ["order"]), 3: ("insert", ["order"])}

    def test_a_cut_that_never_existed_is_refused(self, table: Table) -> None:
        with pytest.raises(InvalidInput, match="is not a cut"):
            table.changes("cut:1:x")
        with pytest.raises(NotFound, match="use a cut of this table"):
            table.changes("cut:1:77:")
        with pytest.raises(InvalidInput, match="no time zone"):
            table.changes(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake

    def test_writers_whose_clocks_disagree_lose_nothing(self, clock: FakeClock) -> None:
        """A commit with an older time than the offset is still after the offset."""
        table = Table.create(new_uri(), SHOP, clock=clock)
        slow = other_process(table.uri, FakeClock(clock.time_ms - 3_600_000))
        append(table, orders(1))
        start = cut(table)
        append(slow, payments(1, 2), "payments")
        assert changes(table, start) == {1: ("update", ["payment"]), 2: ("insert", ["payment"])}


class TestBoundedCut:
    def test_commits_come_one_by_one_in_order_of_time(self, table: Table) -> None:
        append(table, orders(0))
        start = cut(table)
        for n in range(3):
            append(table, orders(10 + n))
            append(table, payments(20 + n), "payments")
        end = cut(table)
        assert list(steps(table, start, end, 1)) == [{10}, {20}, {11}, {21}, {12}, {22}]
        assert list(steps(table, start, end, 4)) == [{10, 20, 11, 21}, {12, 22}]
        assert list(steps(table, start, end, 99)) == [{10, 20, 11, 21, 12, 22}]

    def test_new_lanes_schemas_and_compactions_do_not_stop_a_follower(self, table: Table) -> None:
        append(table, orders(0))
        start = cut(table)
        append(table, orders(1))
        table.add_column("order", "note", "string")
        append(table, orders(2))
        append(table, payments(3), "payments")
        table.compact()
        append(table, orders(4))
        end = cut(table)
        found = list(steps(table, start, end, 1))
        assert sorted(key for step in found for key in step) == [1, 2, 3, 4]
        assert len(found) >= 3

    def test_cuts_that_are_not_retained_are_skipped(self, table: Table) -> None:
        append(table, orders(0))
        table.savepoint("then")
        start = str(table.snapshot("then").cut)
        for n in ALL:
            append(table, orders(n, status="first", ts=2))
        compacted(table, "second", 3)
        for n in range(50, 70):
            append(table, orders(n))
        table.clean(NOW)
        first, *others = steps(table, start, cut(table), 1)
        assert first == {*ALL}, "what began before the compaction was published: the first moment that is retained"
        assert [*others] == [{n} for n in range(50, 70) if n not in first] != []

    def test_a_bounded_range_backwards_is_refused_too(self, table: Table) -> None:
        start = table.snapshot()
        append(table, orders(0))
        with pytest.raises(InvalidInput, match="not after it"):
            changes_room.bounded_cut(table.snapshot(), start, 1)


def steps(table: Table, since: str, end: str, commits: int) -> Any:
    """Keys that change, step by step."""
    for _ in range(100):
        if since == end:
            return
        until = str(changes_room.bounded_cut(table.snapshot(since), table.snapshot(end), commits))
        assert until != since
        yield set(changes(table, since, until))
        since = until
    raise AssertionError(since)


def test_tasks_are_bounded_by_rows_and_bytes() -> None:
    """Repeated values are small in files, but not in memory."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(400)))
    since = table.snapshot()
    append(table, orders(*range(400), status="sent", ts=2))

    def scan() -> changes_room.ChangeScan:
        return changes_room.scan_changes(since, table.snapshot(), None, None, before=True)

    assert len(scan().tasks) == 1
    table = tuned(table, change_task_rows=400)
    assert len(scan().tasks) >= 4
    assert sum(batch.num_rows for batch in scan().to_reader()) == 400


def test_a_key_changes_once_if_a_large_file_group_was_split(clock: FakeClock) -> None:
    """The logs in between are gone, so the later file groups are compared as a whole, each divided by key range."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 1}, clock=clock)
    table = tuned(table, row_group_rows=20, shared_row_group_rows=20, change_task_rows=40)
    append(table, orders(*range(100)))
    table.compact()
    table.savepoint("before")
    append(table, orders(*range(100), status="sent", ts=2))
    table.split(8)
    table.clean(dt.timedelta(0))
    scan = changes_room.scan_changes(table.snapshot("before"), table.snapshot(), None, None, before=False)
    assert any(len(task.after.slices) > 1 and task.after.slices[0].within for task in scan.tasks)
    assert changes(table, "before") == dict.fromkeys(range(100), ("update", ["order"]))


def test_a_claim_after_the_end_of_a_closed_lane_is_ignored(table: Table) -> None:
    """A reader that read before the close was known may have the claim in its cut: a stream continues from there."""
    append(table, orders(1, 2))
    append(table, payments(1), "payments")
    before = table.snapshot()
    end = table.close_lane("orders")
    append(table, payments(2, paid=9.0), "payments")
    until = table.snapshot()
    log = until.table_log.commit_log
    last = log.entry(LaneName("orders"), end)
    assert last is not None
    claim = {"seq": end + 1, "epoch": last.epoch + 1, "commit_id": "late", "prev_id": last.commit_id, "intent": 0}
    log.publish(last.model_copy(update=claim))
    late = Snapshot(before.table_log, before.state, Cut(before.cut.table, {**before.cut.lanes, "orders": end + 1}))
    scan = changes_room.scan_changes(late, until, None, None, before=False)
    assert [(row["id"], row["_change"]) for row in scan.to_reader().read_all().to_pylist()] == [(2, "update")]
    assert changes_room.bounded_cut(late, until, 9) == until.cut

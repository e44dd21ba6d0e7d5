"""Writers: fencing, exactly-once batches, and crashes at any point (S3, S4, S5, S6)."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments, statuses
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.entries import Claim, Data, lane_entries
from weft.storage.core.log.entry_codec import encode_entry
from weft.storage.core.names import LaneName, Path, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, Conflict, Fenced, GapError, InvalidInput, NotFound, SplitBrain
from weft.storage.log.commit_log import CommitLog
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import write_rows


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP, clock=FakeClock())


@pytest.fixture
def store(table: Table) -> FaultyStore:
    return FaultyStore(open_store(table.uri))


@pytest.fixture
def faulty(store: FaultyStore) -> Table:
    return other_process(store.uri, FakeClock(), store)


def entries_of(uri: str, lane: str = "orders") -> list[Claim | Data]:
    return lane_entries(CommitLog(Environment(open_store(uri), FakeClock())).read_after(LaneName(lane), 0))


def test_a_second_writer_fences_the_first_and_nothing_is_lost_or_doubled(table: Table, uri: str) -> None:
    with table.writer("orders", owner="first") as first:
        first.append(orders(1), batch=("q", 1))
        with Table.open(uri).writer("orders", owner="second") as second:
            second.append(orders(2), batch=("q", 2))
            with pytest.raises(Fenced, match="claimed by second") as error:
                first.append(orders(3), batch=("q", 2))
            assert error.value.hint
            with pytest.raises(Fenced):
                first.append(orders(4))
            second.append(orders(5), batch=("q", 3))
    assert sorted(statuses(table)) == [1, 2, 5]
    assert [(entry.kind, entry.epoch) for entry in entries_of(uri)] == [
        ("CLAIM", 1),
        ("DATA", 1),
        ("CLAIM", 2),
        ("DATA", 2),
        ("DATA", 2),
    ]


def test_a_writer_is_fenced_between_its_files_and_its_entry(table: Table, uri: str) -> None:
    with table.writer("orders") as first:
        ticket = first.begin(("q", 1))
        written = write_rows(ticket, orders(1))
        with Table.open(uri).writer("orders") as second:
            second.append(orders(2), batch=("q", 1))
        with pytest.raises(Fenced):
            first.commit(ticket, [written])
    assert sorted(statuses(table)) == [2]


def test_another_process_under_the_same_claim_halts_the_writer(table: Table, uri: str) -> None:
    with table.writer("orders") as first:
        ours = first.append(orders(1))
        (mine,) = [entry for entry in entries_of(uri) if isinstance(entry, Data)]
        forged = mine.model_copy(update={"seq": ours.seq + 1, "commit_id": "forged", "prev_id": mine.commit_id})
        open_store(uri).put_if_absent(slot_path(LaneName("orders"), ours.seq + 1), encode_entry(forged))
        with pytest.raises(SplitBrain, match="under claim 1"):
            first.append(orders(2))
        with pytest.raises(SplitBrain):
            first.append(orders(3))


def test_alternating_claims_end_with_an_error_that_names_the_owners(store: FaultyStore, faulty: Table) -> None:
    rival = Table.open(store.uri)

    def claim() -> None:
        with rival.writer("orders", owner="the rival"):
            pass

    append(rival, orders(1))
    store.faults.append(Fault("put_if_absent", "lanes/orders", times=FOREVER, action=claim))
    with pytest.raises(Conflict, match="me lost 10 claims to the rival"), faulty.writer("orders", owner="me"):
        pass


def test_a_repeated_batch_is_committed_once(table: Table, uri: str) -> None:
    with table.writer("orders") as first:
        commit = first.append(orders(1, status="a"), batch=("q", 7))
        assert (commit.rows, commit.replayed) == (1, False)
        again = first.append(orders(1, status="b"), batch=("q", 7))
        assert (again.seq, again.rows, again.replayed) == (commit.seq, 1, True)
    with Table.open(uri).writer("orders") as second:
        assert second.last_batch("q") == 7
        third = second.append(orders(1, status="c"), batch=("q", 7))
        assert (third.seq, third.replayed) == (commit.seq, True)
    assert statuses(table) == {1: "a"}


def test_a_missing_batch_is_a_gap(table: Table) -> None:
    with table.writer("orders") as lane:
        lane.append(orders(1), batch=("q", 7))
        with pytest.raises(GapError, match="batch 9 of query 'q' follows batch 7"):
            lane.append(orders(2), batch=("q", 9))
        lane.append(orders(2), batch=("q", 8))
    assert sorted(statuses(table)) == [1, 2]


def test_numbers_that_go_backwards_are_refused(table: Table) -> None:
    with table.writer("orders") as lane:
        lane.append(orders(1), batch=("q", 7))
        with pytest.raises(Conflict, match="batch 3 of query 'q' was never committed"):
            lane.append(orders(2), batch=("q", 3))


def test_a_second_query_needs_takeover(table: Table) -> None:
    with table.writer("orders") as lane:
        lane.append(orders(1), batch=("old", 7))
    with (
        table.writer("orders") as lane,
        pytest.raises(Conflict, match="query 'old'; this is query 'new'"),
    ):
        lane.append(orders(2), batch=("new", 0))
    with table.writer("orders", takeover=True) as lane:
        lane.append(orders(2), batch=("new", 0))
    assert sorted(statuses(table)) == [1, 2]


@pytest.mark.parametrize(
    ("silent_seconds", "words", "hint"),
    [
        (
            50,
            r"which was alive 50 s ago \(lane 'orders', query 'old'; this is a new query\)",
            "^stop that writer",
        ),
        (3600, "which was last heard of at 2027-01-15 08:00:00 UTC", "^if that writer will not write any more"),
        (None, "which has ended", "resume: table"),
    ],
)
def test_a_second_query_is_told_who_writes_the_stream(silent_seconds: int | None, words: str, hint: str) -> None:
    clock = FakeClock()
    table = Table.create(new_uri(), SHOP, clock=clock)
    with table.writer("orders", owner="machine m, pid 7") as first:
        first.append(orders(1), batch=("old", 7))
        if silent_seconds is not None:
            clock.sleep(silent_seconds)
            with pytest.raises(Conflict, match=words) as error, table.writer("orders", query_id=""):
                pass
    if silent_seconds is None:
        with pytest.raises(Conflict, match=words) as error, table.writer("orders", query_id=""):
            pass
    assert error.value.message.startswith(
        "stream 'orders' is written by another query already: machine m, pid 7, since 2027-01-15 08:00:00 UTC, "
    )
    assert re.search(hint, error.value.hint)
    assert "lane: NAME" in error.value.hint


def test_a_query_that_was_taken_over_needs_takeover_to_return(table: Table) -> None:
    with table.writer("orders") as lane:
        lane.append(orders(1), batch=("old", 7))
    with table.writer("orders", takeover=True) as lane:
        lane.append(orders(2), batch=("new", 0))
    with table.writer("orders") as lane:
        assert lane.append(orders(1), batch=("old", 7)).replayed
        with pytest.raises(Conflict, match="query 'new'; this is query 'old'"):
            lane.append(orders(3), batch=("old", 8))
    assert sorted(statuses(table)) == [1, 2]


@pytest.mark.parametrize("batch", [("", 1), ("q", -1)])
def test_an_invalid_batch_is_refused(table: Table, batch: tuple[str, int]) -> None:
    with table.writer("orders") as lane, pytest.raises(InvalidInput, match="query id, number"):
        lane.append(orders(1), batch=batch)


def test_an_empty_batch_is_committed_and_an_empty_append_is_not(table: Table) -> None:
    with table.writer("orders") as lane:
        before = str(table.snapshot().cut)
        nothing = lane.append(orders())
        assert (nothing.rows, nothing.replayed) == (0, False)
        assert str(table.snapshot().cut) == before
        commit = lane.append(orders(), batch=("q", 0), source={"offset": 5})
        assert commit.rows == 0
        assert lane.append(orders(1), batch=("q", 0)).replayed
    with table.writer("orders") as lane:
        assert lane.source == {"offset": 5}
        assert lane.last_batch("q") == 0
    assert statuses(table) == {}


def test_ignored_rows_are_counted(table: Table) -> None:
    with table.writer("orders") as lane:
        commit = lane.append(pa.table({"id": [1, 2, 3], "status": ["a", "b", "c"], "ots": [1, None, 1]}))
        assert (commit.rows, commit.rows_ignored) == (2, 1)
        before = orders(9, op="-U")
        assert lane.append(before, batch=("q", 1)).rows_ignored == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_commit_is_settled_by_a_replay(store: FaultyStore, faulty: Table, when: str) -> None:
    with faulty.writer("orders") as lane:
        lane.append(orders(1), batch=("q", 1))
        store.faults.append(Fault("put_if_absent", "lanes/orders", when=when, times=FOREVER))
        store.faults.append(Fault("get", "lanes/orders", times=FOREVER))
        with pytest.raises(CommitUnknown) as error:
            lane.append(orders(2), batch=("q", 2))
        assert error.value.batch == ("q", 2)
        store.faults.clear()
        with pytest.raises(CommitUnknown):  # it must stop: its next entry might use a slot that is too early
            lane.append(orders(3), batch=("q", 3))
    with faulty.writer("orders") as lane:
        assert lane.append(orders(2), batch=("q", 2)).replayed == (when == "after")
        lane.append(orders(3), batch=("q", 3))
    assert sorted(statuses(Table.open(store.uri))) == [1, 2, 3]


def test_a_crash_between_files_and_entry_does_not_affect_reads(table: Table, uri: str) -> None:
    before = table.snapshot()
    with table.writer("orders") as lane:
        write_rows(lane.begin(("q", 1)), orders(1, 2, 3))
    assert [path for path, _ in open_store(uri).list(Path("log"))]
    assert statuses(table) == {}
    table.compact()
    assert statuses(Table.open(uri)) == {}
    with table.writer("orders") as lane:
        assert not lane.append(orders(1), batch=("q", 1)).replayed
    assert sorted(statuses(table)) == [1]
    assert before.to_arrow().num_rows == 0


def test_a_store_that_fails_while_files_are_written_leaves_no_trace(store: FaultyStore, faulty: Table) -> None:
    with faulty.writer("orders") as lane:
        store.faults.append(Fault("put", "log/orders"))
        with pytest.raises(OSError, match="network is down"):
            lane.append(orders(1))
        assert statuses(faulty) == {}
        lane.append(orders(2))
    assert sorted(statuses(Table.open(store.uri))) == [2]


def test_files_of_several_tasks_become_visible_at_once_in_task_order(table: Table) -> None:
    with table.writer("orders") as lane:
        ticket = lane.begin()
        parts = [
            write_rows(pickle.loads(pickle.dumps(ticket)), orders(1, 2, status=s), task=i) for i, s in enumerate("ab")
        ]
        assert statuses(table) == {}
        commit = lane.commit(ticket, parts)
    assert commit.rows == 4
    assert statuses(table) == {1: "b", 2: "b"}


def test_a_ticket_is_valid_for_one_commit(table: Table) -> None:
    with table.writer("orders") as lane:
        ticket = lane.begin()
        written = write_rows(ticket, orders(1))
        lane.commit(ticket, [written])
        with pytest.raises(InvalidInput, match="ticket"):
            lane.commit(ticket, [written])


def test_a_long_append_has_several_files_and_is_refused_as_a_whole(table: Table, uri: str) -> None:
    table = tuned(table, log_file_bytes=1)

    def batches(last_id: int | None) -> Iterator[pa.RecordBatch]:
        for key, status in ((1, "a"), (2, "b"), (1, "c"), (last_id, "d")):
            row = {"id": pa.array([key], pa.int64()), "status": [status], "ots": [1]}
            yield pa.record_batch(row)

    schema = next(batches(0)).schema
    with table.writer("orders") as lane:
        with pytest.raises(InvalidInput, match="NULL in a key column"):
            lane.append(pa.RecordBatchReader.from_batches(schema, batches(None)))
        assert statuses(table) == {}
        assert open_store(uri).list(Path("log")) == []
        lane.append(pa.RecordBatchReader.from_batches(schema, batches(3)))
    assert len(open_store(uri).list(Path("log"))) == 4
    assert statuses(table) == {1: "c", 2: "b", 3: "d"}


def test_an_empty_reader_is_an_empty_append_and_its_columns_are_checked(table: Table) -> None:
    with table.writer("orders") as lane:
        assert lane.append(pa.RecordBatchReader.from_batches(orders().schema, iter([]))).rows == 0
        with pytest.raises(InvalidInput, match="group 'order' is incomplete"):
            lane.append(pa.RecordBatchReader.from_batches(orders().schema.remove(1), iter([])))


def test_a_closed_writer_writes_nothing(table: Table) -> None:
    lane = table.writer("orders")
    with pytest.raises(InvalidInput, match="not open"):
        lane.append(orders(1))
    with lane:
        lane.append(orders(1))
    with pytest.raises(InvalidInput, match="not open"):
        lane.append(orders(2))
    assert sorted(statuses(table)) == [1]


def test_the_stream_of_a_lane_cannot_change(table: Table) -> None:
    append(table, orders(1))
    with (
        pytest.raises(Conflict, match="belongs to stream 'orders', not to 'payments'"),
        table.writer("payments", "orders"),
    ):
        pass
    with pytest.raises(Conflict, match="only in case"), table.writer("orders", "Orders"):
        pass
    with table.writer("payments", "backfill_2") as lane:
        lane.append(payments(1))


@pytest.mark.parametrize("lane", ["a/b", "..", "-a", "x" * 65, "a b", "é"])
def test_a_lane_name_that_could_leave_its_folder_is_refused(table: Table, lane: str) -> None:
    with pytest.raises(InvalidInput, match="not a lane or stream name"):
        table.writer("orders", lane)


def test_an_unknown_stream_is_not_found(table: Table) -> None:
    with pytest.raises(NotFound, match="no stream 'refunds'") as error, table.writer("refunds"):
        pass
    assert "orders, payments" in error.value.hint


def test_writers_of_different_lanes_do_not_interfere(store: FaultyStore, faulty: Table) -> None:
    """L1 NonBlocking: if every call for one lane fails, the other lane is not affected."""
    with faulty.writer("orders") as first, faulty.writer("payments") as second:
        first.append(orders(1))
        store.faults.append(Fault("put_if_absent", "lanes/orders", times=FOREVER))
        store.faults.append(Fault("get", "lanes/orders", times=FOREVER))
        second.append(payments(1))
        second.append(payments(2))
    store.faults.clear()
    assert sorted(statuses(Table.open(store.uri))) == [1, 2]


def test_files_are_written_before_the_entry_that_refers_to_them(store: FaultyStore, faulty: Table) -> None:
    """S7 NoDangling: log files and sidecars first."""
    with tuned(faulty, inline_index_bytes=10).writer("orders") as lane:
        store.calls.clear()
        lane.append(orders(1, 2, 3))
    written = [path.split("/")[:2] for call, path in store.calls if call in {"put", "put_if_absent", "open_output"}]
    assert sorted(written[:-1]) == [["_weft", "index"], ["log", "orders"]]
    assert written[-1] == ["_weft", "timeline"]

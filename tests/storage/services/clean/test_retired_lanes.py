"""Closed lanes leave the table when all kept snapshots have their rows in slices (PROTOCOL.md, C6; S32)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, contents, new_uri, orders, payments
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_table, encode_table
from weft.storage.core.log.entries import Mark, Plan, Retire, Schema, TableEntry
from weft.storage.core.log.features import RETIRE
from weft.storage.core.names import LaneName, Path, slot_path
from weft.storage.errors import Conflict, InvalidInput, NotFound, SnapshotExpired
from weft.storage.log.commit_log import read_table_lane
from weft.storage.log.schema_entry import add_feature
from weft.storage.read.changes.consumer_cuts import bounded_cut
from weft.storage.services.steps.tasks import Execute, Task, one_by_one
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import write_rows
from weft.storage.write.writer import WriteTicket

NOTHING = dt.timedelta(0)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def table(clock: FakeClock) -> Table:
    uri = new_uri()
    Table.create(uri, SHOP)
    table = other_process(uri, clock)
    with table.writer("orders") as writer:
        writer.append(orders(1))
    return table


def finished(table: Table, lane: str, *ids: int, batch: int = 0, status: str = "new") -> str:
    """A query with one batch, whose lane is closed after it."""
    with table.writer("orders", lane, query_id=lane) as writer:
        writer.append(orders(*ids, status=status), batch=(lane, batch))
    table.close_lane(lane)
    return lane


def retired(table: Table) -> list[str]:
    entries = read_table_lane(Table.open(table.uri).writable().commit_log, 0)
    return [str(lane) for entry in entries if isinstance(entry, Retire) for lane in entry.lanes]


def test_finished_queries_leave_nothing_in_marks_cuts_and_checkpoints(table: Table) -> None:
    lanes = [finished(table, f"query-{number}", number) for number in range(2, 30)]
    table.compact()
    result = table.clean(NOTHING)
    assert list(result.retired) == lanes == retired(table)
    assert list(table.state().lanes) == ["orders"]
    assert RETIRE in table.state().writer_features
    table.mark()
    table.compact()
    with table.writer("orders") as writer:
        writer.append(orders(1, status="later", ts=2))
    table.compact()
    table.mark()
    entries = read_table_lane(table.writable().commit_log, table.state().complete_from)
    after = entries[next(i for i, entry in enumerate(entries) if isinstance(entry, Retire)) :]
    assert {lane for entry in after if isinstance(entry, Mark) for lane in entry.lanes} == {"orders"}
    assert {lane for entry in after if isinstance(entry, Plan) for lane in entry.cut} == {"orders"}
    assert set(table.snapshot().cut.lanes) == {"orders"}
    state = table.state()
    for known in (state.covered, state.folded, state.seen, state.archived, state.rolled_back):
        assert set(known) <= {"orders"}
    assert sorted(row[0] for row in contents(table)) == list(range(1, 30))
    assert table.verify().findings == ()


def test_all_objects_of_a_retired_lane_but_its_entries_are_deleted(table: Table) -> None:
    lane = finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    table.clean(NOTHING)
    left = [path for path, _ in table.env.store.list(Path("")) if f"/{lane}/" in f"/{path}"]
    assert left, "entries stay"
    assert all(path.startswith("_weft/timeline/lanes/") for path in left)


@pytest.mark.parametrize("process", ["this", "one that read the table before"])
def test_a_retired_query_is_never_applied_again(table: Table, process: str) -> None:
    late = table if process == "this" else other_process(table.uri, FakeClock())
    late.state()
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    for batch in (0, 1):
        with pytest.raises(Conflict, match="is closed"):
            finished(late, "query", 2, batch=batch, status="twice")
    assert set(contents(table, ["status"])) == {("new",)}
    assert list(table.state().lanes) == ["orders"]


@pytest.mark.parametrize("end", [Table.close_lane, Table.fence])
def test_who_ends_a_retired_lane_hears_that_it_is_closed(table: Table, end: Callable[[Table, str], int]) -> None:
    """A process that was killed before it knew that it has closed the lane closes it once more."""
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    with pytest.raises(Conflict, match="already closed"):
        end(table, "query")
    with pytest.raises(NotFound, match="no lane 'other'"):
        end(table, "other")


def test_ids_of_lanes_are_not_used_again(table: Table) -> None:
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    with table.batch_writer("orders") as writer:
        writer.append(orders(3))
    assert sorted(lane.lane_id for lane in table.state().lanes.values()) == [1, 3]
    table.close_lane("orders-batches-1")
    table.compact()
    assert table.clean(NOTHING).retired == ("orders-batches-1",)
    with table.batch_writer("orders") as writer:
        writer.append(orders(4))
    assert list(table.state().lanes) == ["orders", "orders-batches-2"]
    assert table.verify().findings == ()


def test_a_lane_stays_while_a_retained_snapshot_has_its_rows_in_the_log(table: Table, clock: FakeClock) -> None:
    finished(table, "query", 2)
    assert table.clean(NOTHING).retired == ()
    clock.time_ms += 1_000
    table.compact()
    assert table.clean(dt.timedelta(days=1)).retired == ()
    clock.time_ms += DAY_MS + 1_000
    assert table.clean(dt.timedelta(days=1)).retired == ("query",)


def test_a_lane_stays_while_a_savepoint_does_not_have_it(table: Table) -> None:
    table.savepoint("before")
    finished(table, "query", 2)
    table.savepoint("in-the-log")
    table.compact()
    table.savepoint("in-slices")
    for name in ("before", "in-the-log"):
        assert table.clean(NOTHING).retired == ()
        table.release_savepoint(name)
    assert table.clean(NOTHING).retired == ("query",)
    assert contents(table, ["id"], as_of="in-slices") == [(1,), (2,)]
    table.restore("in-slices")
    assert contents(table, ["id"]) == [(1,), (2,)]
    assert table.verify().findings == ()


def test_a_lane_stays_while_a_pin_does_not_have_it(table: Table) -> None:
    with table.snapshot().pinned(dt.timedelta(hours=1)):
        finished(table, "query", 2)
        table.compact()
        assert table.clean(NOTHING).retired == ()
    assert table.clean(NOTHING).retired == ("query",)


def test_a_lane_stays_if_a_restore_rolled_back_some_of_it(table: Table) -> None:
    before = str(table.snapshot().cut)
    with table.writer("orders", "query", query_id="query") as writer:
        writer.append(orders(2), batch=("query", 0))
    table.restore(before)
    table.close_lane("query")
    with table.writer("orders") as writer:
        writer.append(orders(3))
    table.compact()
    assert table.clean(NOTHING).retired == ()


def test_the_lane_with_the_largest_promise_stays(table: Table) -> None:
    table.close_lane("orders")
    for number, first in enumerate((5, 9, 7)):
        with table.writer("orders", f"late-{number}", lateness=1) as writer:
            writer.append(orders(number, ts=first))
        table.close_lane(f"late-{number}")
    table.compact()
    before = table.watermarks()["orders"]["order"].value
    assert set(table.clean(NOTHING).retired) == {"orders", "late-0", "late-2"}
    assert table.watermarks()["orders"]["order"].value == before == 8


def test_changes_since_a_cut_from_before(table: Table) -> None:
    finished(table, "query", 2)
    table.compact()
    since = str(table.snapshot().cut)
    assert "query" in since
    table.clean(NOTHING)
    with table.writer("orders") as writer:
        writer.append(orders(1, 3, ts=2))
    for _ in range(2):
        changes = table.changes(since)
        assert sorted(changes.read_all().column("id").to_pylist()) == [1, 3]
        table.compact()
    assert "query" not in str(table.snapshot().cut)
    assert contents(table, ["id"], as_of=since) == [(1,), (2,)]


@pytest.mark.parametrize("archive_chunk", [2, 256])
def test_a_commit_follows_a_cut_from_before(table: Table, archive_chunk: int) -> None:
    table = tuned(table, archive_chunk=archive_chunk)
    finished(table, "query", 2)
    seen = str(table.snapshot().cut)
    table.compact()
    with table.writer("payments") as writer:
        begun = writer.begin()
        assert isinstance(begun, WriteTicket)
        written = [write_rows(begun, payments(2))]
        assert table.clean(NOTHING).retired == ("query",)
        assert writer.commit(begun, written, seen=seen).rows == 1
        with pytest.raises(NotFound, match="no entry 9 of lane 'query'"):
            writer.append(payments(2), seen="cut:1:2:query=9")
    assert contents(table, ["id", "paid"]) == [(1, None), (2, 1.0)]


def test_steps_of_changes_over_a_retirement(table: Table, clock: FakeClock) -> None:
    """A step ends in a state from before the retirement, which has the lane, because a compaction came before it."""
    finished(table, "query", 2)
    table.compact()
    clock.time_ms += 2 * 3600 * 1000
    at = table.snapshot().cut
    for number in range(3, 9):
        with table.writer("orders") as writer:
            writer.append(orders(number))
    table.compact()
    assert table.clean(dt.timedelta(hours=1)).retired == ("query",)
    for number in range(9, 12):
        with table.writer("payments") as writer:
            writer.append(payments(number))
    newest, ids, steps = table.snapshot(), [], 0
    while at != newest.cut:
        until = bounded_cut(table.snapshot(str(at)), newest, 2)
        ids += table.changes(str(at), str(until)).read_all().column("id").to_pylist()
        at, steps = until, steps + 1
    assert (sorted(ids), steps >= 4) == (list(range(3, 12)), True)


def test_restore_to_a_time_from_before(table: Table, clock: FakeClock) -> None:
    finished(table, "query", 2)
    table.compact()
    kept = str(table.snapshot().cut)
    clock.time_ms += 1_000
    table.clean(NOTHING)
    with table.writer("orders") as writer:
        writer.append(orders(3))
    table.compact()
    table.restore(kept)
    assert contents(table, ["id"]) == [(1,), (2,)]
    with table.writer("orders") as writer:
        writer.append(orders(4))
    table.compact()
    assert contents(table, ["id"]) == [(1,), (2,), (4,)]
    assert table.verify().findings == ()


def test_an_undo_since_a_time_before_is_refused(table: Table, clock: FakeClock) -> None:
    clock.time_ms += 1_000
    before = dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)
    clock.time_ms += 1_000
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    clock.time_ms += 1_000
    after = dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)
    clock.time_ms += 1_000
    with table.writer("orders") as writer:
        writer.append(orders(3))
    with pytest.raises(SnapshotExpired, match="not listed any more"):
        table.undo("orders", before)
    table.undo("orders", after)
    assert contents(table, ["id"]) == [(1,), (2,)]


@pytest.mark.parametrize("since", ["cut", "savepoint"])
def test_an_undo_is_refused_if_lanes_since_then_are_retired_meanwhile(
    table: Table, clock: FakeClock, since: str
) -> None:
    """Otherwise it would keep their rows, and say that it has undone everything since then."""
    store = FaultyStore(open_store(table.uri))
    slow = other_process(table.uri, clock, store)
    name = since if since == "savepoint" else str(table.snapshot().cut)
    if since == "savepoint":
        table.savepoint(name)

    def retire_another() -> None:
        if since == "savepoint":
            table.release_savepoint(name)
        finished(table, "query", 2)
        table.compact()
        assert table.clean(NOTHING).retired == ("query",)

    store.faults.append(Fault("put_if_absent", "timeline/table", action=retire_another))
    with pytest.raises(SnapshotExpired, match="no longer kept"):
        slow.undo("orders", name)
    assert contents(table, ["id"]) == [(1,), (2,)]


def test_a_row_of_a_retired_lane_is_explained(table: Table) -> None:
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    assert "is visible" in str(table.explain_row({"id": 2}))


def while_retiring(table: Table) -> Execute:
    """Runs the tasks of a service after another process has retired lanes."""

    def execute(tasks: Iterable[Task[Any]], /) -> Iterator[Any]:
        found = list(tasks)
        assert Table.open(table.uri).clean(NOTHING, abandon_after=None).retired == ("query",)
        return one_by_one(found)

    return execute


@pytest.mark.parametrize("service", [Table.compact, Table.fold])
def test_services_that_began_before_a_retirement(table: Table, service: Callable[..., Any]) -> None:
    finished(table, "query", 2)
    table.compact()
    with table.writer("orders") as writer:
        writer.append(orders(1, 2, 3, status="later", ts=2))
    assert service(table, execute=while_retiring(table)).done
    with table.writer("orders") as writer:
        writer.append(orders(4))
    assert service(table).done
    table.fold()
    for _ in range(2):
        assert contents(table, ["id", "status"]) == [(1, "later"), (2, "later"), (3, "later"), (4, "new")]
        assert table.verify().findings == ()
        table.compact()
    assert set(table.snapshot().cut.lanes) == {"orders"}


def test_a_plan_of_before_keeps_the_lane(table: Table) -> None:
    """Otherwise it would replace slices that have the lane by its own, whose cut looks the same."""

    def clean_meanwhile(tasks: Iterable[Task[Any]], /) -> Iterator[Any]:
        found = list(tasks)
        other = Table.open(table.uri)
        finished(other, "query", 2)
        other.compact()
        assert other.clean(NOTHING, abandon_after=None).retired == ()
        return one_by_one(found)

    table.compact(execute=clean_meanwhile)
    assert contents(table, ["id"]) == [(1,), (2,)]


def test_a_time_before_a_retirement(table: Table, clock: FakeClock) -> None:
    finished(table, "query", 2)
    clock.time_ms += 1_000
    table.compact()
    clock.time_ms += 1_000
    table.mark()
    at = dt.datetime.fromtimestamp(clock.time_ms / 1000, dt.UTC)
    clock.time_ms += 1_000
    assert table.clean(NOTHING).retired == ("query",)
    with table.writer("orders") as writer:
        writer.append(orders(3))
    table.mark()
    assert contents(table, ["id"], as_of=at) == [(1,), (2,)]
    assert table.snapshot(at, settled=True).cut.lanes["query"] > 0


def test_a_clean_closes_queries_that_are_silent(table: Table, clock: FakeClock) -> None:
    lane = f"orders-query-{7:016x}"

    def write(batch: int) -> None:
        with table.writer("orders", lane, query_id="q") as writer:
            writer.append(orders(2 + batch), batch=("q", batch))

    write(0)
    hour = dt.timedelta(hours=1)
    table.clean(NOTHING, close_after=hour)
    write(1)
    clock.time_ms += DAY_MS
    table.clean(NOTHING)
    assert table.state().lanes[LaneName(lane)].closed is None, "only if it is asked for"
    table.clean(NOTHING, close_after=hour)
    assert table.state().lanes[LaneName(lane)].closed is not None
    assert table.state().lanes[LaneName("orders")].closed is None
    with pytest.raises(Conflict, match="is closed"):
        write(1)
    table.compact()
    assert table.clean(NOTHING, close_after=hour).retired == (lane,)
    with pytest.raises(Conflict, match="is closed"):
        write(1)
    assert contents(table, ["id"]) == [(1,), (2,), (3,)]
    with pytest.raises(InvalidInput, match="close_after"):
        table.clean(close_after=NOTHING)


def test_verify_finds_a_lane_that_was_retired_too_early(table: Table) -> None:
    """The lane is closed, and its rows are in the log."""
    finished(table, "query", 2)
    log = table.writable()
    add_feature(log, RETIRE, "closed lanes may be retired")
    end = table.state().lanes[LaneName("query")].closed
    log.publish(lambda state: Retire(**log.header(state), lanes={LaneName("query"): end or 0}))
    assert "S32" in {finding.invariant for finding in Table.open(table.uri).verify().findings}


def test_a_state_does_not_depend_on_the_checkpoint_it_continues_from(table: Table) -> None:
    for number in range(2, 5):
        finished(table, f"query-{number}", number)
        table.compact()
        with table.writer("orders") as writer:
            writer.append(orders(1, status=str(number), ts=number))
        table.fold()
        table.clean(NOTHING)
        table.mark()
    entries = read_table_lane(table.writable().commit_log, 0)
    whole = apply_entries(None, entries)
    for count in range(1, len(entries)):
        state = apply_entries(None, entries[:count])
        assert state is not None
        for begun in (state, decode_table(b"".join(encode_table(state)))):
            assert apply_entries(begun, entries[count:]) == whole


def test_versions_without_the_feature_refuse_the_table(table: Table) -> None:
    finished(table, "query", 2)
    table.compact()
    table.clean(NOTHING)
    entries = read_table_lane(table.writable().commit_log, 0)
    kinds = [entry.kind for entry in entries]
    assert kinds.index("RETIRE") > next(i for i, entry in enumerate(entries) if _requires(entry))


def _requires(entry: TableEntry) -> bool:
    return isinstance(entry, Schema) and RETIRE in entry.reader_features and RETIRE in entry.writer_features


def test_an_erase_reaches_entries_of_retired_lanes(table: Table) -> None:
    finished(table, "query", 2, 7)
    table.compact()
    table.clean(NOTHING)
    with table.writer("orders") as writer:
        writer.append(orders(3))
    result = table.erase([2], expire_snapshots=True)
    assert (result.remains, result.newer, result.redacted) == ((), (), 1)
    assert contents(table, ["id"]) == [(1,), (3,), (7,)]
    assert table.verify().findings == ()


def test_a_ghost_in_an_archived_slot_of_a_retired_lane_is_deleted(clock: FakeClock) -> None:
    uri = new_uri()
    Table.create(uri, SHOP)
    table = tuned(other_process(uri, clock), archive_chunk=2)
    finished(table, "query", 2)
    ghost = slot_path(LaneName("query"), 1)
    entry = table.env.store.get(ghost)
    assert entry is not None
    table.compact()
    assert table.clean(NOTHING).retired == ("query",)
    assert table.env.store.get(ghost) is None, "it is in the archive"
    assert table.env.store.put_if_absent(ghost, entry)
    table.clean(NOTHING)
    assert table.env.store.get(ghost) is None
    with pytest.raises(Conflict, match="is closed"):
        finished(table, "query", 2)
    assert table.verify().findings == ()

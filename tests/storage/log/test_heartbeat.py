"""Heartbeats: operators can distinguish live, closed and dead writers; the protocol does not depend on them."""

from __future__ import annotations

import re
from pathlib import Path as LocalPath

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import ALL, NOW, killed, stored
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from weft import Table
from weft.storage.core.names import HEARTBEATS, Kind, LaneName, Path, heartbeat_path, parse_path
from weft.storage.errors import Fenced, StoreUnavailable
from weft.storage.log.heartbeat import EVERY_MS, SILENT_AFTER_MS, newest_heartbeats
from weft.storage.services.inspect.inspect import Inspection, LaneReport
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

ORDERS = LaneName("orders")


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str, clock: FakeClock) -> Table:
    return Table.create(uri, SHOP, clock=clock)


def beats(uri: str) -> list[str]:
    return [name for name, _ in open_store(uri).list(HEARTBEATS)]


def report(uri: str, clock: FakeClock) -> LaneReport:
    (lane,) = Inspection(uri, clock=clock).lanes()
    return lane


def test_a_writer_sends_heartbeats_until_it_closes(table: Table, uri: str, clock: FakeClock) -> None:
    with table.writer("orders", owner="me") as writer:
        (first,) = beats(uri)
        assert report(uri, clock).writer == "live"
        assert report(uri, clock).heartbeat_at_ms == clock.time_ms
        writer.append(orders(1))
        assert beats(uri) == [first]  # not with every commit
        clock.time_ms += EVERY_MS
        writer.append(orders(2))
        (second,) = beats(uri)
        assert second != first
        clock.time_ms += EVERY_MS
        writer.heartbeat()  # as of a writer that waits for its source
        (third,) = beats(uri)
        assert third not in {first, second}
        clock.time_ms += SILENT_AFTER_MS
        assert report(uri, clock).writer == "live"
        clock.time_ms += 1
        assert report(uri, clock).writer == "silent"
        writer.heartbeat()
        assert report(uri, clock).writer == "live"
    assert beats(uri) == []
    assert (report(uri, clock).writer, report(uri, clock).heartbeat_at_ms) == ("closed", None)
    writer.heartbeat()
    assert beats(uri) == []


def test_the_name_of_a_heartbeat_has_all_its_data(table: Table, uri: str, clock: FakeClock) -> None:
    with table.writer("orders"):
        pass
    with table.writer("orders", owner="me"):
        (name,) = beats(uri)
        parsed = parse_path(Path(f"{HEARTBEATS}/{name}"))
        assert parsed is not None
        assert (parsed.kind, parsed.lane, parsed.epoch, parsed.at_ms) == (Kind.HEARTBEAT, "orders", 2, clock.time_ms)
        data = open_store(uri).get(Path(f"{HEARTBEATS}/{name}"))
        assert data is not None
        assert b'"owner": "me"' in data
        assert b'"host": ' in data


def test_a_clock_that_was_set_back_causes_a_heartbeat(table: Table, uri: str, clock: FakeClock) -> None:
    with table.writer("orders") as writer:
        (first,) = beats(uri)
        clock.time_ms -= 365 * 24 * 3_600_000
        writer.append(orders(1))
        assert len(beats(uri)) == 1
        assert beats(uri) != [first]
        assert report(uri, clock).writer == "live"


def test_a_dead_writer_is_silent_and_its_successor_is_live(table: Table, uri: str, clock: FakeClock) -> None:
    died = table.writer("orders")
    died.__enter__()
    clock.time_ms += SILENT_AFTER_MS + 1
    assert report(uri, clock).writer == "silent"
    with table.writer("orders"):
        assert report(uri, clock).writer == "live"
    assert report(uri, clock).writer == "closed"
    assert len(beats(uri)) == 1  # the heartbeat of the dead writer
    assert table.clean(NOW).deleted["heartbeat"].files == 1
    assert beats(uri) == []


def test_a_fenced_writer_sends_no_heartbeat_and_counts_as_closed(table: Table, uri: str, clock: FakeClock) -> None:
    with table.writer("orders") as writer:
        table.fence("orders")
        assert report(uri, clock).writer == "closed"
        with pytest.raises(Fenced):
            writer.append(orders(1))
        left = beats(uri)
        clock.time_ms += EVERY_MS
        writer.heartbeat()
        assert beats(uri) == left
    assert beats(uri) == []


def test_a_lane_without_a_writer(table: Table, uri: str, clock: FakeClock) -> None:
    store = FaultyStore(open_store(uri))
    store.faults.append(Fault("put_if_absent", "lanes/orders", times=FOREVER, error=PermissionError("killed")))
    with pytest.raises(StoreUnavailable), other_process(uri, clock, store).writer("orders"):
        pass
    assert (report(uri, clock).writer, report(uri, clock).closed) == ("never", False)
    append(table, orders(1))
    table.close_lane("orders")
    assert (report(uri, clock).writer, report(uri, clock).closed) == ("closed", True)


@pytest.mark.parametrize("call", ["put", "delete"])
def test_a_commit_succeeds_if_heartbeats_cannot_be_written(uri: str, clock: FakeClock, call: str) -> None:
    Table.create(uri, SHOP, clock=clock)
    store = FaultyStore(open_store(uri))
    store.faults.append(Fault(call, "_weft/heartbeats", times=FOREVER))
    with other_process(uri, clock, store).writer("orders") as writer:
        for number in range(3):
            clock.time_ms += EVERY_MS
            writer.append(orders(number))
    assert len(contents(Table.open(uri))) == 3


def test_a_failed_heartbeat_is_not_retried_at_once(uri: str, clock: FakeClock) -> None:
    Table.create(uri, SHOP, clock=clock)
    store = FaultyStore(open_store(uri))
    store.faults.append(Fault("put", "_weft/heartbeats", times=FOREVER))
    with other_process(uri, clock, store).writer("orders") as writer:
        for number in range(5):
            writer.append(orders(number))
    assert len([path for call, path in store.calls if call == "put" and "heartbeats" in path]) == 1


def test_the_newest_claim_takes_precedence_over_the_newest_time(uri: str) -> None:
    store: ObjectStore = open_store(uri)
    store.put(heartbeat_path(ORDERS, 2, 500, "a" * 32), b"{}")
    store.put(heartbeat_path(ORDERS, 1, 900, "b" * 32), b"{}")
    store.put(heartbeat_path(ORDERS, 2, 600, "c" * 32), b"{}")
    store.put(Path(f"{HEARTBEATS}/orders/notes.txt"), b"not one")
    newest = newest_heartbeats(store)
    assert (newest[ORDERS].epoch, newest[ORDERS].at_ms) == (2, 600)
    assert list(newest) == ["orders"]


def test_heartbeats_left_by_a_crash_are_cleaned(table: Table, uri: str, clock: FakeClock) -> None:
    with table.writer("orders") as writer:
        open_store(uri).put(heartbeat_path(ORDERS, writer.epoch, clock.time_ms - 7, "a" * 32), b"{}")
        assert table.clean(NOW).deleted["heartbeat"].files == 1
        assert report(uri, clock).writer == "live"


def test_a_closed_writer_leaves_no_heartbeat_in_a_local_folder(tmp_path: LocalPath) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    append(table, orders(1))
    assert stored(table, "_weft/heartbeats") == set()


def test_the_overview_shows_what_keeps_old_files(table: Table, uri: str, clock: FakeClock) -> None:
    append(table, orders(*ALL))
    table.savepoint("release", note="checked")
    with pytest.raises(KeyboardInterrupt):
        table.compact(execute=killed)
    snapshot = table.snapshot()
    with snapshot.pinned():
        found = Inspection(uri, clock=clock).overview()
        assert [(keeper.what, keeper.note) for keeper in found.keepers] == [
            ("savepoint", "checked"),
            ("compaction", ""),
            ("pin", ""),
        ]
        saved, plan, pin = found.keepers
        assert (saved.name, saved.cut) == ("release", str(table.savepoints()[0].cut))
        assert plan.since_ms == clock.time_ms
        assert (pin.cut, pin.since_ms) == (str(snapshot.cut), None)
        assert pin.until_ms is not None
        assert pin.until_ms > clock.time_ms
        assert found.oldest_retained == 1
    table.compact()
    keep = table.clean(NOW, abandon_after=NOW).oldest_retained
    found = Inspection(uri, clock=clock).overview()
    assert (found.oldest_retained, [keeper.what for keeper in found.keepers]) == (keep, ["savepoint"])


def test_the_timeline_describes_every_kind_of_entry(table: Table, uri: str) -> None:
    append(table, orders(*ALL))
    table.savepoint("good", note="why")
    append(table, orders(1, status="bad", ts=2))
    table.fold()
    table.restore("good")
    table.compact()
    table.release_savepoint("good")
    table.clean(NOW)
    table.add_column("order", "extra", "string")
    detail = {entry.kind: entry.detail for entry in reversed(Inspection(uri).timeline(1000))}
    assert detail["SAVEPOINT"].startswith("savepoint good keeps cut:1:2:orders=2: why")
    assert detail["RELEASE"] == "savepoint good is released"
    assert detail["FOLD"].endswith("4 file groups")
    assert detail["INTENT"] == "restore to good begins, for lanes orders"
    assert re.fullmatch(r"completes entry \d+", detail["DONE"])
    assert detail["CLEAN_INTENT"].startswith("snapshots before entry ")
    assert "files deleted" in detail["CLEAN_DONE"]
    assert detail["SCHEMA"].startswith("schema: ")
    assert any("for entry" in entry.detail for entry in Inspection(uri).timeline(1000) if entry.kind == "CLAIM")

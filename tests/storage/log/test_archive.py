"""Old log entries are moved from their slots to archives, and all reads give the same results (S20)."""

from __future__ import annotations

import contextlib
import datetime as dt

import pyarrow as pa
import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import NOW, Killed, MortalStore
from tests.storage.support.damage import Damage, verified, wrong
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, statuses
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.log.archive_codec import Chunks, decode_archive, encode_archive
from weft.storage.core.log.entries import Claim, Entry
from weft.storage.core.log.entry_codec import decode_entry, encode_entry
from weft.storage.core.names import TABLE_LANE, LaneName, Path, archive_path, lane_folder, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, Conflict, CorruptData, Fenced, GapError, InvalidInput, SnapshotExpired
from weft.storage.log.commit_log import CommitLog
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.store.open_store import open_store

ORDERS = LaneName("orders")
SMALL = 4
CHUNKS = Chunks(SMALL)
CHUNKS = Chunks(SMALL)
COMMITS = 20


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, archive_chunk=SMALL, lane_checkpoint_every=3, table_checkpoint_every=3)


def long_table(uri: str | None = None) -> Table:
    """A table with twenty commits of one query, compacted after every fourth."""
    table = Table.create(uri or new_uri(), SHOP)
    with table.writer("orders") as writer:
        for number in range(COMMITS):
            writer.append(orders(*range(8), status=f"s{number}", ts=number), batch=("q", number))
            if number % 4 == 3:
                table.compact()
    return table


def slots(table: Table, lane: str = "orders") -> list[str]:
    return [name for name, _ in open_store(table.uri).list(lane_folder(LaneName(lane)))]


def archives(table: Table) -> list[str]:
    return [name for name, _ in open_store(table.uri).list(Path("_weft/archive"))]


def lane(table: Table, name: str = "orders") -> list[Entry]:
    return CommitLog(Environment(open_store(table.uri), FakeClock())).read_after(LaneName(name), 0)


@pytest.fixture
def table() -> Table:
    return long_table()


@pytest.fixture
def archived(table: Table) -> Table:
    result = table.clean(NOW)
    assert result.archived
    return other_process(table.uri, FakeClock())


def test_old_entries_move_to_archives_and_remain_readable(table: Table) -> None:
    before, table_before, rows = lane(table), lane(table, TABLE_LANE), contents(table)
    objects = len(slots(table)) + len(slots(table, ""))
    result = table.clean(NOW)
    after = other_process(table.uri, FakeClock())
    assert len(slots(after)) + len(slots(after, "")) == objects - result.archived + 3  # CLEAN_INTENT, twice, CLEAN_DONE
    assert result.archives * SMALL == result.archived > COMMITS
    assert {name.split("/")[0] for name in archives(after)} == {"lanes", "table"}
    assert lane(after) == before
    assert lane(after, TABLE_LANE)[: len(table_before)] == table_before
    assert contents(after) == rows
    assert wrong(after) == []


def test_a_writer_goes_on_after_its_last_commit_was_archived() -> None:
    """The slot before a commit is deleted; its entry is in the archive, so the table is still the same (W8)."""
    table, deleted = Table.create(new_uri(), SHOP), 0
    with table.writer("orders") as writer:
        for number in range(COMMITS):
            seq = writer.append(orders(number, status="x", ts=1)).seq
            table.compact()
            table.clean(NOW)
            deleted += seq % SMALL == 0 and str(slot_path(ORDERS, seq)) not in map(str, slots(table))
    assert deleted > 1
    assert sorted(statuses(table)) == list(range(COMMITS))


def test_entries_are_archived_once(archived: Table) -> None:
    before = archives(archived)
    again = archived.clean(NOW)
    assert (again.archived, again.archives, archives(archived)) == (0, 0, before)


def test_a_dry_run_reports_what_would_be_archived(table: Table) -> None:
    before = slots(table)
    would = table.clean(NOW, dry_run=True)
    assert (slots(table), archives(table)) == (before, [])
    done = table.clean(NOW)
    assert (would.archived, would.archives) == (done.archived, done.archives)


def test_entries_needed_by_kept_snapshots_are_not_archived(table: Table) -> None:
    table.savepoint("all")
    append(table, orders(1, status="x", ts=99))
    assert table.clean(dt.timedelta(days=1)).archived == 0


def test_an_early_savepoint_keeps_only_its_own_entries_in_slots() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1, status="first"))
    table.savepoint("early")
    with table.writer("orders") as writer:
        for number in range(COMMITS):
            writer.append(orders(*range(8), status=f"s{number}", ts=number + 2))
    table.compact()
    assert table.clean(NOW).archived
    assert slots(table)[:SMALL] == [f"{seq:020d}.json" for seq in range(1, SMALL + 1)]
    assert not (archived_chunks := [name for name in archives(table) if name.endswith(f"{1:020d}.entries")]), (
        archived_chunks
    )
    assert statuses(other_process(table.uri, FakeClock()), as_of="early") == {1: "first"}


def test_opening_reading_and_writing_do_not_need_archives(archived: Table) -> None:
    store = FaultyStore(open_store(archived.uri))
    fresh = other_process(archived.uri, FakeClock(), store)
    rows = contents(fresh)
    with fresh.writer("orders") as writer:
        writer.append(orders(1, status="next", ts=99), batch=("q", COMMITS))
    asked = [path for call, path in store.calls if call == "get" and "_weft/archive" in path]
    inner = open_store(archived.uri)
    assert asked, "the apparent end of a lane is looked up in archives"
    assert [path for path in asked if inner.get(Path(path)) is not None] == []
    assert len(rows) == 8


def test_as_of_a_recent_time_reads_no_archives(archived: Table) -> None:
    store = FaultyStore(open_store(archived.uri))
    fresh = other_process(archived.uri, FakeClock(), store)
    cut = fresh.snapshot(dt.datetime(2900, 1, 1, tzinfo=dt.UTC)).cut
    inner = open_store(archived.uri)
    asked = [path for call, path in store.calls if call == "get" and "_weft/archive" in path]
    assert [path for path in asked if inner.get(Path(path)) is not None] == []
    assert cut.lanes == fresh.snapshot().cut.lanes


def test_the_timeline_shows_archived_entries(archived: Table) -> None:
    timeline = Inspection(archived.uri).timeline(1_000)
    assert len([entry for entry in timeline if entry.kind == "DATA"]) == COMMITS
    assert any("may be archived up to the table lane 8, orders 20" in entry.detail for entry in timeline)
    assert Inspection(archived.uri).overview().commits == COMMITS + 1
    (report,) = Inspection(archived.uri).lanes()
    assert (report.epoch, report.batch) == (1, COMMITS - 1)


def test_a_query_finds_its_archived_batches(archived: Table) -> None:
    with tuned(archived, recent_commits=1).writer("orders") as writer:
        assert writer.last_batch("q") == COMMITS - 1
        old = writer.append(orders(1), batch=("q", 2))
        assert (old.replayed, old.seq, old.rows) == (True, 4, 8)
        with pytest.raises(GapError):
            writer.append(orders(1), batch=("q", COMMITS + 1))


def test_a_lane_without_checkpoints_is_replayed_from_its_archives(archived: Table) -> None:
    store = open_store(archived.uri)
    store.delete_many([Path(f"_weft/checkpoints/{name}") for name, _ in store.list(Path("_weft/checkpoints"))])
    fresh = other_process(archived.uri, FakeClock())
    assert len(contents(fresh)) == 8
    with fresh.writer("orders") as writer:
        assert writer.last_batch("q") == COMMITS - 1
        assert writer.epoch == 2


def test_no_second_table_is_created_if_the_first_entry_is_archived(archived: Table) -> None:
    assert slots(archived, "")[0] != f"{1:020d}.json"
    with pytest.raises(Conflict, match="there is already a table"):
        Table.create(archived.uri, SHOP)


def test_expired_times_are_still_refused_and_retained_times_found(archived: Table) -> None:
    with pytest.raises(InvalidInput, match="did not exist yet"):
        archived.snapshot(dt.datetime(1971, 1, 1, tzinfo=dt.UTC))
    cut = archived.snapshot(dt.datetime(2900, 1, 1, tzinfo=dt.UTC)).cut
    assert cut.lanes == archived.snapshot().cut.lanes
    with pytest.raises(SnapshotExpired):
        archived.snapshot("cut:1:3:orders=2")


# --- late puts


def test_a_process_with_a_stale_cache_reads_entries_archived_meanwhile() -> None:
    table = Table.create(new_uri(), SHOP)
    append(table, orders(1))
    stale = other_process(table.uri, FakeClock())
    assert stale.snapshot().cut.lanes == {"orders": 2}
    with table.writer("orders") as writer:
        for number in range(COMMITS):
            writer.append(orders(*range(8), status=f"s{number}", ts=number + 2))
            table.compact()
    assert table.clean(NOW).archived
    assert f"{3:020d}.json" not in slots(table)
    assert stale.snapshot().cut == table.snapshot().cut
    assert contents(stale) == contents(table)


def test_a_frozen_writer_is_fenced_even_if_its_slot_was_deleted() -> None:
    table = Table.create(new_uri(), SHOP)
    zombie = other_process(table.uri, FakeClock())
    with zombie.writer("orders") as frozen:
        frozen.append(orders(1, status="old"))
        with table.writer("orders") as writer:
            for number in range(COMMITS):
                writer.append(orders(*range(8), status=f"s{number}", ts=number + 2))
                table.compact()
        assert table.clean(NOW).archived
        before = contents(table)
        with pytest.raises(Fenced):
            frozen.append(orders(1, status="never", ts=1_000))
    assert f"{3:020d}.json" in slots(table), "the put succeeded, because the slot was free"
    assert contents(other_process(table.uri, FakeClock())) == before
    assert "1 slots were written again after they were archived" in str(verified(table))
    assert wrong(table) == []
    assert table.clean(NOW).archived == 1
    assert f"{3:020d}.json" not in slots(table)
    assert lane(table)[2].commit_id == decode_lane_archive(table, 1)[2].commit_id


def decode_lane_archive(table: Table, chunk: int) -> list[Entry]:
    data = open_store(table.uri).get(archive_path(ORDERS, chunk))
    assert data is not None
    first = CHUNKS.first_slot(chunk)
    return [
        decode_entry(content, ORDERS, first + place)
        for place, content in enumerate(decode_archive(data, ORDERS, chunk, CHUNKS).contents())
    ]


def test_a_successful_put_into_an_archived_slot_is_lost(archived: Table) -> None:
    store = open_store(archived.uri)
    log = CommitLog(Environment(store, FakeClock()))
    late = lane(archived)[2].model_copy(update={"commit_id": "late"})
    assert log.publish(late).commit_id == lane(archived)[2].commit_id
    again = CommitLog(Environment(store, FakeClock()))
    assert again.publish(late).commit_id == lane(archived)[2].commit_id, "the object in the slot is not the entry"
    assert again.entry(ORDERS, 3) == lane(archived)[2]


def test_a_put_that_arrives_twice_is_won_once(archived: Table) -> None:
    mine = lane(archived)[2]
    log = CommitLog(Environment(open_store(archived.uri), FakeClock()))
    assert log.publish(mine).commit_id == mine.commit_id


def test_no_answer_about_the_archive_after_a_put_is_retried(archived: Table) -> None:
    store = FaultyStore(open_store(archived.uri))
    head = len(lane(archived))
    last = lane(archived)[-1]
    claim = Claim(
        lane=ORDERS,
        seq=head + 1,
        epoch=last.epoch + 1,
        commit_id="mine",
        prev_id=last.commit_id,
        table_rev=last.table_rev,
        stamp=last.stamp + 1,
        committed_at_ms=last.committed_at_ms,
        owner="me",
        intent=0,
    )
    store.faults.append(Fault("get", "_weft/archive", times=2))
    assert CommitLog(Environment(store, FakeClock())).publish(claim).commit_id == "mine"


@pytest.mark.parametrize("error", [OSError("down"), PermissionError("403")])
def test_a_put_whose_archive_cannot_be_requested_is_unknown(table: Table, error: OSError) -> None:
    inner = open_store(Table.create(new_uri(), SHOP).uri)
    store = FaultyStore(inner)
    store.faults.append(Fault("get", "_weft/archive", times=FOREVER, error=error))
    first = lane(table)[0]
    with pytest.raises(CommitUnknown, match="not known whether"):
        CommitLog(Environment(store, FakeClock())).publish(first)
    assert inner.get(slot_path(ORDERS, 1)) is not None
    assert CommitLog(Environment(inner, FakeClock())).publish(first).commit_id == first.commit_id


def test_a_search_handles_entries_archived_during_it(table: Table) -> None:
    inner = open_store(new_uri())
    first = lane(table)[:SMALL]
    for entry in first:
        inner.put(slot_path(ORDERS, entry.seq), encode_entry(entry))
    store = FaultyStore(inner)

    def archive_all() -> None:
        inner.put(archive_path(ORDERS, 1), encode_archive(ORDERS, 1, [encode_entry(entry) for entry in first], CHUNKS))
        inner.delete_many([slot_path(ORDERS, entry.seq) for entry in first])

    # Of 1, 3 and 7 the last is free, and its chunk is not archived; then the search continues between 3 and 7.
    store.faults.append(Fault("get", slot_path(ORDERS, 7), when="after", action=archive_all))
    assert CommitLog(Environment(store, FakeClock())).head(ORDERS) == SMALL
    assert ("get", slot_path(ORDERS, 4)) in store.calls


# --- crashes


def test_a_clean_can_be_interrupted_at_any_store_call(table: Table) -> None:
    expected, rows = lane(table), contents(table)
    for calls in range(1_000):
        store = MortalStore(open_store(table.uri), dies_at=calls)
        try:
            other_process(table.uri, FakeClock(), store).clean(NOW)
        except Killed:
            after = other_process(table.uri, FakeClock())
            assert lane(after) == expected
            if calls % 10 == 0:
                assert wrong(after, deep=False) == []
        else:
            break
    assert len(slots(table)) < SMALL + 3
    assert lane(table) == expected
    assert contents(other_process(table.uri, FakeClock())) == rows


def test_two_cleaners_at_once(table: Table) -> None:
    expected = lane(table)
    store = FaultyStore(open_store(table.uri))

    def other() -> None:
        other_process(table.uri, FakeClock()).clean(NOW)

    store.faults.append(Fault("put_if_absent", "_weft/archive/lanes", action=other))
    other_process(table.uri, FakeClock(), store).clean(NOW)
    assert lane(table) == expected
    assert wrong(table) == []


def test_a_chunk_that_is_too_large_is_not_archived(table: Table) -> None:
    before = slots(table)
    assert tuned(table, archive_bytes=100).clean(NOW).archived == 0
    assert slots(table) == before


# --- damage


def test_a_damaged_archive_is_reported_and_its_slots_are_kept(table: Table) -> None:
    store = FaultyStore(open_store(table.uri))
    store.faults.append(Fault("delete", "timeline/lanes", times=1_000))
    with pytest.raises(Exception, match="network"):
        other_process(table.uri, FakeClock(), store).clean(NOW)
    before = slots(table)
    path = Damage(table).flip(archive_path(ORDERS, 1))
    with pytest.raises(CorruptData, match=path):
        other_process(table.uri, FakeClock()).clean(NOW)
    assert slots(table)[:SMALL] == before[:SMALL]
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S20", path)]


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_verify_reports_a_damaged_or_missing_archive(archived: Table, how: str) -> None:
    damage = Damage(archived)
    path = archive_path(ORDERS, 2)
    damage.flip(path) if how == "flip" else damage.remove(path)
    found = wrong(archived)
    assert [finding.where for finding in found][:1] == [path]
    assert "from a copy of the store" in found[0].hint
    assert {finding.invariant for finding in found} <= {"S20", "S2"}
    with pytest.raises(CorruptData):
        CommitLog(Environment(open_store(archived.uri), FakeClock())).read_after(ORDERS, 0, COMMITS)


def test_a_damaged_archive_is_not_taken_for_the_end_of_a_lane(archived: Table) -> None:
    Damage(archived).flip(archive_path(ORDERS, 1))
    with pytest.raises(CorruptData, match="archive"):
        CommitLog(Environment(open_store(archived.uri), FakeClock())).head(ORDERS)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("first", [2, SMALL + 1], ids=["in the archive", "at its start"])
@pytest.mark.parametrize("known", [0, SMALL, 2 * SMALL], ids=["nothing", "those before", "also those after"])
def test_an_archived_entry_that_does_not_follow_ends_a_read(archived: Table, first: int, known: int) -> None:
    """However often the archive is requested, the entry stays the same: a read must not wait for another one."""
    store = open_store(archived.uri)
    log = CommitLog(Environment(store, FakeClock()))
    log.read_after(ORDERS, known - SMALL if known > SMALL else 0, known)
    path, chunk = archive_path(ORDERS, CHUNKS.of(first)), CHUNKS.of(first)
    held = decode_archive(store.get(path) or b"", ORDERS, chunk, CHUNKS)
    contents = [held.content(seq) for seq in CHUNKS.slots(chunk)]
    entry = decode_entry(held.content(first), ORDERS, first)
    contents[first - CHUNKS.first_slot(chunk)] = encode_entry(entry.model_copy(update={"prev_id": "0" * 32}))
    store.delete_many([path])
    assert store.put_if_absent(path, encode_archive(ORDERS, chunk, contents, CHUNKS))
    fresh = CommitLog(Environment(store, FakeClock()))
    with pytest.raises(CorruptData, match=f"entry {first} .* does not follow"):
        fresh.read_after(ORDERS, 0)
    with contextlib.suppress(CorruptData):  # the entry may be in the cache as it was
        log.read_after(ORDERS, 0)


def test_an_archive_records_its_lane_and_chunk() -> None:
    contents = [b"a", b"bb", b"", b"c" * 1_000]
    data = encode_archive(ORDERS, 2, contents, CHUNKS)
    assert decode_archive(data, ORDERS, 2, CHUNKS).contents() == contents
    assert decode_archive(data, ORDERS, 2, CHUNKS).content(6) == b"bb"
    for other, chunk in ((LaneName("payments"), 2), (ORDERS, 1)):
        with pytest.raises(CorruptData, match="copied or moved"):
            decode_archive(data, other, chunk, CHUNKS)
    for broken in (b"", data[:-1], data[:70], b"0" + data[1:]):
        if broken != data:
            with pytest.raises(CorruptData, match="damaged"):
                decode_archive(broken, ORDERS, 2, CHUNKS)


def test_a_damaged_entry_keeps_its_chunk_from_being_archived(table: Table) -> None:
    path = slot_path(ORDERS, 2)
    Damage(table).flip(path)
    fresh = other_process(table.uri, FakeClock())
    assert fresh.clean(NOW).archived
    assert path.rpartition("/")[2] in slots(table)
    assert [finding.invariant for finding in wrong(table)] == ["S1"]


def test_versions_from_before_archives_refuse_the_table(archived: Table) -> None:
    """They do not know the member of CLEAN_INTENT that announces archives; it is left out if there are none."""
    intents = [entry for entry in lane(archived, TABLE_LANE) if entry.kind == "CLEAN_INTENT"]
    said = [b'"archived"' in encode_entry(entry) for entry in intents]
    assert said == [False, True]


def test_the_table_lane_replaces_requests_for_many_archives() -> None:
    table = Table.create(new_uri(), SHOP)
    lanes = [f"lane{number}" for number in range(20)]
    for name in lanes:
        with table.writer("orders", lane=name) as writer:
            writer.append(pa.table({"id": [1], "status": ["x"], "ots": [1]}))
    store = FaultyStore(open_store(table.uri))
    fresh = other_process(table.uri, FakeClock(), store)
    fresh.snapshot()
    store.calls.clear()
    assert len(fresh.snapshot().cut.lanes) == len(lanes)
    asked = [path for call, path in store.calls if call == "get"]
    # The next slot of each lane; before and after these the table lane's next slot, and then its archive.
    assert len(asked) == len(lanes) + 3


def test_a_chunk_with_a_missing_entry_is_not_archived(table: Table) -> None:
    path = Damage(table).remove(slot_path(ORDERS, 2))
    fresh = other_process(table.uri, FakeClock())
    fresh.clean(NOW)
    assert {f"{seq:020d}.json" for seq in (1, 3, 4)} <= set(slots(table))
    assert [(finding.invariant, finding.where) for finding in wrong(table)] == [("S2", path)]

"""`publish` ends in won, lost or unknown, whatever the store answers; lanes are contiguous prefixes (S1, S2)."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.entries import Claim
from weft.storage.core.log.entry_codec import decode_entry, encode_entry
from weft.storage.core.names import LaneName, Path, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, CorruptData, StoreRefused
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.publish_entry import PUBLISH_DEADLINE_MS
from weft.storage.services.steps.tasks import Task, one_by_one
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import write_rows
from weft.storage.write.writer import WriteTicket

LANE = LaneName("orders")


def claim(seq: int, commit_id: str, prev_id: str = "") -> Claim:
    return Claim(
        lane=LANE,
        seq=seq,
        epoch=seq,
        commit_id=commit_id,
        prev_id=prev_id,
        table_rev=0,
        stamp=seq,
        committed_at_ms=seq,
        owner="test",
        intent=0,
    )


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(open_store(Table.create(new_uri(), SHOP).uri))


@pytest.fixture
def log(store: FaultyStore, clock: FakeClock) -> CommitLog:
    return CommitLog(Environment(store, clock))


def stored(store: FaultyStore, seq: int = 1) -> str | None:
    data = store.inner.get(slot_path(LANE, seq))
    return None if data is None else decode_entry(data, LANE, seq).commit_id


def test_a_free_slot_is_won(log: CommitLog, store: FaultyStore) -> None:
    assert log.publish(claim(1, "mine")).commit_id == "mine"
    assert stored(store) == "mine"


def test_a_put_into_a_taken_slot_is_lost_and_changes_nothing(
    log: CommitLog, store: FaultyStore, clock: FakeClock
) -> None:
    CommitLog(Environment(store, clock)).publish(claim(1, "theirs"))
    assert log.publish(claim(1, "mine")).commit_id == "theirs"
    assert stored(store) == "theirs"


@pytest.mark.parametrize("times", [1, 3])
def test_a_failed_put_is_retried_with_the_same_bytes(
    log: CommitLog, store: FaultyStore, clock: FakeClock, times: int
) -> None:
    store.faults.append(Fault("put_if_absent", "orders", times=times))
    assert log.publish(claim(1, "mine")).commit_id == "mine"
    assert stored(store) == "mine"
    assert len(clock.slept) == times


def test_a_lost_answer_of_a_successful_put_is_a_win(log: CommitLog, store: FaultyStore) -> None:
    store.faults.append(Fault("put_if_absent", "orders", when="after"))
    assert log.publish(claim(1, "mine")).commit_id == "mine"


def test_a_lost_answer_is_found_even_when_the_read_back_fails_at_first(log: CommitLog, store: FaultyStore) -> None:
    store.faults.append(Fault("put_if_absent", "orders", when="after"))
    store.faults.append(Fault("get", "orders", times=2))
    assert log.publish(claim(1, "mine")).commit_id == "mine"
    assert stored(store) == "mine"


def test_after_a_lost_answer_the_slot_may_have_another_entry(
    log: CommitLog, store: FaultyStore, clock: FakeClock
) -> None:
    other = CommitLog(Environment(store.inner, clock))
    store.faults.append(Fault("put_if_absent", "orders", action=lambda: other.publish(claim(1, "theirs"))))
    store.faults.append(Fault("put_if_absent", "orders"))
    assert log.publish(claim(1, "mine")).commit_id == "theirs"
    assert stored(store) == "theirs"


@pytest.mark.parametrize("when", ["before", "after"])
def test_with_a_dead_store_publish_ends_in_unknown_within_the_deadline(
    log: CommitLog, store: FaultyStore, clock: FakeClock, when: str
) -> None:
    started = clock.now_ms()
    store.faults.append(Fault("put_if_absent", "orders", when=when, times=FOREVER))
    store.faults.append(Fault("get", "orders", times=FOREVER))
    with pytest.raises(CommitUnknown, match="not known whether CLAIM 1 of lane 'orders'") as error:
        log.publish(claim(1, "mine"))
    assert "replay" in error.value.hint
    assert clock.now_ms() - started <= PUBLISH_DEADLINE_MS + 5_000
    # Nothing was removed: a put that arrived remains.
    assert stored(store) == ("mine" if when == "after" else None)
    assert not [call for call in store.calls if call[0] == "delete"]


def test_a_clock_that_runs_backwards_does_not_make_publish_endless(store: FaultyStore) -> None:
    class Backwards(FakeClock):
        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.time_ms -= 1_000

    clock = Backwards()
    store.faults.append(Fault("put_if_absent", "orders", times=FOREVER))
    with pytest.raises(CommitUnknown):
        CommitLog(Environment(store, clock)).publish(claim(1, "mine"))
    assert len(clock.slept) < 10_000


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError("403"), "check the credentials"),
        (PermissionError(errno.EROFS, "read-only"), "the file system is mounted read-only"),
    ],
)
def test_refused_access_is_an_error_at_once(
    log: CommitLog, store: FaultyStore, clock: FakeClock, error: Exception, hint: str
) -> None:
    store.faults.append(Fault("put_if_absent", "orders", times=FOREVER, error=error))
    with pytest.raises(StoreRefused) as raised:
        log.publish(claim(1, "mine"))
    assert str(error) in raised.value.message
    assert hint in raised.value.hint
    assert clock.slept == []


def test_refused_access_after_a_lost_answer_is_unknown(log: CommitLog, store: FaultyStore) -> None:
    store.faults.append(Fault("put_if_absent", "orders", when="after"))
    store.faults.append(Fault("get", "orders", times=FOREVER, error=PermissionError("403")))
    store.faults.append(Fault("put_if_absent", "orders", times=FOREVER, error=PermissionError("403")))
    with pytest.raises(CommitUnknown, match="then no access: 403"):
        log.publish(claim(1, "mine"))
    assert stored(store) == "mine"


def test_a_lost_answer_is_found_even_when_the_sidecar_of_the_entry_is_not_read_at_first(
    store: FaultyStore, clock: FakeClock
) -> None:
    """Otherwise the caller would be told that nothing was published: a rewrite would be run again."""
    table = tuned(other_process(store.uri, clock, store), inline_list_bytes=0)
    append(table, orders(1))
    store.faults.append(Fault("get", "_weft/index/_table", times=2))

    def lose_the_answer(tasks: Iterable[Task[Any]], /) -> Iterator[Any]:
        store.faults.append(Fault("put_if_absent", "timeline/table", when="after"))
        yield from one_by_one(tasks)

    assert table.compact(execute=lose_the_answer).done
    assert len(table.state().slices) == 1


def test_a_table_lane_that_is_refused_after_a_lost_answer_is_no_refusal(store: FaultyStore, clock: FakeClock) -> None:
    """Archives are requested after the table lane was read, which has errors of its own."""
    table = tuned(other_process(store.uri, clock, store), archive_single_requests=0)
    with table.batch_writer("orders") as writer:
        store.faults.append(Fault("put_if_absent", "timeline/lanes", when="after"))
        begun = writer.begin()
        assert isinstance(begun, WriteTicket)
        written = [write_rows(begun, orders(1))]
        store.faults.append(Fault("get", "timeline/table", error=PermissionError("403")))
        assert writer.commit(begun, written).rows == 1
    assert contents(table, ["id"]) == [(1,)]


def test_a_lane_is_read_up_to_its_first_free_slot(log: CommitLog, store: FaultyStore) -> None:
    for seq in (1, 2, 4):
        store.put_if_absent(
            slot_path(LANE, seq), encode_entry(claim(seq, f"id{seq}", f"id{seq - 1}" if seq > 1 else ""))
        )
    assert [entry.seq for entry in log.read_after(LANE, 0)] == [1, 2]
    assert log.head(LANE) == 2
    with pytest.raises(CorruptData, match="entry 3 of lane 'orders' is missing"):
        log.read_after(LANE, 0, until=4)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 33])
def test_the_head_is_found_from_any_known_prefix(log: CommitLog, store: FaultyStore, length: int) -> None:
    for seq in range(1, length + 1):
        store.put_if_absent(slot_path(LANE, seq), encode_entry(claim(seq, f"id{seq}")))
    assert {log.head(LANE, known) for known in range(length + 1)} == {length}


def test_an_entry_that_does_not_follow_the_one_before_is_refused(log: CommitLog, store: FaultyStore) -> None:
    store.put_if_absent(slot_path(LANE, 1), encode_entry(claim(1, "id1")))
    store.put_if_absent(slot_path(LANE, 2), encode_entry(claim(2, "id2", "somebody else")))
    with pytest.raises(CorruptData, match="does not follow entry 1"):
        log.read_after(LANE, 0)


def test_an_entry_in_the_wrong_slot_is_refused(log: CommitLog, store: FaultyStore) -> None:
    store.put(Path(slot_path(LANE, 1)), encode_entry(claim(2, "id2")))
    with pytest.raises(CorruptData, match="copied or moved"):
        log.entry(LANE, 1)


def test_cache_entries_can_be_dropped_while_other_threads_read(log: CommitLog, store: FaultyStore) -> None:
    other = LaneName("payments")
    for seq in range(1, 1_001):
        store.put_if_absent(slot_path(LANE, seq), encode_entry(claim(seq, f"id{seq}")))
        store.put_if_absent(
            slot_path(other, seq), encode_entry(claim(seq, f"id{seq}").model_copy(update={"lane": other}))
        )
    for seq in range(1, 1_001):
        log.entry(LANE, seq)

    def drop() -> None:
        for seq in range(1, 1_001):
            log.forget_before(LANE, seq)

    def read() -> None:
        for seq in range(1, 1_001):
            assert log.entry(other, seq) is not None
            log.forget_before(other, seq - 5)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work) for work in (drop, read, drop, read)]:
                future.result()
    finally:
        sys.setswitchinterval(before)


def fill(store: ObjectStore, lane: LaneName, length: int) -> None:
    for seq in range(1, length + 1):
        entry = claim(seq, f"{lane}{seq}", f"{lane}{seq - 1}" if seq > 1 else "")
        store.put_if_absent(slot_path(lane, seq), encode_entry(entry.model_copy(update={"lane": lane})))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
def test_a_lane_is_read_to_its_end_in_parts(store: FaultyStore, length: int) -> None:
    log = CommitLog(Environment(store).tuned(read_part_entries=4))
    fill(store, LANE, length)
    parts = [[entry.seq for entry in part] for part in log.read_on(LANE, 0)]
    assert [seq for part in parts for seq in part] == list(range(1, length + 1))
    assert all(0 < len(part) <= 4 for part in parts)


class CountingStore(FaultyStore):
    """Counts round trips."""

    trips = 0

    def get(self, path: Path) -> bytes | None:
        self.trips += 1
        return self.inner.get(path)

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        self.trips += 1
        return self.inner.get_many(paths)


def test_several_lanes_are_read_and_searched_in_common_rounds(clock: FakeClock) -> None:
    store = CountingStore(open_store(new_uri()))
    lengths = {LaneName(f"lane{number}"): 100 + number for number in range(8)}
    for lane, length in lengths.items():
        fill(store, lane, length)
    log = CommitLog(Environment(store, clock))
    tails = log.read_tails(dict.fromkeys(lengths, (0, None)))
    assert {lane: len(tail) for lane, tail in tails.items()} == lengths
    assert store.trips <= 6  # windows of 1, 2, 10, 40 and 64 slots, and whether their ends are archived
    assert {lane: log.read_tails({lane: (90, 95)})[lane][-1].seq for lane in lengths} == dict.fromkeys(lengths, 95)
    assert store.trips <= 6
    store.trips = 0
    assert log.read_tails(dict.fromkeys(lengths, (0, None))) == tails
    assert store.trips == 2  # only the next slot and its archive are requested
    store.trips = 0
    fresh = CommitLog(Environment(store, clock))
    assert fresh.last_where(dict.fromkeys(lengths, (0, None))) == lengths
    assert store.trips <= 7
    held = fresh.last_where({lane: (0, length) for lane, length in lengths.items()}, lambda entry: entry.stamp <= 37)
    assert held == dict.fromkeys(lengths, 37)

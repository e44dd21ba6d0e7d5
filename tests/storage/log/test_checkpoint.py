"""Checkpoints only save reading: a checkpoint plus later entries equals the replay, and an unusable one is not used."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.damage import resealed
from tests.storage.support.history import STEPS, History
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_lane, decode_table, encode_lane, encode_table, state_json
from weft.storage.core.log.cut import Span, in_spans
from weft.storage.core.log.entries import lane_entries
from weft.storage.core.log.lane_state import LaneState
from weft.storage.core.log.sealed import seal
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import TABLE_LANE, LaneName, Path, checkpoint_folder, checkpoint_path, slot_path
from weft.storage.environment import Environment
from weft.storage.log import checkpoint_store
from weft.storage.log.checkpoint_store import Checkpoints, agree_up_to
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.services.verify.findings import Severity
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

ORDERS = LaneName("orders")
STATE_ONLY = 80
"""Bytes at the end of a checkpoint with its last line: the state is read next, and its slices are not."""


@pytest.fixture(autouse=True, params=[1 << 16, STATE_ONLY], ids=["read whole", "slices are not read"])
def often(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, table_checkpoint_every=3, lane_checkpoint_every=3, checkpoint_end_bytes=request.param)


def saved(store: ObjectStore, lane: LaneName) -> dict[Path, bytes]:
    folder = checkpoint_folder(lane)
    found = {Path(f"{folder}/{name}"): store.get(Path(f"{folder}/{name}")) for name, _ in store.list(folder)}
    return {path: data for path, data in found.items() if data is not None}


def table_states(store: ObjectStore) -> list[TableState]:
    """The states of all prefixes, shortest first, by replay."""
    found: list[TableState] = []
    for entry in read_table_lane(CommitLog(Environment(store, FakeClock())), 0):
        state = apply_entries(found[-1] if found else None, [entry])
        assert state is not None
        found.append(state)
    return found


def lane_state(store: ObjectStore, lane: LaneName, rolled_back: tuple[Span, ...], head: int | None = None) -> LaneState:
    """A lane's state by replay."""
    state = LaneState(rolled_back=rolled_back)
    for entry in lane_entries(CommitLog(Environment(store, FakeClock())).read_after(lane, 0, head)):
        state.add(entry)
    return state


@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=20))
def test_a_checkpoint_plus_later_entries_equals_the_replay(steps: list[str]) -> None:
    history = History()
    for step in steps:
        history.run(step)
    store = open_store(history.table.uri)
    states = table_states(store)
    entries = read_table_lane(CommitLog(Environment(store, FakeClock())), 0)
    for state in states:
        read = decode_table(b"".join(encode_table(state)))
        assert read == state
        assert apply_entries(read, entries[state.head :]) == states[-1]
    for data in saved(store, TABLE_LANE).values():
        read = decode_table(data)
        assert read is not None
        assert read == states[read.head - 1]
    assert history.table.state() == Table.open(history.table.uri).state() == states[-1]
    for lane in states[-1].lanes:
        for data in saved(store, lane).values():
            made = decode_lane(data)
            assert made is not None
            assert made == lane_state(store, lane, made.rolled_back, made.head)
        # For any rolled-back spans: a checkpoint that is found was made with the same spans; there may be none.
        for rolled_back in {state.rolled_back.get(lane, ()) for state in states}:
            found = Checkpoints(Environment(store)).newest_lane(
                CommitLog(Environment(store, FakeClock())), lane, rolled_back
            )
            if found is not None:
                assert found == lane_state(store, lane, rolled_back, found.head)
                for entry in lane_entries(CommitLog(Environment(store, FakeClock())).read_after(lane, found.head)):
                    found.add(entry)
                assert found == lane_state(store, lane, rolled_back)


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3)


@given(spans, spans, st.integers(0, 12))
def test_rolled_back_spans_agree_up_to_the_first_difference(first: list[Span], second: list[Span], head: int) -> None:
    differs = [seq for seq in range(1, head + 1) if in_spans(first, seq) != in_spans(second, seq)]
    assert agree_up_to(first, second, head) == (differs[0] - 1 if differs else head)


@pytest.fixture
def table() -> Table:
    """A history with checkpoints of both kinds, a restore in the middle, and a few entries after each checkpoint."""
    table = Table.create(new_uri(), SHOP)
    for number in range(4):
        _batch(table, number)
    table.savepoint("middle")
    for number in range(4, 9):
        _batch(table, number)
    table.restore("middle")
    for number in range(4, 6):
        _batch(table, number)
    table.compact()
    append(table, payments(1), "payments")
    assert saved(open_store(table.uri), TABLE_LANE)
    assert saved(open_store(table.uri), ORDERS)
    return table


def _batch(table: Table, number: int) -> None:
    with table.writer("orders") as writer:
        writer.append(orders(number), batch=("q", number))


DAMAGES = {
    "damaged": lambda data: data[:-9] + b"x" + data[-8:],
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "of another shape": lambda data: resealed(data, surprise=1),
    "of an earlier version": lambda data: resealed(data, version=1),
    "of a later version": lambda data: resealed(data, version=4),
    "of another state": lambda data: resealed(data, fields=["head", "head_id"]),
    "of another log": lambda data: resealed(data, head_id="0" * 32),
    "of another head": lambda data: resealed(data, head=1),
}


def test_a_table_with_checkpoints_of_version_2_is_read_by_its_log(table: Table) -> None:
    """Development versions wrote them: they have the form of a writer's lane, with the slices in their state."""
    store = open_store(table.uri)
    wanted = table_states(store)[-1]
    head = json.loads(state_json(b"".join(encode_table(wanted))) or b"")
    del head["parts"], head["reached"]
    head["version"], head["state"]["slices"] = 2, [made.model_dump() for made in wanted.slices.values()]
    checkpoint = seal(json.dumps(head, separators=(",", ":")).encode())
    for path in saved(store, TABLE_LANE):
        store.delete(path)
    path = checkpoint_path(TABLE_LANE, wanted.head, "a" * 32)
    store.put(path, checkpoint)
    assert Checkpoints(Environment(store)).newest_table(CommitLog(Environment(store, FakeClock()))) is None
    opened = Table.open(table.uri)
    assert opened.state() == wanted
    findings = opened.verify().findings
    assert {finding.severity for finding in findings} == {Severity.INFO}
    assert path in {finding.where for finding in findings}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_cannot_be_trusted_is_not_used(table: Table, damage: str) -> None:
    store = open_store(table.uri)
    wanted = (table.state(), contents(table), lane_state(store, ORDERS, table.state().rolled_back[ORDERS]))
    for lane in (TABLE_LANE, ORDERS):
        for path, data in saved(store, lane).items():
            store.delete(path)
            store.put(path, DAMAGES[damage](data))
    log = CommitLog(Environment(store, FakeClock()))
    assert Checkpoints(Environment(store)).newest_table(log) is None
    assert Checkpoints(Environment(store)).newest_lane(log, ORDERS, table.state().rolled_back[ORDERS]) is None
    fresh = other_process(table.uri, FakeClock())
    assert (fresh.state(), contents(fresh)) == wanted[:2]
    _batch(fresh, 6)
    with fresh.writer("orders") as writer:
        assert writer.last_batch("q") == 6


def test_no_byte_of_a_checkpoint_can_change_unnoticed(table: Table) -> None:
    data = b"".join(encode_table(table.state()))
    assert decode_table(data) == table.state()
    for place in range(len(data)):
        assert decode_table(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None, place
        assert decode_table(data[:place]) is None


@pytest.mark.parametrize(
    "change", [{"features": ["merge-latest", "merge-magic"]}, {"table_schema": {}}, {"table_schema": {"columns": 1}}]
)
def test_a_checkpoint_of_a_newer_version_is_not_used(table: Table, change: dict[str, object]) -> None:
    """This version may not know features that the writer of the checkpoint knew: the log says which are required."""
    store = open_store(table.uri)
    for path, data in saved(store, TABLE_LANE).items():
        store.delete(path)
        store.put(path, resealed(data, **change))
    assert Checkpoints(Environment(store)).newest_table(CommitLog(Environment(store, FakeClock()))) is None
    assert Table.open(table.uri).state() == table_states(store)[-1]


def test_a_checkpoint_of_a_head_that_does_not_exist_yet_is_not_used(table: Table) -> None:
    store = open_store(table.uri)
    path, data = max(saved(store, TABLE_LANE).items())
    store.put(checkpoint_path(TABLE_LANE, 10_000, "f" * 32), resealed(data, head=10_000))
    store.put(Path(f"{checkpoint_folder(TABLE_LANE)}/README"), b"what is this?")
    calls = FaultyStore(store)
    assert other_process(table.uri, FakeClock(), calls).state() == table.state()
    assert path in {path for _, path in calls.calls}
    assert ("get", slot_path(TABLE_LANE, 1)) not in calls.calls


def test_an_older_checkpoint_is_used_if_newer_ones_precede_a_restore(table: Table) -> None:
    """All checkpoints after the entries that a restore kept are useless, however many there are."""
    for _ in range(checkpoint_store.MAX_TRIES + 1):
        for number in range(4, 12):
            _batch(table, number)
        table.restore("middle")
    store = open_store(table.uri)
    rolled_back = table.state().rolled_back[ORDERS]
    heads = sorted(state.head for data in saved(store, ORDERS).values() if (state := decode_lane(data)))
    kept = max(head for head in heads if not in_spans(rolled_back, head))
    assert len([head for head in heads if head > kept]) > checkpoint_store.MAX_TRIES
    found = Checkpoints(Environment(store)).newest_lane(CommitLog(Environment(store, FakeClock())), ORDERS, rolled_back)
    assert found is not None
    assert found == lane_state(store, ORDERS, rolled_back, kept)


def test_a_reader_never_writes(table: Table) -> None:
    store = FaultyStore(open_store(table.uri))
    store.faults = [Fault(call, "", times=FOREVER) for call in ("put", "put_if_absent", "open_output", "delete")]
    for path in saved(store, TABLE_LANE):
        store.inner.delete(path)  # so that writing one is due
    reader = other_process(table.uri, FakeClock(), store)
    assert contents(reader) == contents(table)
    assert not {call for call, _ in store.calls} & {"put", "put_if_absent", "open_output", "delete"}


@pytest.mark.parametrize("call", ["list", "put"])
def test_a_checkpoint_that_cannot_be_written_changes_nothing(table: Table, call: str) -> None:
    store = FaultyStore(open_store(table.uri))
    writer = other_process(table.uri, FakeClock(), store)
    with writer.writer("orders") as open_writer:
        store.faults.append(Fault(call, "checkpoints/", times=FOREVER))
        for number in range(6, 12):
            assert open_writer.append(orders(number), batch=("q", number)).rows == 1
    store.faults.clear()
    store.faults.append(Fault(call, "checkpoints/table", times=FOREVER))
    before = len(saved(store.inner, TABLE_LANE))
    writer_state = table.savepoint("one"), table.savepoint("two")
    assert [made.name for made in writer_state] == ["one", "two"]
    assert len(saved(store.inner, TABLE_LANE)) >= before


def test_a_published_entry_remains_if_the_checkpoint_after_it_fails(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the compaction treated the error as a failure of its BASE, it would delete the files that the BASE names."""
    tune(monkeypatch, table_checkpoint_every=1)
    table = tuned(table, table_checkpoint_every=1)
    append(table, orders(1, status="newer", ts=5))
    wanted = contents(table)
    store = FaultyStore(open_store(table.uri))
    compactor = other_process(table.uri, FakeClock(), store)
    compactor.state()
    head = table.state().head
    # PLAN and BASE are published; then the read of the slot after BASE fails.
    store.faults.append(Fault("get", f"timeline/table/{head + 3:020d}.json", times=FOREVER))
    assert compactor.compact().done
    assert contents(table) == wanted
    assert contents(Table.open(table.uri)) == wanted


def test_only_one_of_many_processes_writes_a_checkpoint(table: Table) -> None:
    store = open_store(table.uri)
    processes = [other_process(table.uri, FakeClock()) for _ in range(4)]
    for process in processes:
        process.state()
    before = len(saved(store, TABLE_LANE))
    for number in range(12):
        processes[number % 4].savepoint(f"s{number}")
    assert 12 // 3 - 1 <= len(saved(store, TABLE_LANE)) - before <= 12 // 3 + 1


def test_a_claim_reads_only_entries_after_the_checkpoint(table: Table) -> None:
    for number in range(6, 20):
        _batch(table, number)
    store = FaultyStore(open_store(table.uri))
    with other_process(table.uri, FakeClock(), store).writer("orders") as writer:
        assert writer.last_batch("q") == 19
    assert ("get", slot_path(ORDERS, 1)) not in store.calls


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1 << 80, "é\x00", None, [1, {"a": [None, 2.5]}]])
def test_recorded_source_positions_survive_a_checkpoint(value: object) -> None:
    state = LaneState(source={"offset": value})
    read = decode_lane(encode_lane(state))
    assert read is not None
    assert repr(read.source) == repr(state.source)

"""Slices stay in the stored checkpoint until they are needed. Whatever becomes of it, they are those of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faulty_store import FOREVER, FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, new_uri, orders
from tests.tuning import tune, tuned
from weft import Table
from weft.storage.core.log import newest_slices
from weft.storage.core.log.checkpoint_codec import decode_table
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import TABLE_LANE, Path, checkpoint_folder, slot_path
from weft.storage.errors import CorruptData, StoreUnavailable
from weft.storage.log.checkpoint_store import list_checkpoints
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

PLACE = 40  # a byte of the first part
GROUPS = 16
FOLDER = checkpoint_folder(TABLE_LANE)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a table with very many file groups: checkpoints are not read whole, and have several parts."""
    monkeypatch.setattr(newest_slices, "PART_SLICES", 2)
    tune(monkeypatch, checkpoint_end_bytes=80)


@pytest.fixture
def table() -> Table:
    """16 file groups in 8 parts of the newest checkpoint, and of an older one with older slices."""
    table = Table.create(new_uri(), {**SHOP, "buckets": GROUPS})
    for ts in (1, 2):
        append(table, orders(*range(200), ts=ts))
        table.compact()
        table._table_log.save_checkpoint()
    return table


def checkpoints(store: ObjectStore) -> list[Path]:
    """Newest first."""
    return [path for _, path, _ in list_checkpoints(store, TABLE_LANE)]


def opened(table: Table) -> tuple[FaultyStore, Table]:
    """Another process, which has read nothing yet."""
    store = FaultyStore(open_store(table.uri))
    return store, other_process(table.uri, FakeClock(), store)


def reads(store: FaultyStore) -> list[str]:
    """The checkpoints that were read, once for each request."""
    return [path for call, path in store.calls if call in {"get", "open_input"} and path.startswith(FOLDER)]


def in_memory(state: TableState) -> int:
    return sum(part.packed is not None for part in state.slices.parts)


def changed(store: ObjectStore, path: Path, change: Callable[[bytes], bytes]) -> None:
    data = store.get(path)
    assert data is not None
    store.put(path, change(data))


def flipped(data: bytes) -> bytes:
    return data[:PLACE] + bytes([data[PLACE] ^ 1]) + data[PLACE + 1 :]


def test_a_writer_reads_no_slices(table: Table) -> None:
    store, process = opened(table)
    with process.writer("orders") as writer:
        writer.append(orders(1, ts=3))
    state = process._table_log.refresh()
    assert len(state.slices.parts) == GROUPS // 2
    assert in_memory(state) == 0
    assert set(reads(store)) == {checkpoints(store)[0]}


def test_a_look_up_reads_one_part(table: Table) -> None:
    store, process = opened(table)
    state = process.state()
    before = len(reads(store))
    assert state.slices.find(FileGroup("", 4, 9)) is not None
    assert state.slices.find(FileGroup("", 4, 8)) is not None
    assert (in_memory(state), len(reads(store)) - before) == (1, 1)


def test_all_parts_are_read_at_once(table: Table) -> None:
    store, process = opened(table)
    state = process.state()
    before = len(reads(store))
    assert len(list(state.slices)) == GROUPS
    assert (in_memory(state), len(reads(store)) - before) == (GROUPS // 2, 1)


def of_the_older(store: ObjectStore) -> None:
    """The bytes of another checkpoint, of the same length, under the name of the newest."""
    newest, older = (store.get(path) for path in checkpoints(store)[:2])
    assert newest is not None
    assert older is not None
    assert newest[:PLACE] != older[:PLACE]
    store.put(checkpoints(store)[0], (older + newest[len(older) :])[: len(newest)])


LOSSES: dict[str, Callable[[ObjectStore], Any]] = {
    "deleted": lambda store: store.delete(checkpoints(store)[0]),
    "all deleted": lambda store: store.delete_many(checkpoints(store)),
    "cut off": lambda store: changed(store, checkpoints(store)[0], lambda data: data[:PLACE]),
    "damaged": lambda store: changed(store, checkpoints(store)[0], flipped),
    "all damaged": lambda store: [changed(store, path, flipped) for path in checkpoints(store)],
    "of another checkpoint": of_the_older,
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("later", [False, True], ids=["newest", "later entries"])
def test_slices_of_a_lost_checkpoint_are_those_of_the_log(table: Table, loss: str, *, later: bool) -> None:
    expected = dict(table.state().slices)
    _, process = opened(table)
    state = process.state()
    if later:
        append(table, orders(*range(200), ts=3))
        table.compact(lambda each: each.group.bucket in {3, 4})
        append(table, orders(*range(200), ts=4))
        table.fold()
        expected = dict(table.state().slices)
        state = process.state()
    assert in_memory(state) == 0
    LOSSES[loss](open_store(table.uri))
    assert state.slices[FileGroup("", 4, 1)] == expected[FileGroup("", 4, 1)]
    assert dict(state.slices) == expected
    assert opened(table)[1].state() == table.state()


def test_an_outage_is_raised_and_changes_nothing(table: Table) -> None:
    store, process = opened(table)
    state = process.state()
    store.faults = [Fault("open_input", FOLDER, times=2)]
    with pytest.raises(StoreUnavailable):
        state.slices.find(FileGroup("", 4, 9))
    with pytest.raises(StoreUnavailable):
        list(state.slices)
    assert in_memory(state) == 0
    assert state == table.state()


def test_an_outage_of_the_replay_is_raised_and_changes_nothing(table: Table) -> None:
    store, process = opened(table)
    state = process.state()
    LOSSES["deleted"](store.inner)
    store.faults = [Fault("get", "timeline/table")]
    with pytest.raises(StoreUnavailable):
        list(state.slices)
    assert state == table.state()


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("slot", [1, 2, 5])
def test_an_entry_that_the_replay_lacks_is_an_error(table: Table, slot: int, damage: str) -> None:
    """The slices of a shorter prefix would be wrong."""
    store, process = opened(table)
    state = process.state()
    LOSSES["all damaged"](store.inner)
    path = slot_path(TABLE_LANE, slot)
    if damage == "missing":
        store.inner.delete(path)
    else:
        changed(store.inner, path, flipped)
    with pytest.raises(CorruptData, match=f"entry {slot} of the table lane"):
        list(state.slices)


def test_a_checkpoint_is_written_without_slices_in_memory(table: Table) -> None:
    store, process = opened(table)
    state = process.state()
    append(table, orders(*range(200), ts=3))
    table.compact(lambda each: each.group.bucket in {3, 4})
    process.state()
    process._table_log.save_checkpoint()
    assert in_memory(state) == 0
    assert [path for call, path in store.calls if call == "open_output"] == checkpoints(store)[:1]
    older, newest = (store.inner.get(path) for path in (checkpoints(store)[1], checkpoints(store)[0]))
    assert older is not None
    assert newest is not None
    assert decode_table(newest) == table.state()
    stored = [[part.packed for part in made.slices.parts] for data in (older, newest) if (made := decode_table(data))]
    assert [before == after for before, after in zip(*stored, strict=True)] == [n not in (1, 2) for n in range(8)]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_checkpoint_that_is_written_from_a_lost_one_is_right(table: Table, loss: str) -> None:
    store, process = opened(table)
    process.state()
    LOSSES[loss](store.inner)
    before = checkpoints(store)
    process._table_log.save_checkpoint()
    (written,) = {*checkpoints(store)} - {*before}
    data = store.inner.get(written)
    assert data is not None
    assert decode_table(data) == table.state()


def test_a_checkpoint_is_not_left_half_written_by_an_outage(table: Table) -> None:
    store, process = opened(table)
    process.state()
    before = checkpoints(store)
    store.faults = [Fault("open_input", FOLDER, times=FOREVER)]
    process._table_log.checkpoints.save_table(process._table_log._state, always=True)
    assert checkpoints(store) == before


def test_a_process_begins_again_from_a_newer_checkpoint(table: Table) -> None:
    """So the slices that it has not read are those of a checkpoint that is not deleted yet."""
    table = tuned(table, table_checkpoint_every=8)
    store = FaultyStore(open_store(table.uri))
    process = tuned(other_process(table.uri, FakeClock(), store), table_checkpoint_every=8)
    state = process.state()
    first = checkpoints(store)[0]
    for number in range(12):
        table.savepoint(f"s{number}")
        state = process.state()
    assert checkpoints(store)[0] != first
    store.inner.delete(first)
    store.calls.clear()
    assert state == table.state()
    assert reads(store) == [checkpoints(store)[0]]
    assert [path for call, path in store.calls if "timeline" in path] == []

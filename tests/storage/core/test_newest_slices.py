"""The newest slices, most of them packed: the state is that of a replay, and contradictions are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FakeClock
from tests.storage.support.history import STEPS, History
from tests.storage.support.shop import SHOP, append, new_uri, orders
from weft import Table
from weft.storage.core.log import cut, newest_slices
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_table, encode_table
from weft.storage.core.log.entries import Base, Fold, TableEntry
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.slice_parts import SlicePart
from weft.storage.core.log.table_state import TableState
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.store.open_store import open_store

SPLITS = {f"split {buckets}": buckets for buckets in (1, 4, 8)}


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Parts of two or three file groups, so that each table has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_slices, "PART_SLICES", 2)
        yield


def entries_of(table: Table) -> list[TableEntry]:
    return list(read_table_lane(CommitLog(Environment(open_store(table.uri), FakeClock())), 0))


def packed(state: TableState | None) -> TableState:
    """The state as another process has it that reads it from a checkpoint."""
    assert state is not None
    made = decode_table(b"".join(encode_table(state)))
    assert made is not None
    return made


def unpacked_parts(state: TableState) -> int:
    return sum(part.is_unpacked for part in state.slices.parts)


def highest(state: TableState) -> cut.Seqs:
    return {lane: seq for lane, seq in reduce(cut.highest, state.reached(), {}).items() if seq}


@given(st.lists(st.sampled_from([*STEPS, *SPLITS]), min_size=4, max_size=20), st.sets(st.integers(1, 40)))
def test_a_packed_state_is_that_of_the_replay(steps: list[str], packed_at: set[int]) -> None:
    history = History()
    for step in steps:
        if step in SPLITS:
            history.table.split(SPLITS[step])
        else:
            history.run(step)
    replayed: TableState | None = None
    lazy: TableState | None = None
    for entry in entries_of(history.table):
        replayed, lazy = apply_entries(replayed, [entry]), apply_entries(lazy, [entry])
        if entry.seq in packed_at:
            lazy = packed(lazy)
        assert replayed is not None
        assert lazy is not None
        assert highest(lazy) == highest(replayed)
        assert lazy.levels == replayed.levels
    assert lazy == replayed


@pytest.fixture
def table() -> Table:
    """16 file groups, compacted."""
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(200)))
    table.compact()
    return table


def changed(table: Table, *buckets: int) -> Base:
    """The BASE of a compaction of some file groups."""
    append(table, orders(*range(200), ts=2))
    table.compact(lambda each: each.group.bucket in buckets)
    newest = entries_of(table)[-1]
    assert isinstance(newest, Base)
    return newest


def test_what_is_not_asked_for_stays_packed(table: Table) -> None:
    state = packed(table.state())
    assert len(state.slices.parts) == 8
    append(table, orders(*range(200), ts=2))
    table.fold()
    changed(table, 3, 4)
    later = apply_entries(state, entries_of(table)[state.head :])
    assert later is not None
    assert later.readable_at(table.snapshot().cut.lanes)
    assert unpacked_parts(later) == 0
    assert later.slices.find(FileGroup("", 4, 9)) is not None
    assert unpacked_parts(later) == 1
    assert later == table.state()


def test_a_checkpoint_packs_only_parts_with_newer_slices(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    state = packed(table.state())
    changed(table, 3, 4)
    later = apply_entries(state, entries_of(table)[state.head :])
    assert later is not None
    made: list[SlicePart] = []
    right = SlicePart.of
    monkeypatch.setattr(SlicePart, "of", lambda slices: made.append(right(slices)) or made[-1])
    again = packed(later)
    assert len(made) == 2
    assert [part.packed for part in again.slices.parts if part.packed not in {each.packed for each in made}] == [
        part.packed for number, part in enumerate(state.slices.parts) if number not in (1, 2)
    ]
    assert again == table.state()


@pytest.mark.parametrize("wrong", ["slice", "fold", "no slice"])
def test_an_entry_that_contradicts_a_packed_slice_is_found_when_it_is_unpacked(table: Table, wrong: str) -> None:
    state = packed(table.state())
    append(table, orders(*range(200), ts=2))
    if wrong == "fold":
        table.fold()
        entry: Any = entries_of(table)[-1]
        assert isinstance(entry, Fold)
        groups = [
            each.model_copy(update={"parent": {"orders": 1}, "start": {"orders": 1}}) for each in entry.file_groups
        ]
        entry = entry.model_copy(update={"file_groups": groups})
    else:
        entry = changed(table, 3, 4)
        parent = {} if wrong == "no slice" else {"orders": 1}
        entry = entry.model_copy(
            update={"slices": [each.model_copy(update={"parent": parent}) for each in entry.slices]}
        )
    before = entries_of(table)[state.head : entry.seq - 1]
    with pytest.raises(CorruptData, match="S1"):
        apply_entries(replace(state, slices=Slices(dict(state.slices.stored))), [*before, entry])
    later = apply_entries(packed(state), [*before, entry])
    assert later is not None
    with pytest.raises(CorruptData, match="S10"):
        packed(later)
    with pytest.raises(CorruptData, match="S10"):
        list(later.slices)


def test_two_slices_of_one_file_group_in_an_entry_are_refused(table: Table) -> None:
    state = packed(table.state())
    entry = changed(table, 3)
    twice = entry.model_copy(update={"slices": [*entry.slices, *entry.slices]})
    with pytest.raises(CorruptData, match="S10"):
        apply_entries(state, [*entries_of(table)[state.head : entry.seq - 1], twice])


def test_a_stale_part_is_detected_by_the_comparison(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that takes over parts although they have newer slices."""
    state = packed(table.state())
    changed(table, 3, 4)
    later = apply_entries(state, entries_of(table)[state.head :])
    monkeypatch.setattr(Slices, "packed", lambda slices: Slices(None, slices.parts, slices.reached))
    assert packed(later) != table.state()

"""The packed file groups of a fold are the same as a plain set of them, and are unpacked only when they are needed."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FakeClock
from tests.storage.support.history import History
from tests.storage.support.shop import SHOP, append, new_uri, orders
from weft import Table
from weft.storage.core.log import group_set
from weft.storage.core.log.apply_entries import apply_entries
from weft.storage.core.log.checkpoint_codec import decode_table, encode_table
from weft.storage.core.log.entries import Base, Fold, TableEntry
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.group_set import GroupSet, GroupUnion, StoredGroups
from weft.storage.core.log.table_state import TableState
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData
from weft.storage.log.commit_log import CommitLog, read_table_lane
from weft.storage.store.open_store import open_store

GROUPS = [FileGroup(partition, bits, bucket) for partition in ("", 'd="ü"') for bits in (6, 8) for bucket in range(30)]
some_groups = st.sets(st.sampled_from(GROUPS))
few_groups = st.sets(st.sampled_from(GROUPS), max_size=5)
STEPS = ("orders", "payments", "fold", "fold", "fold", "compact some", "compact", "split 4", "split 8", "restore")


def stored(groups: GroupSet) -> GroupSet:
    """The set as another process reads it from a checkpoint."""
    return GroupSet(StoredGroups.model_validate_json(groups.dump().model_dump_json()))


def check(groups: GroupSet, expected: set[FileGroup]) -> None:
    assert bool(groups) == bool(expected)
    assert groups.levels == {group.bits for group in expected}
    assert len(groups) == len(expected)
    assert list(groups) == sorted(expected)
    assert {group for group in GROUPS if group in groups} == expected
    assert groups == GroupSet.of(expected)
    assert (groups == GroupSet.of(GROUPS)) == (expected == set(GROUPS))


@given(
    st.one_of(some_groups, st.just(set(GROUPS))),
    st.lists(st.one_of(few_groups, some_groups, st.just("stored"), st.just("pickled")), max_size=8),
)
def test_a_packed_set_is_the_plain_set(first: set[FileGroup], steps: list[set[FileGroup] | str]) -> None:
    groups, expected = GroupSet.of(first), set(first)
    for step in steps:
        if step == "stored":
            groups = stored(groups)
        elif step == "pickled":
            groups = pickle.loads(pickle.dumps(groups))
        else:
            assert not isinstance(step, str)
            groups, expected = groups.without(step), expected - step
        if len(expected) % 2:  # others stay packed
            check(groups, expected)
    check(groups, expected)
    check(stored(groups), expected)
    check(pickle.loads(pickle.dumps(groups)), expected)


@given(some_groups, some_groups)
def test_a_union_has_the_file_groups_of_all_sets(first: set[FileGroup], second: set[FileGroup]) -> None:
    union = GroupUnion([GroupSet.of(first), GroupSet.of(second)])
    assert {group for group in GROUPS if group in union} == first | second
    assert union.levels == {group.bits for group in first | second}


@given(st.lists(st.sampled_from(STEPS), min_size=8, max_size=24), st.sets(st.integers(1, 60)))
def test_folds_have_the_file_groups_of_plain_sets(steps: list[str], stored_at: set[int]) -> None:
    history = History()
    for step in ["orders", *steps]:
        if step.startswith("split"):
            history.table.split(int(step.split()[1]))
        else:
            history.run(step)
    state: TableState | None = None
    folded: dict[int, set[FileGroup]] = {}
    for entry in entries_after(history.table, 0):
        state = apply_entries(state, [entry])
        assert state is not None
        if entry.seq in stored_at:
            state = read_from_checkpoint(state)
        folded = {} if state.restored == entry.seq else folded_groups(folded, entry)
        assert {fold.slot: set(fold.groups) for fold in state.folds} == folded
        assert state.folded_groups.levels == {group.bits for groups in folded.values() for group in groups}


def folded_groups(before: dict[int, set[FileGroup]], entry: TableEntry) -> dict[int, set[FileGroup]]:
    """The file groups of each fold after an entry, computed from those before it."""
    after = before
    match entry:
        case Base():
            made = [each.group for each in entry.slices]
            after = {
                slot: {group for group in groups if not any(share_keys(group, each) for each in made)}
                for slot, groups in before.items()
            }
        case Fold():
            anew = {each.group for each in entry.file_groups if each.start == each.parent}
            after = {slot: groups - anew for slot, groups in before.items()}
            after[entry.seq] = {each.group for each in entry.file_groups}
    return {slot: groups for slot, groups in after.items() if groups}


def share_keys(one: FileGroup, other: FileGroup) -> bool:
    return one.partition == other.partition and (one.bucket - other.bucket) % (1 << min(one.bits, other.bits)) == 0


def entries_after(table: Table, after: int) -> list[TableEntry]:
    return list(read_table_lane(CommitLog(Environment(open_store(table.uri), FakeClock())), after))


def read_from_checkpoint(state: TableState) -> TableState:
    made = decode_table(b"".join(encode_table(state)))
    assert made is not None
    return made


def test_a_pickled_or_stored_set_is_packed() -> None:
    many = GroupSet.of(FileGroup("", 16, bucket) for bucket in range(50_000))
    size = len(pickle.dumps(many))
    assert FileGroup("", 16, 49_999) in many
    assert len(pickle.dumps(many)) == size
    assert len(many.dump().model_dump_json()) < 1_000


def test_bits_of_removed_file_groups_are_gone() -> None:
    last = FileGroup("", 8, 0)
    assert GroupSet.of([last, *(FileGroup("", 6, bucket) for bucket in range(30))]).without([last]).levels == {6}


def test_file_groups_are_packed_again_when_many_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction may remove them in many entries: each packs the rest again at most now and then."""
    count = 2_000
    groups = GroupSet.of(FileGroup("", 11, bucket) for bucket in range(count))
    packed: list[int] = []
    right = group_set.pack
    monkeypatch.setattr(group_set, "pack", lambda text: packed.append(len(text)) or right(text))
    for bucket in range(count):
        assert groups
        groups = groups.without([FileGroup("", 11, bucket)])
    assert not groups
    assert len(packed) < 9 * math.log(count)
    assert not groups.dump().bits


def test_a_writer_unpacks_no_file_groups_of_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(new_uri(), {**SHOP, "buckets": 16})
    append(table, orders(*range(200)))
    table.compact()
    append(table, orders(*range(200), ts=2))
    table.fold()
    state = read_from_checkpoint(table.state())
    assert [len(fold.groups) for fold in state.folds] == [16]
    table.compact(lambda each: each.group.bucket == 3)
    entries = entries_after(table, state.head)
    with monkeypatch.context() as patch:
        patch.delattr(group_set, "unpack")
        later = apply_entries(state, entries)
        assert later is not None
        assert later.readable_at(table.snapshot().cut.lanes)
        assert (later.levels, later.log_start()) == ({4}, {"orders": 4})
        with pytest.raises(NameError):
            later.folded_to(FileGroup("", 4, 1))
    assert {group.bucket for group in later.folds[0].groups} == {*range(16)} - {3}
    assert later == table.state()


@pytest.mark.parametrize("packed", [b"", b"not compressed", group_set.pack(b"{"), group_set.pack(b'[["",1]]')])
def test_a_list_that_does_not_unpack_is_corrupt(packed: bytes) -> None:
    broken = StoredGroups.model_construct(count=1, bits=[1], size=8, packed=packed)
    with pytest.raises(CorruptData, match="file groups of a fold"):
        list(GroupSet(broken))

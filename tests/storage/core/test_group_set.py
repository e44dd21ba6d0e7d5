"""The packed file groups of a fold are the same as a plain set of them, and are unpacked only when they are needed."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Table
from storage.core.log import group_set
from storage.core.log.checkpoint_codec import decode_table, encode_table
from storage.core.log.file_refs import FileGroup
from storage.core.log.group_set import GroupSet, GroupUnion, StoredGroups
from storage.core.log.table_state import fold_table
from storage.environment import Environment
from storage.errors import CorruptData
from storage.log.commit_log import CommitLog, read_table_lane
from storage.store.open_store import open_store
from tests.faulty_store import FakeClock
from tests.storage.shop import SHOP, append, new_uri, orders

GROUPS = [FileGroup(partition, bits, bucket) for partition in ("", 'd="ü"') for bits in (3, 5) for bucket in range(8)]
some_groups = st.sets(st.sampled_from(GROUPS))


def stored(groups: GroupSet) -> GroupSet:
    """The set as another process reads it from a checkpoint."""
    return GroupSet.load(StoredGroups.model_validate_json(groups.dump().model_dump_json()))


def check(groups: GroupSet, expected: set[FileGroup]) -> None:
    assert bool(groups) == bool(expected)
    assert groups.levels == {group.bits for group in expected}
    assert len(groups) == len(expected)
    assert list(groups) == sorted(expected)
    assert {group for group in GROUPS if group in groups} == expected
    assert groups == GroupSet.of(expected)
    assert (groups == GroupSet.of(GROUPS)) == (expected == set(GROUPS))


@given(some_groups, st.lists(st.one_of(some_groups, st.just("stored"), st.just("pickled")), max_size=8))
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


def test_a_pickled_or_stored_set_is_packed() -> None:
    many = GroupSet.of(FileGroup("", 16, bucket) for bucket in range(50_000))
    size = len(pickle.dumps(many))
    assert FileGroup("", 16, 49_999) in many
    assert len(pickle.dumps(many)) == size
    assert len(many.dump().model_dump_json()) < 1_000


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
    state = decode_table(b"".join(encode_table(table.state())))
    assert state is not None
    assert [len(fold.groups) for fold in state.folds] == [16]
    table.compact(lambda each: each.group.bucket == 3)
    entries = read_table_lane(CommitLog(Environment(open_store(table.uri), FakeClock())), state.head)
    with monkeypatch.context() as patch:
        patch.delattr(group_set, "unpack")
        later = fold_table(state, entries)
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

"""Planning of batches as pure functions: shares of a limit, ranges, offsets in the checkpoint, losses, the start."""

from __future__ import annotations

import itertools
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.streams.kafka.topics import TEST_SECONDS
from weft.storage.errors import InvalidInput
from weft.streams.kafka.offset_plan import (
    Log,
    OffsetRange,
    count_deleted,
    format_offsets,
    parse_offsets,
    plan_end,
    plan_ranges,
    plan_start,
    share_limit,
)
from weft.streams.kafka.options import OTHERS, Partition

pytestmark = pytest.mark.timeout(TEST_SECONDS)

backlogs = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "b"]), st.integers(0, 20)),
    st.integers(1, 10**12),
    min_size=1,
)


@hypothesis.given(backlogs, st.integers(1, 10**12))
def test_every_partition_gets_a_share_of_the_limit(backlog: dict[Partition, int], limit: int) -> None:
    shares = share_limit(backlog, limit)
    assert all(1 <= shares[p] <= backlog[p] for p in backlog)
    assert sum(shares.values()) == min(max(limit, len(backlog)), sum(backlog.values()))
    ranked = sorted(backlog, key=backlog.__getitem__)
    assert all(shares[a] <= shares[b] + 1 for a, b in itertools.pairwise(ranked))


def test_a_limit_is_shared_in_proportion() -> None:
    backlog = {Partition("t", 0): 900, Partition("t", 1): 90, Partition("t", 2): 10}
    assert list(share_limit(backlog, 100).values()) == [88, 10, 2]


@hypothesis.given(backlogs, st.integers(1, 60))
def test_split_ranges_cover_every_offset_once(backlog: dict[Partition, int], least: int) -> None:
    start = dict.fromkeys(backlog, 7)
    ranges = plan_ranges(start, {p: 7 + count for p, count in backlog.items()}, least)
    assert len(ranges) >= min(least, sum(backlog.values()))
    for partition, count in backlog.items():
        of_partition = [r for r in ranges if r.partition == partition]
        assert [r.start for r in of_partition] == [7, *(r.end for r in of_partition[:-1])]
        assert of_partition[-1].end == 7 + count
        assert all(r.start < r.end for r in of_partition)


@hypothesis.given(backlogs)
def test_offsets_round_trip_as_the_same_text(offsets: dict[Partition, int]) -> None:
    text = json.dumps(format_offsets(offsets))
    again = parse_offsets(json.loads(text))
    assert again == offsets
    assert json.dumps(format_offsets(dict(reversed(again.items())))) == text


A, B = Partition("t", 0), Partition("t", 1)


def test_a_new_partition_enters_with_its_first_offset_and_is_read_from_the_next_batch_on() -> None:
    logs = {A: Log(0, 9), B: Log(3, 8)}
    first = plan_end({A: 5}, logs, ["t"], limit=None).offsets
    assert first == {A: 9, B: 3}
    assert plan_ranges({A: 5}, first, None) == [OffsetRange(A, 5, 9)]
    assert plan_end(first, logs, ["t"], limit=None).offsets == {A: 9, B: 8}


def test_available_now_neither_passes_its_target_nor_adds_partitions() -> None:
    plan = plan_end({A: 5}, {A: Log(0, 100), B: Log(0, 8)}, ["t"], limit=None, target={A: 9})
    assert plan.offsets == {A: 9}


def test_offsets_deleted_by_retention_are_a_loss_and_do_not_count_for_the_limit() -> None:
    plan = plan_end({A: 5}, {A: Log(1000, 2000)}, ["t"], limit=10)
    assert plan.offsets == {A: 1010}
    assert [part in plan.losses[0] for part in ("t-0", "offset 5", "[1000, 2000)")] == [True] * 3


def test_a_truncated_log_is_a_loss_and_is_read_from_its_first_offset_in_the_next_batch() -> None:
    plan = plan_end({A: 500}, {A: Log(0, 20)}, ["t"], limit=None)
    assert plan.offsets == {A: 0}
    assert [part in plan.losses[0] for part in ("t-0", "offset 500", "[0, 20)")] == [True] * 3
    assert plan_ranges({A: 500}, plan.offsets, None) == []


def test_a_deleted_partition_keeps_its_offset_and_is_a_loss_only_while_subscribed() -> None:
    gone = plan_end({A: 5, B: 7}, {A: Log(0, 9)}, ["t"], limit=None)
    assert gone.offsets == {A: 9, B: 7}
    assert "t-1 needs offset 7" in gone.losses[0]
    assert "its topic was deleted" in gone.losses[0], "Kafka never takes a single partition away"
    dropped = plan_end({A: 5, Partition("old", 0): 7}, {A: Log(0, 9)}, ["t"], limit=None)
    assert dropped == ({A: 9, Partition("old", 0): 7}, [])


def test_starting_offsets_by_name_and_number() -> None:
    logs = {A: Log(3, 9), B: Log(4, 8)}
    assert plan_start("earliest", logs).offsets == {A: 3, B: 4}
    assert plan_start("latest", logs).offsets == {A: 9, B: 8}
    assert plan_start({A: -2, B: -1}, logs).offsets == {A: 3, B: 8}
    assert plan_start({A: 5, Partition("t", OTHERS): -2}, logs).offsets == {A: 5, B: 4}
    assert plan_start({Partition("t", OTHERS): -1}, logs).offsets == {A: 9, B: 8}
    assert plan_start({A: 7, B: 2}, logs) == (
        {A: 7, B: 4},
        ["t-1 needs offset 2, the log has offsets [4, 8): retention deleted older records"],
    )
    with pytest.raises(InvalidInput, match="t-1 is not named"):
        plan_start({A: 5}, logs)
    with pytest.raises(InvalidInput, match="t-7 is not a partition"):
        plan_start({A: 5, B: 5, Partition("t", 7): 0}, logs)
    with pytest.raises(InvalidInput, match=r"t-0 needs offset 10, the log has offsets \[3, 9\)"):
        plan_start({A: 10, B: 5}, logs)


def test_offsets_that_retention_deleted_are_counted() -> None:
    logs = {A: Log(3, 9), B: Log(4, 8), Partition("t", 2): Log(100, 200)}
    assert count_deleted({A: 1, B: 6}, logs) == 2, "a new partition starts at its beginning"
    assert count_deleted({A: 3, B: 9, Partition("gone", 0): 0}, logs) == 0

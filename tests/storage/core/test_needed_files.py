"""Spans of entries compared with sets of numbers; which checkpoints and heartbeats are kept."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.log.needed_files import (
    LaneEnd,
    Spans,
    contains,
    entry_may_come,
    kept_checkpoints,
    newest_heartbeat,
    union_spans,
)
from weft.storage.core.log.needed_files import subtract_spans as less
from weft.storage.core.names import Kind, LaneName, ParsedPath, Path

TOP = 12
spans = st.lists(
    st.tuples(st.integers(0, TOP), st.integers(0, TOP)).map(lambda pair: (min(pair), max(pair))), max_size=5
)


def members(given_spans: Sequence[tuple[int, int]]) -> set[int]:
    return {seq for after, until in given_spans for seq in range(after + 1, until + 1)}


def check(made: Spans, expected: set[int]) -> None:
    assert members(made) == expected
    assert {seq for seq in range(TOP + 2) if contains(made, seq)} == expected
    flat = [number for span in made for number in span]
    assert flat == sorted(set(flat)), "spans ascend and do not touch"


@given(spans, spans)
def test_spans_behave_like_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    check(union_spans(first, second), members(first) | members(second))
    check(less(union_spans(first, ()), second), members(first) - members(second))


def test_an_entry_may_come_only_into_a_free_slot_under_the_newest_claim() -> None:
    end = LaneEnd(head=5, epoch=3)
    may = {(slot, epoch) for slot in (4, 5, 6, 7) for epoch in (2, 3, 4) if entry_may_come(_log(epoch, slot), end)}
    assert may == {(6, 3), (6, 4), (7, 3), (7, 4)}


def test_the_newest_checkpoints_and_the_best_ones_for_readers_are_kept() -> None:
    heads = [10, 20, 30, 40, 50]
    assert kept_checkpoints(heads) == {40, 50}
    assert kept_checkpoints(heads, [35, 9, 10]) == {10, 30, 40, 50}
    assert kept_checkpoints([7, 7]) == {7}
    assert kept_checkpoints([], [3]) == frozenset()


def test_only_the_newest_heartbeat_of_the_newest_claim_is_kept() -> None:
    said = {"x": (3, 1), "y": (3, 2), "z": (2, 9)}
    beats = {
        Path(name): ParsedPath(Kind.HEARTBEAT, LaneName("a"), epoch=epoch, at_ms=at_ms)
        for name, (epoch, at_ms) in said.items()
    }
    assert newest_heartbeat(beats, LaneEnd(5, 3)) == "y"
    assert newest_heartbeat(beats, LaneEnd(9, 4)) is None


def _log(epoch: int, slot: int) -> ParsedPath:
    return ParsedPath(Kind.LOG, LaneName("a"), epoch=epoch, slot=slot)

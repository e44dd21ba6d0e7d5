"""Cuts: their text, and their order lane by lane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.storage.core.log.cut import Cut, highest, lowest, only, parse_cut, within
from weft.storage.core.names import LaneName

LANES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,12}", fullmatch=True).map(LaneName)
SEQS = st.dictionaries(LANES, st.integers(0, 10**17), max_size=5)
SMALL = st.dictionaries(st.sampled_from([LaneName(name) for name in "abc"]), st.integers(0, 3))


@given(st.integers(1, 10**17), SEQS)
def test_the_text_of_a_cut_identifies_it(table: int, lanes: dict[LaneName, int]) -> None:
    cut = Cut(table, lanes)
    again = parse_cut(str(cut))
    assert again.table == table
    assert again.lanes == {lane: seq for lane, seq in lanes.items() if seq}
    assert str(again) == str(cut)
    # Even if a lane without entries is named: a savepoint keeps the snapshot in either form.
    assert again == cut
    assert hash(again) == hash(cut)
    assert again != Cut(table + 1, lanes)


@given(SMALL, SMALL)
def test_within_and_lowest_agree(first: dict[LaneName, int], second: dict[LaneName, int]) -> None:
    both = lowest(first, second)
    assert within(both, first)
    assert within(both, second)
    if within(first, second):
        assert {lane: seq for lane, seq in both.items() if seq} == {lane: seq for lane, seq in first.items() if seq}


@given(SMALL, SMALL, st.integers(1, 3))
def test_cuts_compare_alike_before_and_after_a_lane_is_retired(
    first: dict[LaneName, int], second: dict[LaneName, int], end: int
) -> None:
    """Both have all entries of the lane, and only one of them, both or none may name it (C6)."""
    retired, kept = LaneName("retired"), frozenset(map(LaneName, "abc"))
    known = [first | {retired: end}, second | {retired: end}]
    for one, other in ((first, second), (first, known[1]), (known[0], second), (known[0], known[1])):
        assert within(only(one, kept), only(other, kept)) == within(*known)
        assert only(lowest(one, other), kept) == lowest(first, second)
        assert only(highest(one, other), kept) == highest(first, second)

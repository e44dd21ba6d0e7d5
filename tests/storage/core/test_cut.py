"""Cuts: their text, and their order lane by lane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.core.log.cut import Cut, lowest, parse_cut, within
from storage.core.names import LaneName

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

"""Stamps: order without trusting clocks (MERGE semantics, "arrival"; S22 ClockFree)."""

from __future__ import annotations

import pytest

from tests.faulty_store import FakeClock, other_process
from tests.storage.support.shop import SHOP, append, new_uri, orders, statuses
from weft import Table
from weft.storage.clock import LANE_BITS, Stamps, arrival
from weft.storage.errors import InvalidInput

YEAR_MS = 365 * 24 * 3_600_000


def test_the_later_claim_wins_a_tie_even_if_its_clock_is_a_year_behind() -> None:
    uri = new_uri()
    now = FakeClock()
    append(other := _create(uri, now), orders(1, 2, status="first"))
    behind = other_process(uri, FakeClock(now.now_ms() - YEAR_MS))
    append(behind, orders(1, status="second, a year behind"))
    with behind.writer("orders", lane="backfill") as lane:
        lane.append(orders(2, status="other lane, a year behind"))
    expected = {1: "second, a year behind", 2: "other lane, a year behind"}
    assert statuses(other) == expected
    behind.compact()
    assert statuses(other) == expected


def _create(uri: str, clock: FakeClock) -> Table:
    Table.create(uri, SHOP, clock=clock)
    return other_process(uri, clock)


def test_a_claim_observes_the_stamps_of_all_lanes() -> None:
    uri = new_uri()
    ahead = _create(uri, FakeClock(1_900_000_000_000))
    behind = other_process(uri, FakeClock(1_000_000))
    with behind.writer("orders", lane="late-claim") as lane:
        lane.append(orders(9))
    with ahead.writer("orders") as lane:
        for status in "abc":
            lane.append(orders(1, status=status))
    with behind.writer("orders", lane="late-claim") as lane:
        lane.append(orders(1, status="claimed last"))
    assert statuses(ahead) == {1: "claimed last", 9: "new"}


def test_an_open_writer_observes_stamps_of_other_lanes_every_two_minutes() -> None:
    uri = new_uri()
    ahead = _create(uri, FakeClock(1_900_000_000_000))
    clock = FakeClock(1_000_000)
    behind = other_process(uri, clock)
    with behind.writer("orders", lane="behind") as lane, ahead.writer("orders") as other:
        other.append(orders(1, status="ahead"))
        clock.time_ms += 121_000
        lane.append(orders(1, status="behind, but later"))
    assert statuses(ahead) == {1: "behind, but later"}


@pytest.mark.parametrize("jump", [-YEAR_MS, 0, YEAR_MS])
def test_commits_of_one_writer_keep_their_order_however_the_clock_jumps(jump: int) -> None:
    uri = new_uri()
    clock = FakeClock()
    table = _create(uri, clock)
    with table.writer("orders") as lane:
        for status in "abcd":
            lane.append(orders(1, status=status))
            clock.time_ms += jump
    assert statuses(table) == {1: "d"}


def test_ordering_values_decide_whatever_the_clocks_say() -> None:
    uri = new_uri()
    table = _create(uri, FakeClock(1_900_000_000_000))
    append(table, orders(1, status="newest", ts=9))
    append(other_process(uri, FakeClock(1_950_000_000_000)), orders(1, status="late", ts=3))
    assert statuses(table) == {1: "newest"}


def test_stamps_only_increase() -> None:
    stamps, clock = Stamps(), FakeClock(1_000)
    assert [stamps.next(clock), stamps.next(clock)] == [1_000, 1_001]
    stamps.observe(5_000)
    stamps.observe(2_000)
    assert stamps.next(clock) == 5_001
    clock.time_ms = 9_000
    assert stamps.next(clock) == 9_000


def test_a_stamp_out_of_range_is_refused_and_never_wraps() -> None:
    largest = (1 << 43) - 1
    assert Stamps().next(FakeClock(largest)) == largest
    assert arrival(largest, (1 << LANE_BITS) - 1) == (1 << 63) - 1
    stamps = Stamps()
    stamps.observe(largest)
    for clock in (FakeClock(1_000), FakeClock(largest + 1)):
        with pytest.raises(InvalidInput, match="out of range") as error:
            stamps.next(clock)
        assert "NTP" in error.value.hint

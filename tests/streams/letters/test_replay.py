"""Replays of dead letters: each message is stored once, whoever is killed, or works at the same time, at any moment."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.streams.letters.rig import Killed, Moments, Place, bad, good
from weft.storage.errors import Conflict, Fenced
from weft.streams.letters.letter_files import Letter
from weft.streams.letters.letter_folder import PlanState, State, Survey


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Place]:
    """New places: 1 is good; 2 to 5 are dead letters of two batches; 6 is of a batch without a commit."""

    def new() -> Iterator[Place]:
        for number in itertools.count():
            place = Place.new(tmp_path / str(number))
            place.write(good(1), bad(2), bad(3))
            place.write(bad(4), bad(5))
            place.write(bad(6), commit=False)
            yield place

    return new()


@pytest.fixture
def place(places: Iterator[Place]) -> Place:
    return next(places)


def test_letters_wait_until_they_are_replayed(place: Place) -> None:
    assert place.waiting() == [2, 3, 4, 5]
    assert place.ids(State.NOT_FINAL) == [6]
    [done] = place.replay()
    assert (done.letters, done.rows, done.failed, done.missing, done.resumed) == (4, 4, 0, 0, False)
    assert place.sums() == dict.fromkeys(range(1, 6), 1)
    assert place.waiting() == []
    assert sorted(place.ids(State.REPLAYED)) == [2, 3, 4, 5]
    assert place.replay() == []
    assert place.sums() == dict.fromkeys(range(1, 6), 1)


def test_a_message_that_fails_again_is_a_dead_letter_again(place: Place) -> None:
    [done] = place.replay(accepts={2, 4})
    assert (done.letters, done.rows, done.failed) == (4, 2, 2)
    assert place.waiting() == [3, 5]
    waiting = place.letters().survey().chosen(State.WAITING)
    [again] = [letter for letter in waiting if '"id": 3' in letter.content["value"]]
    assert (again.content["topic"], again.content["offset"], again.content["timestamp_ms"]) == ("t", 2, 1_002)
    assert again.content["lane"] == "s"
    [last] = place.replay()
    assert last.letters == 2
    assert place.sums() == dict.fromkeys(range(1, 6), 1)
    assert place.waiting() == []


def test_the_original_position_orders_a_replayed_message(place: Place) -> None:
    place.write(good(2))
    place.replay()
    rows = place.table().snapshot().to_arrow(["id", "at"]).to_pylist()
    assert {row["id"]: row["at"] for row in rows} == {1: 0, 2: 300, 3: 2, 4: 100, 5: 101}


def test_lanes_of_replays_are_closed(place: Place) -> None:
    [done] = place.replay()
    assert place.table().state().lanes[done.lane].closed is not None
    assert place.table().state().lanes["s"].closed is None


def test_a_replay_whose_lane_was_retired_is_not_repeated(place: Place) -> None:
    [done] = place.replay()
    place.table().compact()
    place.table().clean(dt.timedelta(0))
    assert done.lane not in place.table().state().lanes
    assert (place.replay(), place.waiting()) == ([], [])
    assert place.sums() == dict.fromkeys(range(1, 6), 1)


def test_a_replay_that_is_killed_is_finished_by_the_next_one(places: Iterator[Place]) -> None:
    moments = []
    for number in itertools.count(1):
        place, killed = next(places), Moments(number)
        try:
            place.replay(killed, accepts={2, 3, 4})
        except Killed:
            moments.append(killed.what)
        else:
            break
        assert place.sums() in ({1: 1}, {1: 1, 2: 1, 3: 1, 4: 1}), killed.what
        place.replay(accepts={2, 3, 4})
        assert place.sums() == {1: 1, 2: 1, 3: 1, 4: 1}, killed.what
        assert place.waiting() == [5], killed.what
        place.replay()
        assert place.sums() == dict.fromkeys(range(1, 6), 1), killed.what
        assert place.waiting() == [], killed.what
        lanes = place.table().state().lanes
        assert [name for name, lane in lanes.items() if lane.closed is None] == ["s"], killed.what
    text = "\n".join(moments)
    for step in (
        "after put_if_absent _plans/s/00000001.json",
        r"before \w+ log/s-replay-",
        r"after writing replay-\w+-1/0-1.jsonl",
        r"before put_if_absent _weft/timeline/lanes/s-replay-\w+/0+2.json",
        r"after put_if_absent _weft/timeline/lanes/s-replay-\w+/0+2.json",
    ):
        assert re.search(step, text), step


def others(place: Place) -> dict[str, Callable[[], object]]:
    """What others may do while a replay works."""

    def restore() -> None:
        table = place.table()
        table.restore(str(table.snapshot().cut))

    def restore_and_read_again() -> None:
        table = place.table()
        table.restore(place.cuts[0])
        place.write(bad(4), bad(5), query_id="resumed")

    def close() -> None:
        table = place.table()
        for name, lane in table.state().lanes.items():
            if lane.closed is None and name.startswith("s-replay-"):
                table.close_lane(name)

    return {
        "another replay": place.replay,
        "a replay with another pipeline": lambda: place.replay(accepts={2}),
        "the live writer": lambda: place.write(good(7), bad(8)),
        "a restore": restore,
        "a restore of the letters' batch, which is read again": restore_and_read_again,
        "an operator who closes the lane": close,
        "a drop": lambda: place.letters().publish("drop", "", lambda survey: survey.chosen(State.WAITING)),
    }


@pytest.mark.parametrize("other", list(others(Place(Path()))))
def test_others_may_work_at_any_moment_of_a_replay(places: Iterator[Place], other: str) -> None:
    for number in itertools.count(1):
        place = next(places)
        begun = Moments(number, action=lambda place=place: others(place)[other]())
        try:
            place.replay(begun)
        except (Fenced, Conflict):
            assert other not in {"the live writer", "a drop"}, begun.what
        if not begun.what:
            break
        dropped = set() if other != "a drop" else {2, 3, 4, 5} - set(place.sums())
        assert dropped in (set(), {2, 3, 4, 5}), begun.what
        place.replay()
        known = {1, 2, 3, 4, 5} | ({7, 8} if other == "the live writer" else set())
        assert place.sums() == dict.fromkeys(known - dropped, 1), begun.what
        assert place.waiting() == [], begun.what
    assert number > 15


def test_letters_of_a_run_that_was_overtaken_do_not_count(places: Iterator[Place]) -> None:
    for number in itertools.count(1):
        place = next(places)
        overtaken = Moments(number, action=lambda place=place: place.replay())
        with contextlib.suppress(Fenced, Conflict):
            place.replay(overtaken, accepts={2})
        if not overtaken.what:
            break
        place.replay()
        assert place.sums() == dict.fromkeys(range(1, 6), 1), overtaken.what
        assert place.waiting() == [], overtaken.what


def test_a_restore_that_rolls_back_a_replay_makes_its_letters_wait_again(place: Place) -> None:
    table = place.table()
    before = str(table.snapshot().cut)
    place.replay(accepts={2, 3, 4})
    assert place.waiting() == [5]
    table.restore(before)
    assert place.sums() == {1: 1}
    assert place.waiting() == [2, 3, 4, 5]
    assert place.letters().survey().states == {1: PlanState.VOID}
    place.replay()
    assert place.sums() == dict.fromkeys(range(1, 6), 1)


def test_letters_of_a_batch_that_was_rolled_back_are_not_replayed(tmp_path: Path) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1))
    before = str(place.table().snapshot().cut)
    place.write(bad(2))
    place.table().restore(before)
    assert place.waiting() == []
    assert place.ids(State.NOT_FINAL) == [2]
    place.write(bad(2), query_id="resumed")  # the message is read again
    assert place.waiting() == [2]
    place.replay()
    assert place.sums() == {1: 1, 2: 1}


def test_dropped_letters_are_gone_and_other_lines_keep_their_names(place: Place) -> None:
    names = {letter.name for letter in place.letters().survey().chosen(State.WAITING)}

    def second(survey: Survey) -> Iterator[Letter]:
        return (letter for letter in survey.chosen(State.WAITING) if letter.content["offset"] == 2)

    folder = place.letters()
    plan = folder.publish("drop", "offset = 2", second)
    assert plan is not None
    assert plan.count == 1
    assert place.waiting() == [2, 4, 5]
    folder.erase_dropped()
    folder.erase_dropped()
    assert place.waiting() == [2, 4, 5]
    assert {letter.name for letter in place.letters().survey().chosen(State.WAITING)} < names
    files = b"".join(path.read_bytes() for path in Path(place.letters_uri).rglob("*.jsonl"))
    assert b'"offset": 2,' not in files
    place.replay()
    assert place.sums() == {1: 1, 2: 1, 4: 1, 5: 1}


def test_a_replayed_letter_of_a_deleted_file_is_reported(place: Place) -> None:
    killed = Moments(3)  # after the plan
    with pytest.raises(Killed):
        place.replay(killed)
    for path in Path(place.letters_uri).glob("q/1-*.jsonl"):
        path.unlink()
    [done] = place.replay()
    assert (done.resumed, done.letters, done.missing, done.rows) == (True, 4, 2, 2)
    assert place.sums() == {1: 1, 2: 1, 3: 1}

"""Changes over random histories: interleaved lanes, every merge mode, compactions, folds and schema changes.

S21 IncrementalComplete: the changes between any two cuts equal the difference of the two states that the oracle
computes from the events; applying them to the earlier result gives the later one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import Event
from tests.storage.support.changing import Key, Row, applied, by_key, expected, got, oracle_state, state_of, under
from tests.storage.support.divisions import any_bounds
from tests.storage.support.evolving import Evolution, EvolvingWorld, evolutions
from tests.storage.support.world import World
from tests.strategies import Config, Remember, Story, stories
from tests.tuning import tuned
from weft import Table
from weft.storage.core.log.cut import Cut
from weft.storage.core.merge.diff import ChangeShape
from weft.storage.core.plan.key_ranges import choose_bounds
from weft.storage.errors import NotFound, OffsetExpired, OffsetInvalidated, SnapshotExpired
from weft.storage.read.changes import change_scan as changes
from weft.storage.read.changes.consumer_cuts import bounded_cut
from weft.storage.read.plan import divide_file_group

pytestmark = pytest.mark.usefixtures("small_files")

_RANGES = 6
"""Number of ranges per history; each reads both snapshots."""


@dataclass(frozen=True)
class Moment:
    """A cut, and the events and configuration at it."""

    cut: str
    events: list[Event]
    config: Config

    @classmethod
    def of(cls, world: World) -> Moment:
        return cls(str(world.table.snapshot().cut), list(world.oracle.events), world.config)


def check_ranges(table: Table, moments: list[Moment], chance: random.Random) -> None:
    """Changes of random ranges with random arguments equal those of the oracle under the later configuration."""
    for _ in range(_RANGES):
        first, last = sorted(chance.choices(range(len(moments)), k=2))
        until, config = moments[last], moments[last].config
        schema = table.snapshot(until.cut).table_schema
        since, old = (moments[first].cut, moments[first].events) if chance.random() < 0.8 else (None, [])
        columns = chance.choice([None, None, chance.sample(schema.arrow.names, chance.randrange(len(schema.columns)))])
        require = chance.choice([[], [], chance.sample(list(config["groups"]), 1)])
        before = bool(ChangeShape.of(schema, columns, before=False).values) and chance.random() < 0.7
        answer = got(schema, table.changes(since, until.cut, columns=columns, require=require, before=before))
        states = [oracle_state(config, events, require) for events in (old, until.events)]
        assert answer == expected(schema, *states, columns, images=before), (since, until.cut, columns, require)


def check_chain(table: Table, cuts: list[str]) -> None:
    """Changes applied one after the other lead from an empty table to every snapshot."""
    answer: dict[Key, Row] = {}
    for since, until in itertools.pairwise([None, *cuts]):
        snapshot = table.snapshot(until)
        key = snapshot.table_schema.key
        answer = applied(snapshot.table_schema, answer, table.changes(since, until))
        assert answer == by_key(key, snapshot.to_arrow()), (since, until)


@given(stories(), st.integers(0, 2**32))
def test_changes_are_the_difference_of_two_states(story: Story, seed: int) -> None:
    with World(story.config) as world:
        moments = [Moment.of(world)]
        for step in story.steps:
            world.run([step])
            moments.append(Moment.of(world))
        chance = random.Random(seed)
        check_ranges(world.table, moments, chance)
        check_chain(Table.open(world.uri), [moment.cut for moment in moments if chance.random() < 0.6])


@given(evolutions(), st.integers(0, 2**32))
def test_a_schema_change_is_not_a_change_of_rows(story: Evolution, seed: int) -> None:
    with EvolvingWorld(story.config) as world:
        moments = [Moment.of(world)]
        for step in story.steps:
            world.do(step)
            moments.append(Moment.of(world))
        check_ranges(world.table, moments, random.Random(seed))


@given(stories(max_steps=8), st.integers(0, 2**32))
def test_comparing_whole_file_groups_gives_the_same_changes(story: Story, seed: int) -> None:
    """As for file groups with many commits, and after the logs in between were deleted."""
    chance = random.Random(seed)
    with World(story.config) as world, pytest.MonkeyPatch.context() as patch:
        cuts = []
        for step in story.steps:
            cuts.append(str(world.table.snapshot().cut))
            world.run([step])
        since, until = chance.choice(cuts), str(world.table.snapshot().cut)
        by_keys = got(world.table.schema, world.table.changes(since, until, before=True))
        patch.setattr(changes, "_touched_groups", lambda since, until, _: changes._whole_groups(since, until))
        table = tuned(world.table, change_task_bytes=chance.choice([0, 2_000]))
        assert got(table.schema, table.changes(since, until, before=True)) == by_keys


@given(stories(max_steps=8), st.integers(0, 2**32), st.none() | st.integers(0, 1000))
def test_divided_file_groups_give_the_same_changes(story: Story, seed: int, bounds: int | None) -> None:
    """By keys and as a whole; at bounds between row groups and blocks, and at any key. Each key is in one task."""
    chance = random.Random(seed)
    choose = choose_bounds if bounds is None else any_bounds(bounds)
    with World({**story.config, "buckets": 1}) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(divide_file_group, "choose_bounds", choose)
        cuts = []
        for step in story.steps:
            cuts.append(str(world.table.snapshot().cut))
            world.run([step])
        schema, until = world.table.schema, str(world.table.snapshot().cut)
        whole, divided = tuned(world.table, change_task_bytes=1 << 60), tuned(world.table, change_task_bytes=1)
        for since in [*chance.choices(cuts, k=3), None]:
            require = chance.choice([[], chance.sample(list(world.config["groups"]), 1)])
            answer = got(schema, whole.changes(since, until, require=require, before=True))
            assert got(schema, divided.changes(since, until, require=require, before=True)) == answer
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(changes, "_touched_groups", lambda since, until, _: changes._whole_groups(since, until))
                assert got(schema, divided.changes(since, until, require=require, before=True)) == answer


@given(stories(), st.integers(0, 2**32))
def test_the_changes_of_a_range_are_complete_or_refused(story: Story, seed: int) -> None:
    """With frequent cleaning, savepoints, restores and undos."""
    chance = random.Random(seed)
    with World(story.config) as world:
        table = world.table
        cuts = [table.snapshot().cut]
        for step in story.steps:
            if not isinstance(step, Remember):  # not guaranteed here
                world.run([step])
            cuts.append(table.snapshot().cut)
            serve(world, cuts, chance)
        for _ in range(_RANGES):
            since, until = (str(cut) for cut in sorted(chance.choices(cuts, k=2), key=cuts.index))
            try:
                old, new = table.snapshot(since), table.snapshot(until)
            except SnapshotExpired:
                with pytest.raises(OffsetExpired):
                    table.changes(since, until)
                continue
            if new.state.restored > old.cut.table:
                with pytest.raises(OffsetInvalidated):
                    table.changes(since, until)
            else:
                answer = got(new.table_schema, table.changes(since, until, before=True))
                assert answer == expected(new.table_schema, state_of(under(old, new)), state_of(new))


def serve(world: World, cuts: list[Cut], chance: random.Random) -> None:
    """From time to time clean, keep a snapshot, or roll something back."""
    table, service = world.table, chance.choice(["clean", "savepoint", "restore", "undo", *[""] * 6])
    with contextlib.suppress(SnapshotExpired, NotFound):
        match service:
            case "clean":
                table.clean(dt.timedelta(0))
            case "savepoint":
                table.savepoint(f"at-{len(cuts)}", str(cuts[-1]))
            case "restore":
                table.restore(str(chance.choice(cuts[-3:])))
            case "undo":
                stream = chance.choice(list(world.config["streams"]))
                table.undo(stream, dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=chance.choice([1, 50])))
    if service in {"restore", "undo"}:
        world._writers.clear()  # fenced
        cuts.append(table.snapshot().cut)


@given(stories(), st.integers(0, 2**32), st.integers(1, 3))
def test_a_range_in_small_steps_gives_the_same_end_as_one_step(story: Story, seed: int, commits: int) -> None:
    """`bounded_cut` always advances, and every cut on the way is a snapshot."""
    chance = random.Random(seed)
    with World(story.config) as world:
        cuts = []
        for step in story.steps:
            cuts.append(str(world.table.snapshot().cut))
            world.run([step])
        table = Table.open(world.uri)
        at, end = chance.choice(cuts), str(table.snapshot().cut)
        answer = by_key(table.schema.key, table.snapshot(at).to_arrow())
        for _ in range(200):
            if at == end:
                break
            step_end = str(bounded_cut(table.snapshot(at), table.snapshot(end), commits))
            answer = applied(table.schema, answer, table.changes(at, step_end))
            at = step_end
            assert answer == by_key(table.schema.key, table.snapshot(at).to_arrow())
        assert at == end

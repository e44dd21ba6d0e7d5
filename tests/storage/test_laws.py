"""The laws of MERGE semantics over random tables, histories and compactions, each against the oracle."""

from __future__ import annotations

import uuid
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracle import MODES, Event, Oracle, touches, version
from tests.storage.support.world import World, bag, canonical, expected_bag, snapshot_bag
from tests.strategies import (
    EVERY_GROUP,
    Append,
    Compact,
    Fold,
    Remember,
    Step,
    Story,
    function_of,
    stories,
    type_of,
)
from tests.strategy_coverage import undrawn_cases
from weft import Table
from weft.storage.core.modes.functions import FUNCTIONS

# The fixture only makes files small; it has no state that examples could share.
pytestmark = pytest.mark.usefixtures("small_files")


@given(stories())
def test_every_read_equals_the_oracle(story: Story) -> None:
    """M3 and S9 with all operations: after every step, and at every remembered cut."""
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()


@given(stories(max_steps=8), st.data())
def test_projection_filter_and_require_commute_with_reading_everything(story: Story, data: st.DataObject) -> None:
    """M4."""
    with World(story.config) as world:
        world.run(story.steps)
        columns = list(story.config["columns"])
        snapshot = world.table.snapshot()
        for name in columns:
            assert snapshot_bag(snapshot, [name]) == expected_bag(world.expected(), [name])
        chosen = data.draw(st.lists(st.sampled_from(columns), unique=True), label="columns")
        require = data.draw(st.lists(st.sampled_from(list(story.config["groups"])), unique=True), label="require")
        answer = world.expected(require)
        assert snapshot_bag(snapshot, chosen, require=require) == expected_bag(answer, chosen)
        # The predicate on all rows, evaluated by pyarrow.
        column = data.draw(st.sampled_from([name for name in columns if "<" not in type_of(story.config, name)]))
        whole = snapshot.to_arrow()
        values = [value for value in whole.column(column).unique() if value.is_valid]
        predicates = [pc.field(column).is_null(), ~pc.field(column).is_null()]
        predicates += [pc.field(column) >= value for value in values[:2]]
        predicate = data.draw(st.sampled_from(predicates), label="filter")
        for cut, remembered in world.remembered:
            older = world.table.snapshot(cut)
            assert snapshot_bag(older, chosen) == expected_bag(remembered, chosen)
        filtered = snapshot.to_arrow(chosen, filter=predicate)
        expected = whole.filter(predicate)
        assert filtered.num_rows == expected.num_rows
        if chosen:
            assert bag(filtered) == bag(expected.select(chosen))
        left = snapshot.to_arrow(chosen, filter=predicate, require=require)
        kept = pc.is_in(pa.array([repr(key) for key in _keys(world, expected)], pa.string()), _texts(answer))
        assert left.num_rows == int(pc.sum(kept).as_py() or 0)


def _keys(world: World, table: pa.Table) -> list[object]:
    return [canonical(tuple(row[name] for name in world.config["key"])) for row in table.to_pylist()]


def _texts(answer: object) -> pa.Array:
    return pa.array([repr(key) for key in answer], pa.string())


@given(stories(max_steps=8), st.data())
def test_every_projection_of_every_state_is_the_projection_of_the_whole(story: Story, data: st.DataObject) -> None:
    """M4 with pruning: after every step, with slices with and without logs and shadows."""
    columns = list(story.config["columns"])
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            chosen = data.draw(st.lists(st.sampled_from(columns), unique=True, max_size=4), label="columns")
            snapshot = world.table.snapshot()
            assert snapshot_bag(snapshot, chosen) == expected_bag(world.expected(), chosen)


@given(stories(), st.data())
def test_compactions_and_folds_of_any_file_groups_at_any_time_change_no_read(story: Story, data: st.DataObject) -> None:
    """M3: the same commits under two histories of compactions and folds."""
    with World(story.config) as first, World(story.config) as second:
        for append in story.appends:
            for world in (first, second):
                world.append(append)
                for service in data.draw(st.lists(st.sampled_from(["compact", "fold"]), max_size=2), label="services"):
                    if service == "fold":
                        world.run([Fold()])
                    else:
                        world.compact(Compact(data.draw(st.frozensets(st.integers(0, 7)), label="file groups")))
                if data.draw(st.integers(0, 4), label="remember") == 0:
                    world.remember()
        for world in (first, second):
            world.check()
        assert second.answer(second.table.snapshot().to_arrow()) == first.answer(first.table.snapshot().to_arrow())


@given(stories(ordering="distinct"), st.randoms(use_true_random=False), st.booleans())
def test_interleaving_of_lanes_changes_nothing(story: Story, random: object, compacting: bool) -> None:  # noqa: FBT001
    """M1, if no two ordering values are equal: another interleaving of the lanes, with other compactions and folds."""
    queues: dict[str, list[Append]] = {}
    for append in story.appends:
        queues.setdefault(append.lane, []).append(append)
    order = [append.lane for append in story.appends]
    random.shuffle(order)
    other: list[Step] = []
    for lane in order:
        other.append(queues[lane].pop(0))
        if compacting:
            other.append(random.choice([Compact(frozenset(random.sample(range(8), 4))), Fold()]))
    with World(story.config) as first, World(story.config) as second:
        first.run(story.steps)
        second.run(other)
        assert second.expected() == first.expected()
        second.check()
        assert second.answer(second.table.snapshot().to_arrow()) == first.answer(first.table.snapshot().to_arrow())


@given(stories(), st.data())
def test_batching_changes_nothing(story: Story, data: st.DataObject) -> None:
    """M2: the same sequence of events, divided into other commits, and into other files of a commit."""
    appends: list[Append] = []
    for (stream, lane, _), run in groupby(story.appends, key=lambda a: (a.stream, a.lane, _columns(a))):
        rows = [row for append in run for row in append.rows]
        while rows:
            size = data.draw(st.integers(1, len(rows)), label="rows of a commit")
            appends.append(Append(stream, lane, rows[:size]))
            rows = rows[size:]
    with World(story.config) as first, World(story.config) as second:
        first.run(story.appends)
        second.run(appends)
        second.check()
        assert second.answer(second.table.snapshot().to_arrow()) == first.answer(first.table.snapshot().to_arrow())


def _columns(append: Append) -> tuple[str, ...]:
    return tuple(sorted(append.rows[0])) if append.rows else ()


_LATEST = {
    "key": ["k"],
    "partition_by": [],
    "buckets": 1,
    "columns": {"k": "int", "a": "string", "ts": "bigint"},
    "groups": {"g": {"columns": ["a", "ts"], "ordering": ["ts"]}},
    "streams": {"s": {"groups": ["g"], "on_delete": "group"}},
}
_TIE = [{"k": 1, "a": "first", "ts": 5}, {"k": 1, "a": "second", "ts": 5}, {"k": 1, "a": "older", "ts": 4}]


@given(stories())
@example(Story(_LATEST, [Append("s", "s", _TIE)]))
def test_pre_combining_a_batch_changes_nothing(story: Story) -> None:
    """M5: rows that lose to another row of the same batch in all their groups can be left out of the batch."""
    combined = [_pre_combined(story, step) if isinstance(step, Append) else step for step in story.steps]
    with World(story.config) as first, World(story.config) as second:
        first.run(story.steps)
        second.run(combined)
        second.check()
        assert second.answer(second.table.snapshot().to_arrow()) == first.answer(first.table.snapshot().to_arrow())


def _pre_combined(story: Story, append: Append) -> Append:
    """The batch without losing rows, if all groups of its stream are `latest`: in other modes losing rows count too."""
    oracle = Oracle(story.config)
    groups = [oracle.groups[name] for name in story.config["streams"][append.stream]["groups"]]
    if any(group.get("merge", "latest") != "latest" for group in groups):
        return append
    oracle.append(append.stream, append.rows, arrival=0)
    touching, winning = set(), set()
    for group in groups:
        newest: dict[tuple[object, ...], Event] = {}
        for event in oracle.events:
            if event.op == "retract" or not touches(event, group):
                continue
            touching.add(event.position)
            key = tuple(event.row[name] for name in oracle.key)
            if key not in newest or version(event, group["ordering"]) > version(newest[key], group["ordering"]):
                newest[key] = event
        winning.update(event.position for event in newest.values())
    losers = touching - winning
    return Append(append.stream, append.lane, [row for i, row in enumerate(append.rows) if i not in losers])


@given(stories(), st.data())
def test_replays_change_nothing(story: Story, data: st.DataObject) -> None:
    """M6: any batch may be replayed any number of times, by the same writer or by a new incarnation."""
    with World(story.config) as world:
        done: list[tuple[Append, tuple[str, int], int]] = []
        numbers: dict[str, int] = {}
        for step in story.steps:
            if not isinstance(step, Append):
                world.run([step])
                continue
            number = numbers[step.lane] = numbers.get(step.lane, 6) + 1
            batch = (f"query-{step.lane}", number)
            commit = world.append(step, batch)
            assert not commit.replayed
            done.append((step, batch, commit.seq))
            append, batch, seq = data.draw(st.sampled_from(done), label="replayed")
            if data.draw(st.booleans(), label="by a new incarnation"):
                world.reopen(append)
            again = world.append(append, batch)
            assert again.replayed
            assert again.seq == seq
        world.check()


@given(story=stories(max_steps=6))
def test_a_local_folder_gives_the_same_reads_as_memory(story: Story, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same history on a local folder: memory-mapped files instead of fetched ranges."""
    with World(story.config, str(tmp_path_factory.mktemp("table") / uuid.uuid4().hex)) as world:
        world.run(story.steps)
        world.check()
        assert Table.open(world.uri).snapshot().to_arrow().num_rows == len(world.expected())


@pytest.mark.extended
def test_drawn_histories_cover_every_case() -> None:
    """The strategy draws deletes, hidden rows, every mode and function, and remembered cuts."""
    expected = {"group", "row", "ignore", "composite", "partitioned", "several ordering columns", "supplied"}
    expected |= {*FUNCTIONS, *MODES, Append.__name__, Compact.__name__, Fold.__name__, Remember.__name__}
    assert undrawn_cases(stories(), _cases_of, expected) == set()


def _cases_of(story: Story) -> set[str]:
    config, rows = story.config, [(append.stream, row) for append in story.appends for row in append.rows]
    groups = config["groups"].values()
    cases = {type(step).__name__ for step in story.steps}
    cases |= {config["streams"][stream]["on_delete"] for stream, row in rows if row.get("_op") in {"D", "delete"}}
    cases |= {group.get("merge", "latest") for group in groups}
    cases |= {str(function_of(config, name)) for group in groups for name in group.get("functions", {})}
    if any(row.get("_supplied") for _, row in rows):
        cases.add("supplied")
    if len(config["key"]) > 1:
        cases.add("composite")
    if config["partition_by"]:
        cases.add("partitioned")
    if any(len(group["ordering"]) > 1 for group in groups):
        cases.add("several ordering columns")
    return cases

"""Random schema changes between events, compactions and folds, with old and new senders: reads equal the oracle."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.evolving import Change, Evolution, EvolvingWorld, Sent, evolutions
from tests.storage.support.world import bag, expected_bag, snapshot_bag
from tests.strategies import BALANCE, EVERY_GROUP, MODES, POOLS, Compact, mode_of
from tests.strategy_coverage import undrawn_cases
from weft.storage.core import keys
from weft.storage.core.merge.locate_keys import partition_text
from weft.storage.core.types import parse_type
from weft.storage.store.open_store import open_store

# The fixture only makes files small; it has no state that examples could share.
pytestmark = pytest.mark.usefixtures("small_files")


@pytest.mark.parametrize("modes", [MODES, ["latest_non_null"], ["aggregate"]], ids=["any", "partial", "aggregate"])
@given(data=st.data())
def test_every_read_equals_the_oracle_after_schema_changes(modes: list[str], data: st.DataObject) -> None:
    """Also at every remembered cut, which has the schema of its time."""
    evolution = data.draw(evolutions(modes=modes))
    with EvolvingWorld(evolution.config) as world:
        for step in evolution.steps:
            world.do(step)
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()


@given(evolutions(), st.data())
def test_every_projection_is_the_projection_of_the_whole(evolution: Evolution, data: st.DataObject) -> None:
    """M4, over files of all revisions; files that need no adaptation are also read with pyarrow alone."""
    with EvolvingWorld(evolution.config) as world:
        for step in evolution.steps:
            world.do(step)
            names = list(world.config["columns"])
            chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=4), label="columns")
            require = data.draw(st.lists(st.sampled_from(list(world.config["groups"])), unique=True, max_size=1))
            got = snapshot_bag(world.table.snapshot(), chosen, require=require)
            assert got == expected_bag(world.expected(require), chosen)
            _check_native(world, chosen)


def _check_native(world: EvolvingWorld, chosen: list[str]) -> None:
    scan = world.table.snapshot().scan(chosen)
    files = scan.clean_files
    if files is None or not chosen:
        return
    parts = []
    for file in files:
        data = open_store(world.uri).get(file.path)
        assert data is not None
        there = pq.read_table(io.BytesIO(data))
        missing = {name: pa.nulls(len(there), scan.arrow.field(name).type) for name in chosen}
        columns = [there.column(name) if name in there.column_names else missing[name] for name in chosen]
        parts.append(pa.table(columns, schema=scan.arrow))
    assert bag(pa.concat_tables(parts) if parts else scan.arrow.empty_table()) == expected_bag(world.expected(), chosen)


@given(evolutions(), st.data())
def test_compactions_and_folds_change_no_read_after_schema_changes(evolution: Evolution, data: st.DataObject) -> None:
    """M3: the same commits and changes under two histories of compactions."""
    with EvolvingWorld(evolution.config) as first, EvolvingWorld(evolution.config) as second:
        for step in (step for step in evolution.steps if isinstance(step, Sent | Change)):
            for world in (first, second):
                world.do(step)
                what = data.draw(st.sampled_from(["nothing", "fold", "compact"]), label="service")
                if what == "fold":
                    world.table.fold()
                elif what == "compact":
                    world.compact(Compact(data.draw(st.frozensets(st.integers(0, 7)), label="file groups")))
        first.check()
        second.check()
        assert second.answer(second.table.snapshot().to_arrow()) == first.answer(first.table.snapshot().to_arrow())


@pytest.mark.parametrize(("old", "new"), [("int", "bigint"), ("decimal(12,2)", "decimal(30,2)")])
def test_a_widened_key_has_the_same_file_group_and_order(old: str, new: str) -> None:
    """S15: this allows widening keys and partition columns. Smaller integers are stored as int anyway."""
    values = pa.array(POOLS[old], parse_type(old))
    wider = values.cast(parse_type(new))
    other = pa.array(["x"] * len(values))
    assert keys.encode_sort_key([values]) == keys.encode_sort_key([wider])
    for bits in (1, 8, 16):
        assert keys.buckets([values], bits).tolist() == keys.buckets([wider], bits).tolist()
        assert keys.buckets([other, values], bits).tolist() == keys.buckets([other, wider], bits).tolist()
    assert pc.rank(values).equals(pc.rank(wider))
    assert [partition_text(value) for value in values] == [partition_text(value) for value in wider]


@pytest.mark.slow
def test_drawn_evolutions_cover_every_kind_of_change() -> None:
    """The strategy draws every kind of change, groups of every mode, and senders that do not know the change."""
    expected = {"add_column", "add_group", "add_stream", "widen_column", "set_default", "set_comment", "an old sender"}
    expected |= {f"add_column {mode}" for mode in MODES if mode != "custom"}
    expected |= {f"add_group {BALANCE if mode == 'custom' else mode}" for mode in MODES}
    expected |= {"widen key", "widen ordering", "widen value"}
    assert undrawn_cases(evolutions(), _cases_of, expected) == set()


def _cases_of(evolution: Evolution) -> set[str]:
    cases, config, changes = set[str](), evolution.config, 0
    for step in evolution.steps:
        if isinstance(step, Change):
            config, changes = step.config, changes + 1
            cases.add(step.method)
            if step.method in {"add_column", "add_group"}:
                group = step.arguments["group" if step.method == "add_column" else "name"]
                cases.add(f"{step.method} {mode_of(config, group)}")
            if step.method == "widen_column":
                cases.add(f"widen {_part(step)}")
        elif isinstance(step, Sent) and step.version < changes and step.append.rows:
            cases.add("an old sender")
    return cases


def _part(change: Change) -> str:
    name, config = change.arguments["name"], change.config
    if name in config["key"]:
        return "key"
    return "ordering" if any(name in group["ordering"] for group in config["groups"].values()) else "value"

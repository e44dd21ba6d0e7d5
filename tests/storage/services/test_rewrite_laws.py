"""M8: after a rewrite the table shows what the same history with the changed values shows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, POOLS, Append, Compact, Story, mode_of, stories, type_of
from weft.storage.core.types import parse_type

pytestmark = pytest.mark.usefixtures("small_files")


@given(stories(max_steps=8), st.data())
def test_a_rewrite_changes_values_and_no_version(story: Story, data: st.DataObject) -> None:
    columns = [
        name
        for group, given_group in story.config["groups"].items()
        if mode_of(story.config, group) in {"latest", "latest_non_null"}
        for name in given_group["columns"]
        if name not in given_group["ordering"]
    ]
    assume(columns)
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            if isinstance(step, Append) and data.draw(st.booleans(), label="rewrite"):
                column = data.draw(st.sampled_from(columns), label="column")
                declared = type_of(story.config, column)
                value = data.draw(st.sampled_from(POOLS[declared]), label="value")
                kind = parse_type(declared)
                world.table.rewrite(column, lambda values, v=value, k=kind: pa.array([v] * len(values), k))
                world.oracle.rewrite(column, lambda _, v=value: v)
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()
        assert world.table.verify().ok

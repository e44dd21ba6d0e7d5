"""M7: after an erase the table shows what the same history without the erased events shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.erased import has_keys
from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Append, Compact, Story, stories
from weft.storage.core.names import Path

pytestmark = pytest.mark.usefixtures("small_files")


@given(stories(max_steps=8), st.data())
def test_an_erase_leaves_what_the_other_events_say(story: Story, data: st.DataObject) -> None:
    names = story.config["key"]
    known = sorted({tuple(row[name] for name in names) for step in story.appends for row in step.rows}, key=repr)
    with World(story.config) as world:
        for step in story.steps:
            world.run([step])
            if known and isinstance(step, Append) and data.draw(st.booleans(), label="erase"):
                keys = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True), label="keys")
                result = world.table.erase(keys, expire_snapshots=True)
                world.remembered.clear()  # the snapshots before it have expired
                world.oracle.erase(keys)
                assert result.complete, result.remains
                store = world.table.env.store
                for name, _ in store.list(Path("")):
                    stored = store.get(Path(name))
                    assert stored is not None
                    assert not has_keys(name, stored, story.config, keys), name
            world.check()
        world.compact(Compact(EVERY_GROUP))
        world.check()
        assert world.table.verify().ok

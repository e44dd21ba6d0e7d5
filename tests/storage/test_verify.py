"""Verify finds nothing wrong with tables that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Table
from storage.services.findings import VerifyReport
from tests.storage.history import STEPS, History
from tests.storage.world import World
from tests.strategies import EVERY_GROUP, Compact, Story, stories

pytestmark = pytest.mark.usefixtures("small_files")


def sound(report: VerifyReport) -> VerifyReport:
    assert report.ok, str(report)
    return report


@given(stories())
def test_a_table_of_any_shape_is_sound(story: Story) -> None:
    with World(story.config) as world:
        world.run(story.steps)
        sound(world.table.verify())
        world.compact(Compact(EVERY_GROUP))
        report = sound(Table.open(world.uri).verify())
        assert report.checked["entries"] > 0
        assert report.checked.get("rows", 0) >= len(world.expected())


@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=25))
def test_a_table_with_any_history_is_sound(steps: list[str]) -> None:
    history = History()
    for step in steps:
        history.run(step)
    sound(history.table.verify())
    sound(Table.open(history.table.uri).verify(deep=False))

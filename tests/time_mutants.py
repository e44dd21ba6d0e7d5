"""Mutants of what time and arrival mean: marks, times that are settled, undo since a time, commits in visible order."""

from __future__ import annotations

from tests.mutant import Mutant

ORDER = "tests/storage/test_arrival_order.py"

TIME_MUTANTS = {
    "W7 a writer does not look at other lanes before it commits": Mutant(
        "writer.py", "self._others.look(table)", "pass", (ORDER, "-k", "wins_though_its_clock_is_behind")
    ),
    "W7 a writer does not look for new lanes": Mutant(
        "other_lanes.py", "if tails.pop(TABLE_LANE):", "if tails.pop(TABLE_LANE) and False:", (ORDER, "-k", "was_added")
    ),
    "W7 every lane is looked at": Mutant(
        "core/modes/__init__.py", "if group.ordering:", "if False:", (ORDER, "-k", "only_lanes_that_share")
    ),
}

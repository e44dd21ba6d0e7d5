"""The mutation score, and when it counts as lower than before."""

from __future__ import annotations

import importlib.util

from tests.mutation_score import Score, lower, read_record, read_scores

RESULTS = """
    weft.storage.core.keys.x_sorted__mutmut_1: killed
    weft.storage.core.keys.x_sorted__mutmut_2: survived
    weft.storage.core.keys.xǁSearchǁstep__mutmut_1: timeout
    weft.storage.core.keys.x_unused__mutmut_1: no tests
    weft.storage.core.keys.x_constant__mutmut_1: skipped
    weft.storage.core.modes.latest.x_newer__mutmut_1: segfault
    weft.storage.core.modes.partial.x_top__mutmut_1: killed
    weft.storage.core.modes.partial.x_top__mutmut_2: not checked
"""


def test_hangs_and_crashes_count_as_found_and_unreached_mutants_do_not() -> None:
    scores = read_scores(RESULTS)
    assert scores == {"weft.storage.core.keys": Score(2, 4), "weft.storage.core.modes.latest": Score(1, 1)}
    assert str(scores["weft.storage.core.keys"]) == "2 of 4 mutants noticed (50.0 %)"


def test_a_module_is_worse_if_it_loses_more_than_the_tolerance() -> None:
    recorded = {"a": Score(90, 100), "b": Score(90, 100), "c": Score(90, 100)}
    now = {"a": Score(89, 100), "b": Score(87, 100), "c": Score(95, 100), "new": Score(1, 100)}
    assert lower(now, recorded) == ["b"]


def test_recorded_scores_are_of_existing_modules() -> None:
    for module, score in read_record().items():
        assert importlib.util.find_spec(module) is not None
        assert 0 < score.killed <= score.total

"""Schedules of the simulation beyond those of the full loop (`tests.test_simulation`)."""

from __future__ import annotations

import pytest

from tests.simulate import report
from tests.simulation.run import run_seed
from tests.test_simulation import FULL_SCHEDULES, PART, SCHEDULES, SEED

EXTENDED_SCHEDULES = 800
"""Up to here in the extended loop; the rest in the nightly loop, which also runs new ones for an hour."""
THEMES = {
    "references": 125,  # one schedule in twelve has two tables; here all have
    "publish": 75,  # few schedules publish; here operators do so most of the time
    "splits": 100,  # no other schedule changes the number of buckets
}
"""Schedules of a theme, in the extended loop."""

pytestmark = pytest.mark.skipif(SEED is not None, reason="SIM_SEED asks for one schedule")


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.extended if first < EXTENDED_SCHEDULES else pytest.mark.nightly)
        for first in range(FULL_SCHEDULES, SCHEDULES, PART)
    ],
)
def test_schedules(first: int) -> None:
    for seed in range(first, min(first + PART, SCHEDULES)):
        outcome = run_seed(seed)
        assert outcome.failure is None, report(outcome)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("theme", "schedules"), THEMES.items())
def test_schedules_of_a_theme(theme: str, schedules: int) -> None:
    for seed in range(schedules):
        outcome = run_seed(seed, theme)
        assert outcome.failure is None, report(outcome)

"""Schedules of the simulation beyond those of the full loop (`tests.test_simulation`)."""

from __future__ import annotations

import pytest

from tests.simulate import report
from tests.simulation.run import run_seed
from tests.test_simulation import FULL_SCHEDULES, PART, SCHEDULES, SEED

EXTENDED_SCHEDULES = 800
"""Up to here in the extended loop; the rest in the nightly loop, which also runs new ones for an hour."""
TWO_TABLES = 125
PUBLISHED = 75
SPLIT = 100

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
def test_schedules_of_two_tables() -> None:
    """One schedule in twelve has two tables; here all have."""
    for seed in range(TWO_TABLES):
        outcome = run_seed(seed, "references")
        assert outcome.failure is None, report(outcome)


@pytest.mark.extended
@pytest.mark.slow
def test_schedules_with_publications() -> None:
    """Few schedules publish; here operators do so most of the time."""
    for seed in range(PUBLISHED):
        outcome = run_seed(seed, "publish")
        assert outcome.failure is None, report(outcome)


@pytest.mark.extended
@pytest.mark.slow
def test_schedules_with_splits() -> None:
    """No other schedule changes the number of buckets."""
    for seed in range(SPLIT):
        outcome = run_seed(seed, "splits")
        assert outcome.failure is None, report(outcome)

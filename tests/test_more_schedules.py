"""Schedules of the simulation beyond those of the full loop (`tests.test_simulation`)."""

from __future__ import annotations

import pytest

from tests.simulate import report
from tests.simulation.run import run_seed
from tests.test_simulation import FULL_SCHEDULES, PART, SCHEDULES, SEED

EXTENDED_SCHEDULES = 300
"""Up to here in the extended loop; the rest in the nightly loop, which also runs new ones for an hour."""
THEMES = {
    "references": 20,  # one schedule in twelve has two tables; here all have
    "publish": 12,  # few schedules publish; here operators do so most of the time
    "splits": 15,  # few other schedules change the number of buckets
    "batches": 10,  # one schedule in six has batches without a query id
    "moments": 10,  # writers commit while snapshots are taken all the time, and follow what readers have seen
    "together": 10,  # the same with two tables
    "retire": 10,  # in no other theme lanes are retired before the schedule ends as often
    "checkpoints": 10,  # checkpoints are deleted and damaged while processes have read only a part of them
    "verified": 10,  # a verification after each action of an operator or compactor, in whatever state the table is
}
"""Schedules of a theme in the extended loop; the nightly loop runs `NIGHTLY_TIMES` as many."""
NIGHTLY_TIMES = 16

pytestmark = [
    pytest.mark.skipif(SEED is not None, reason="SIM_SEED asks for one schedule"),
    pytest.mark.timeout(900),
]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theme", "part"),
    [
        pytest.param(theme, part, marks=pytest.mark.nightly if part else pytest.mark.extended)
        for theme in THEMES
        for part in range(NIGHTLY_TIMES)
    ],
)
def test_schedules_of_a_theme(theme: str, part: int) -> None:
    for seed in range(THEMES[theme] * part, THEMES[theme] * (part + 1)):
        outcome = run_seed(seed, theme)
        assert outcome.failure is None, report(outcome)

"""The simulation, as tests: many schedules pass, and a seed replays exactly.

`SIM_SEED=n` runs only schedule n; `SIM_SCHEDULES=n` runs n schedules (for longer runs: `tests/simulate.py`).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from tests.simulate import report
from tests.simulation.faults import Fault
from tests.simulation.run import run_seed
from weft.storage.core.log.entries import LaneEntry, TableEntry

ROOT = Path(__file__).resolve().parents[1]
SEED = os.environ.get("SIM_SEED")
SCHEDULES = int(os.environ.get("SIM_SCHEDULES", "2000"))
PART = 125  # schedules per test, which take about twenty seconds
FIRST_PART = 50  # of the first test, all that the full loop runs
FULL_SCHEDULES = FIRST_PART + PART  # here; the others are in tests.test_more_schedules
PARTS = [(0, FIRST_PART), (FIRST_PART, FULL_SCHEDULES)]
REPLAYED = [3, 17, 71]  # one without faults, and two with all kinds of faults


@functools.cache
def met(first: int, end: int) -> tuple[Counter[Fault], Counter[str]]:
    """The faults and entries of schedules that pass."""
    faults: Counter[Fault] = Counter()
    entries: Counter[str] = Counter()
    for seed in range(first, min(end, SCHEDULES)):
        outcome = run_seed(seed)
        assert outcome.failure is None, report(outcome)
        faults.update(outcome.faults)
        entries.update(outcome.entries)
    return faults, entries


@pytest.mark.timeout(900)
@pytest.mark.skipif(SEED is not None, reason="SIM_SEED asks for one schedule")
@pytest.mark.parametrize(
    ("first", "end"), [pytest.param(*part, marks=pytest.mark.extended if part[0] else ()) for part in PARTS]
)
def test_schedules(first: int, end: int) -> None:
    met(first, end)


@pytest.mark.skipif(SEED is None, reason="SIM_SEED names a schedule")
def test_this_schedule() -> None:
    outcome = run_seed(int(SEED or 0))
    print(f"trace {outcome.trace_hash}")
    assert outcome.failure is None, report(outcome, len(outcome.trace))


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.skipif(SEED is not None or SCHEDULES < 2 * PART, reason="few schedules do not meet everything")
def test_every_kind_of_fault_and_entry_occurred() -> None:
    faults, entries = met(*PARTS[-1])
    assert set(Fault) - set(faults) == set()
    kinds = {kind.model_fields["kind"].default for kind in (*get_args(TableEntry), *get_args(LaneEntry))}
    assert kinds - set(entries) == set()


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_exactly(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert len(first.trace) > 50
    assert first.trace == second.trace


def test_a_schedule_of_two_tables_replays_exactly() -> None:
    first, second = run_seed(REPLAYED[0], "references"), run_seed(REPLAYED[0], "references")
    assert first.failure is None, report(first)
    assert sum("referenced:" in line for line in first.trace) > 50
    assert first.trace == second.trace


@pytest.mark.slow
def test_a_seed_replays_exactly_in_another_process() -> None:
    """Nothing depends on the hashes of strings, which differ from process to process."""
    hashes = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "simulate.py"), "--seed", str(REPLAYED[-1])],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=280,
            check=True,
        )
        hashes.add(run.stdout.splitlines()[-1])
    assert len(hashes) == 1
    assert run_seed(REPLAYED[-1]).trace_hash in hashes.pop()

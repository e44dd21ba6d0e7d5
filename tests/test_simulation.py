"""The simulation, as tests: many schedules pass, a seed replays exactly, and every broken version of the code is found.

`SIM_SEED=n` runs only schedule n; `SIM_SCHEDULES=n` runs n schedules (for longer runs: `tests/simulate.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest

from storage.core.log.entries import LaneEntry, TableEntry
from storage.core.plan.reservation import SHORTEST_RESERVATION_MS
from storage.services import compaction, service_plan
from tests.simulate import report
from tests.simulation.faults import Fault
from tests.simulation.mutant import MAX_SCHEDULES, mutated
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import run_seed

ROOT = Path(__file__).resolve().parents[1]
SEED = os.environ.get("SIM_SEED")
SCHEDULES = int(os.environ.get("SIM_SCHEDULES", "2000"))
PART = 125  # schedules per test, which take about ten seconds
FIRST_PART = 50  # of the first test, which the fast loop runs
TWO_TABLES = 125
FULL_SCHEDULES = 175  # in the full loop; the extended loop runs the others
PARTS = [(0, FIRST_PART), *((first, first + PART) for first in range(FIRST_PART, SCHEDULES, PART))]
REPLAYED = [3, 17, 71]  # one without faults, and two with all kinds of faults

_faults: Counter[Fault] = Counter()
_entries: Counter[str] = Counter()


def _marks(first: int) -> tuple[pytest.MarkDecorator, ...]:
    if first >= FULL_SCHEDULES:
        return (pytest.mark.extended,)
    return (pytest.mark.slow,) if first else ()


@pytest.mark.skipif(SEED is not None, reason="SIM_SEED asks for one schedule")
@pytest.mark.parametrize(("first", "end"), [pytest.param(*part, marks=_marks(part[0])) for part in PARTS])
def test_schedules(first: int, end: int) -> None:
    for seed in range(first, min(end, SCHEDULES)):
        outcome = run_seed(seed)
        assert outcome.failure is None, report(outcome)
        _faults.update(outcome.faults)
        _entries.update(outcome.entries)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.skipif(SEED is not None, reason="SIM_SEED asks for one schedule")
def test_schedules_of_two_tables() -> None:
    """One schedule in twelve has two tables; here all have."""
    for seed in range(TWO_TABLES):
        outcome = run_seed(seed, "references")
        assert outcome.failure is None, report(outcome)


@pytest.mark.skipif(SEED is None, reason="SIM_SEED names a schedule")
def test_this_schedule() -> None:
    outcome = run_seed(int(SEED or 0))
    print(f"trace {outcome.trace_hash}")
    assert outcome.failure is None, report(outcome, len(outcome.trace))


@pytest.mark.slow
@pytest.mark.skipif(SEED is not None or SCHEDULES < 2 * PART, reason="few schedules do not meet everything")
def test_every_kind_of_fault_and_entry_occurred() -> None:
    assert set(Fault) - set(_faults) == set()
    kinds = {kind.model_fields["kind"].default for kind in (*get_args(TableEntry), *get_args(LaneEntry))}
    assert kinds - set(_entries) == set()


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
            timeout=120,
            check=True,
        )
        hashes.add(run.stdout.splitlines()[-1])
    assert len(hashes) == 1
    assert run_seed(REPLAYED[-1]).trace_hash in hashes.pop()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (compaction._Work, "_still_needed", lambda _self, task, _state: task),
        (compaction._Work, "_look", lambda work: work.table_log.refresh()),
        (compaction, "next_share", lambda _plan, plans, keys: [len(plans) % len(keys)]),
        (service_plan, "next_reservation_ms", lambda _attempts, _longest: SHORTEST_RESERVATION_MS),
        (compaction, "must_yield", lambda *_, **__: False),
    ],
    ids=[
        "others are not seen",
        "a closed plan is not seen",
        "another order",
        "every rewrite reserves the table",
        "a reserved table is not seen",
    ],
)
def test_no_result_depends_on_how_compactions_share_work(where: Any, name: str, broken: Any) -> None:
    with mock.patch.object(where, name, broken):
        for seed in range(FIRST_PART):
            outcome = run_seed(seed)
            assert outcome.failure is None, report(outcome)


@pytest.mark.extended
@pytest.mark.timeout(900)  # most are found in seconds; the rarest after some hundred schedules, on a busy machine
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if mutant.rare else ()) for name, mutant in MUTANTS.items()],
)
def test_a_mutant_is_found(name: str) -> None:
    with mutated(MUTANTS[name]):
        found = next((seed for seed in range(MAX_SCHEDULES) if MUTANTS[name].is_found(seed)), None)
    assert found is not None, f"{MAX_SCHEDULES} schedules did not notice"
    print(f"found by schedule {found}")


def test_every_invariant_has_a_mutant() -> None:
    protocol = (ROOT / "storage" / "PROTOCOL.md").read_text(encoding="utf-8")
    invariants = set(re.findall(r"^\| ([SL]\d+) \|", protocol, re.MULTILINE))
    assert len(invariants) > 25
    # Whether a publish ends depends only on its loop: a model shows it (lane_live_no_deadline).
    assert invariants - {name.split()[0] for name in MUTANTS} == {"L2"}

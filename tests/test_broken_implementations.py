"""Every broken version of the code is found by the simulation, and rules that only save work change no result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.simulate import report
from tests.simulation.mutant import MAX_SCHEDULES
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import run_seed
from tests.simulation.seeds import find_seed
from weft.storage.core.plan.reservation import SHORTEST_RESERVATION_MS
from weft.storage.services.compaction import compaction
from weft.storage.services.steps import service_plan

ROOT = Path(__file__).resolve().parents[1]
SCHEDULES = 25  # with every rule that only saves work switched off; the nightly loop runs as many again


@pytest.mark.extended
@pytest.mark.timeout(3_600)  # the recorded schedule takes a second, a search for a rare mutant minutes
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if mutant.rare else ()) for name, mutant in MUTANTS.items()],
)
def test_a_mutant_is_found(name: str) -> None:
    seed = find_seed(name)
    assert seed is not None, f"{MAX_SCHEDULES} schedules did not notice"
    print(f"found by schedule {seed}")


def test_every_invariant_has_a_mutant() -> None:
    protocol = (ROOT / "storage" / "PROTOCOL.md").read_text(encoding="utf-8")
    invariants = set(re.findall(r"^\| ([SL]\d+) \|", protocol, re.MULTILINE))
    assert len(invariants) > 25
    # Whether a publish ends depends only on its loop: a model shows it (lane_live_no_deadline).
    assert invariants - {name.split()[0] for name in MUTANTS} == {"L2"}


def test_documents_say_how_many_there_are() -> None:
    said = (
        (ROOT / "README.md").read_text(encoding="utf-8"),
        (ROOT / "deploy/docs/survives.md").read_text(encoding="utf-8"),
    )
    assert f"{len(MUTANTS)} copies of the code with one rule broken on purpose" in " ".join(said[0].split())
    assert f"| implementations that break one rule of the protocol | {len(MUTANTS)}," in said[1]


def test_of_each_rule_the_extended_loop_looks_for_a_mutant() -> None:
    common = {name.split()[0] for name, mutant in MUTANTS.items() if not mutant.rare}
    assert {name.split()[0] for name in MUTANTS} - common == {"K4"}, "these have only rare ones"


def test_what_mutants_replace_exists() -> None:
    """The loop that looks for mutants is not run for each change; what was renamed is noticed here."""
    assert [name for name, mutant in MUTANTS.items() if not hasattr(mutant.where, mutant.name)] == []


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(SCHEDULES, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (compaction._Work, "_still_needed", lambda _self, task, _state: task),
        (compaction._Work, "_refresh", lambda work: work.table_log.refresh()),
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
def test_no_result_depends_on_how_compactions_share_work(where: Any, name: str, broken: Any, first: int) -> None:
    with mock.patch.object(where, name, broken):
        for seed in range(first, first + SCHEDULES):
            outcome = run_seed(seed)
            assert outcome.failure is None, report(outcome)

"""Run schedules of the simulation from the command line.

    python tests/simulate.py --seed 17              one schedule again, with its trace
    python tests/simulate.py --schedules 2000       this many, from --first on
    python tests/simulate.py --hours 8 --jobs 4     for this time; prints totals as it goes

Exits with status 1 at the first schedule that violates an invariant, and prints how to replay it.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.faults import Fault
from tests.simulation.mutant import mutated
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import ASKED_FOR, THEMES
from tests.simulation.run import Outcome, run_seed

CHUNK = 20  # schedules that a job runs at a time: about a second
REPORT_SECONDS = 10
TRACE_LINES = 60


def run_chunk(first: int, count: int, mutant: str | None, theme: str | None) -> list[Outcome]:
    """Outcomes up to the first failure; only that one keeps its trace."""
    outcomes = []
    with mutated(MUTANTS[mutant]) if mutant else nullcontext():
        for seed in range(first, first + count):
            outcome = run_seed(seed, _theme(mutant, theme))
            if outcome.failure is not None:
                return [*outcomes, outcome]
            outcomes.append(dataclasses.replace(outcome, trace=[]))
    return outcomes


def _theme(mutant: str | None, theme: str | None) -> str | None:
    """The theme of the schedules that search for a mutant, so that a seed gives the same schedule as in its test."""
    return MUTANTS[mutant].theme if mutant else theme


def report(outcome: Outcome, lines: int = TRACE_LINES) -> str:
    """The last steps of a failed schedule, and how to replay it."""
    theme = "" if outcome.theme is None else f" --theme {outcome.theme}"
    replays = [f"replay: python tests/simulate.py --seed {outcome.seed}{theme}"]
    if not theme:
        replays.append(f"        SIM_SEED={outcome.seed} python -m pytest tests/test_simulation.py")
    return "\n".join(
        [
            *outcome.trace[-lines:],
            "",
            f"seed {outcome.seed}: {outcome.failure}",
            "",
            *replays,
        ]
    )


class Totals:
    """The totals so far."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.schedules = self.steps = self.reads = 0
        self.entries: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.steps += outcome.steps
        self.entries += outcome.entries
        self.reads += outcome.reads
        self.faults += outcome.faults

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        return (
            f"{self.schedules} schedules ({self.schedules / seconds:.1f}/s), {self.steps} steps "
            f"({self.steps / seconds:.0f}/s), {self.entries.total()} entries, {self.reads} reads, "
            f"{self.faults.total()} faults"
        )


def run_many(
    first: int, schedules: int | None, seconds: float | None, jobs: int, mutant: str | None, theme: str | None
) -> int:
    """Run until the number or the time is reached, or a schedule fails; returns the exit status."""
    totals, reported = Totals(), time.monotonic()
    chunks = _chunks(first, schedules)
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(run_chunk, *chunk, mutant, theme) for chunk in itertools.islice(chunks, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in itertools.chain.from_iterable(future.result() for future in done):
                totals.add(outcome)
                if outcome.failure is not None:
                    print(f"{report(outcome)}\n\n{totals}")
                    pool.shutdown(cancel_futures=True)
                    return 1
            if seconds is None or time.monotonic() - totals.started < seconds:
                running |= {
                    pool.submit(run_chunk, *chunk, mutant, theme) for chunk in itertools.islice(chunks, len(done))
                }
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(totals, flush=True)
    print(totals)
    for what, count in [*sorted(totals.entries.items()), *sorted(totals.faults.items())]:
        print(f"{count:10} {what}")
    return 0


def _chunks(first: int, schedules: int | None) -> Iterator[tuple[int, int]]:
    if schedules is None:
        return ((seed, CHUNK) for seed in itertools.count(first, CHUNK))
    end = first + schedules
    return ((seed, min(CHUNK, end - seed)) for seed in range(first, end, CHUNK))


def run_one(seed: int, mutant: str | None, theme: str | None) -> int:
    """Run one schedule and print its whole trace; returns the exit status."""
    with mutated(MUTANTS[mutant]) if mutant else nullcontext():
        outcome = run_seed(seed, _theme(mutant, theme))
    print(report(outcome, len(outcome.trace)) if outcome.failure else "\n".join(outcome.trace))
    print(
        f"seed {seed}: {outcome.steps} steps, trace {outcome.trace_hash}, {'FAILED' if outcome.failure else 'passed'}"
    )
    return 1 if outcome.failure else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="replay this schedule")
    parser.add_argument("--hours", type=float, help="duration of the run")
    parser.add_argument("--schedules", type=int, help="number of schedules to run")
    parser.add_argument("--first", type=int, help="seed of the first schedule; by default one that was never run")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--mutant", choices=MUTANTS, help="name of the mutant to run")
    parser.add_argument("--theme", choices=[*THEMES, *ASKED_FOR], help="mix of actions; by default a seed decides")
    given = parser.parse_args()
    if given.seed is not None:
        return run_one(given.seed, given.mutant, given.theme)
    if given.hours is None and given.schedules is None:
        parser.error("give --seed, --hours or --schedules")
    first = given.first if given.first is not None else time.time_ns() // 1_000_000
    print(f"seeds from {first}", flush=True)
    return run_many(first, given.schedules, given.hours and given.hours * 3600, given.jobs, given.mutant, given.theme)


if __name__ == "__main__":
    sys.exit(main())

"""Mutation score of the merge kernel: the share of mutmut's mutants that the tests find, per module, and the recorded
scores.

    python -m tests.mutation_score             run; continues where the last run was stopped (folder `mutants`)
    python -m tests.mutation_score --record    the same, and record the scores in mutation_score.json
    python -m tests.mutation_score --only weft.storage.core.modes.latest

pyproject.toml ([tool.mutmut]) defines which modules are mutated and which tests run. A surviving mutant is a line that
no test covers, or a change that makes no difference: ``mutmut results`` and ``mutmut show NAME`` show which. Exits with
status 1 if a module has a lower score than the recorded one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = Path(__file__).with_name("mutation_score.json")
SLACK_PERCENT: Final = 2.0
"""Tolerance, because new code adds new mutants: a smaller decrease of a score is accepted."""
NOTICED: Final = frozenset({"killed", "timeout", "suspicious", "segfault"})
NOT_RUN: Final = frozenset({"not checked", "check was interrupted by user"})
NO_MUTANT: Final = frozenset({"skipped"})


class Score(NamedTuple):
    """The number of mutants, and how many of them a test finds; hangs and crashes count as found."""

    killed: int
    total: int

    @property
    def percent(self) -> float:
        return 100 * self.killed / self.total

    def __str__(self) -> str:
        return f"{self.killed} of {self.total} mutants noticed ({self.percent:.1f} %)"


def read_scores(results: str) -> dict[str, Score]:
    """Score of each module, from the output of ``mutmut results --all true``.

    A module has no score if not all of its mutants were run.
    """
    counts: dict[str, Counter[str]] = {}
    for line in results.splitlines():
        name, separator, status = line.strip().partition(": ")
        if separator:
            counts.setdefault(name.rpartition(".")[0], Counter())[status] += 1
    scores = {}
    for module, by_status in sorted(counts.items()):
        total = sum(count for status, count in by_status.items() if status not in NO_MUTANT)
        if total and not any(by_status[status] for status in NOT_RUN):
            scores[module] = Score(sum(by_status[status] for status in NOTICED), total)
    return scores


def read_record() -> dict[str, Score]:
    """The recorded scores, per module."""
    return {module: Score(*counts) for module, counts in json.loads(RECORD.read_text(encoding="utf-8")).items()}


def lower(scores: Mapping[str, Score], recorded: Mapping[str, Score]) -> list[str]:
    """Modules whose score is lower than the recorded one by more than the tolerance."""
    return [
        module
        for module, score in scores.items()
        if module in recorded and score.percent < recorded[module].percent - SLACK_PERCENT
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the scores of the modules that were run")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--only", nargs="*", default=[], metavar="MODULE", help="mutate only these modules")
    given = parser.parse_args()
    mutmut = [sys.executable, "-m", "mutmut"]
    chosen = [f"{module}.*" for module in given.only]
    subprocess.run([*mutmut, "run", "--max-children", str(given.jobs), *chosen], cwd=ROOT, check=True)
    results = [*mutmut, "results", "--all", "true"]
    scores = read_scores(subprocess.run(results, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    recorded = read_record()
    for module, score in scores.items():
        print(f"{module:40} {score}; recorded: {recorded.get(module, 'nothing')}")
    if given.record:
        written = {module: [*score] for module, score in sorted({**recorded, **scores}.items())}
        RECORD.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    worse = lower(scores, recorded)
    whole = Score(sum(score.killed for score in scores.values()), sum(score.total for score in scores.values()))
    print(f"{whole if scores else 'no module was run to its end'}; lower than recorded: {', '.join(worse) or 'none'}")
    return 1 if worse or not scores else 0


if __name__ == "__main__":
    sys.exit(main())

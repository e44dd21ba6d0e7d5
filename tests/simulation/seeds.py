"""The first schedule that finds each mutant, recorded so that its test runs one schedule instead of a search.

    python -m tests.simulation.seeds             search for common mutants that the recorded schedule does not find
    python -m tests.simulation.seeds --anew      search for all mutants

Any change of the requests that the code makes to its store makes other schedules, so a recorded one may no longer find
its mutant. Then the test searches for another one, which takes longer. The nightly loop searches anew for all.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.simulation.mutant import MAX_SCHEDULES, mutated
from tests.simulation.mutants import MUTANTS

FILE: Final = Path(__file__).with_name("seeds.tsv")
"""A line for each mutant: the seed, a tab, its name."""


@functools.cache
def recorded() -> Mapping[str, int]:
    """The recorded seed of each mutant, by its name."""
    lines = (line.split("\t", 1) for line in FILE.read_text(encoding="utf-8").splitlines())
    return {name: int(seed) for seed, name in lines}


def find_seed(name: str) -> int | None:
    """The recorded seed if its schedule still finds the mutant, otherwise the first that does; None if none does."""
    seed = recorded().get(name)
    if seed is not None:
        with mutated(MUTANTS[name]):
            if MUTANTS[name].is_found(seed):
                return seed
    return search(name)


def search(name: str) -> int | None:
    """The first seed whose schedule finds the mutant, of `MAX_SCHEDULES`."""
    with mutated(MUTANTS[name]):
        return next((seed for seed in range(MAX_SCHEDULES) if MUTANTS[name].is_found(seed)), None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="seeds", description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--anew", action="store_true", help="search for all mutants from the first schedule on")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        names = [name for name, mutant in MUTANTS.items() if options.anew or not mutant.rare]
        results = dict(zip(names, pool.map(search if options.anew else find_seed, names), strict=True))
    seeds = {**recorded(), **results}
    lines = [f"{seeds[name]}\t{name}\n" for name in MUTANTS if seeds.get(name) is not None]
    FILE.write_text("".join(lines), encoding="utf-8")
    missed = [name for name, seed in results.items() if seed is None]
    print(f"{len(results) - len(missed)} of {len(results)} mutants are found")
    for name in missed:
        print(f"{MAX_SCHEDULES} schedules did not notice: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

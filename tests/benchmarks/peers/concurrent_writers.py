"""Two writers at the same time: each commits new values of its own group, for the very same keys.

The two threads of a pair start together, in one Spark application. A commit that fails is counted, and sent again by
itself, so that the rows at the end can be compared with the oracle; what the format repeats by itself does not count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.peers.dataset import Batch
from tests.benchmarks.peers.queries import wrong_rows
from tests.benchmarks.peers.system import System


def measure(system: System, say: Callable[[str], None]) -> dict[str, Any]:
    """Commit all pairs; returns numbers of commits, of failed ones, and of wrong rows."""
    data = system.data
    system.create(concurrent=True)
    system.load(data.load)
    failed, lost, causes = 0, 0, set()
    for pair in data.rounds():
        started = time.perf_counter()
        errors = _commit_at_once(system, pair)
        say(f"pair {pair[0].round}: {time.perf_counter() - started:.1f} s, {len(errors)} failed")
        failed += len(errors)
        for batch, error in errors:
            causes.add(cause_of(error))
            try:
                system.commit(data.path(batch), batch.group)
            except Exception as error_again:
                lost += 1
                causes.add(cause_of(error_again))
    system.refresh()
    return {
        "commits": len(data.batches),
        "failed": failed,
        "failed again": lost,
        "causes": sorted(causes),
        "wrong rows": wrong_rows(system.spark, system.table, data),
    }


def _commit_at_once(system: System, pair: Sequence[Batch]) -> list[tuple[Batch, Exception]]:
    barrier = threading.Barrier(len(pair))
    errors: list[tuple[Batch, Exception]] = []

    def write(batch: Batch) -> None:
        barrier.wait()
        try:
            system.commit(system.data.path(batch), batch.group)
        except Exception as error:
            errors.append((batch, error))

    threads = [threading.Thread(target=write, args=(batch,)) for batch in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def cause_of(error: Exception) -> str:
    """The first line that says what failed: errors of Java begin with the name of the call."""
    lines = [line.removeprefix(": ") for line in str(error).splitlines()]
    told = (line for line in lines if line and not line.startswith("An error occurred while calling"))
    return next(told, type(error).__name__)[:200]

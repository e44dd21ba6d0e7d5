"""Services of a pipeline, each a process beside the writers. In this version there is one: compaction.

    python -m streams.services PIPELINE [--once]

No Spark here: compaction works on Arrow in this process, one file group after the other. No writer ever waits for it,
and it may be killed at any time: what it had not published is garbage that nobody refers to. On SIGTERM the round in
hand is finished.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from streams.status import Reporter, StopSignal, describe, ending_of

if TYPE_CHECKING:
    from storage import Table
    from streams.pipeline_model import CompactionSection

MAX_FAILURES: Final = 5  # rounds in a row; then the process ends, and its supervisor decides
MAX_BACK_OFF_SECONDS: Final = 300.0  # a store that was away for hours is noticed again within minutes
STOP_SECONDS: Final = 60.0  # a round folds at most the logs of one interval; a killed one is only done again


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; returns the process's exit code."""
    stop, reporter = StopSignal(), Reporter.from_environment()
    parser = argparse.ArgumentParser(prog="streams.services", description="The compaction service of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("--once", action="store_true", help="compact whatever has logs, then end")
    given = parser.parse_args(arguments)
    reporter.update(doing="starting")
    try:
        from storage import Table
        from streams.pipeline import load_pipeline
        from streams.pipeline_model import CompactionSection

        pipeline = load_pipeline(given.pipeline)
        table = Table.open(pipeline.table.uri, storage_options=pipeline.table.storage_options)
        if given.once:
            compact_round(table, None, reporter)
        else:
            compact_until(stop, table, pipeline.compaction or CompactionSection(), reporter)
    except Exception as error:
        traceback.print_exc()
        reporter.update(doing="failed", message=describe(error))
        return ending_of(error)
    reporter.update(doing="ended")
    return 0


def compact_until(stop: StopSignal, table: Table, policy: CompactionSection, reporter: Reporter) -> None:
    """Look every so often until told to stop.

    Raises:
        Exception: That of the last of `MAX_FAILURES` rounds that failed in a row.
    """
    failures = 0
    delay = 0.0
    while not stop.wait(delay):
        started = time.monotonic()
        try:
            compact_round(table, policy, reporter)
        except Exception as error:
            failures += 1
            if failures >= MAX_FAILURES:
                raise
            traceback.print_exc()
            pause = min(policy.every * 2**failures, max(MAX_BACK_OFF_SECONDS, policy.every))
            reporter.update(doing="waiting", message=f"{describe(error)}; next try in {pause:.0f} s")
            delay = pause
        else:
            failures = 0
            delay = max(0.0, policy.every - (time.monotonic() - started))


def compact_round(table: Table, policy: CompactionSection | None, reporter: Reporter) -> None:
    """Compact what is due, all that has logs without a policy, and tell."""
    from storage.core.compaction_plan import plan_due

    only = None
    if policy is not None:
        snapshot = table.snapshot()
        due = plan_due(
            snapshot.slices,
            snapshot.files,
            snapshot.cut.lanes,
            min_commits=policy.min_commits,
            max_log_ratio=policy.max_log_ratio,
        )
        if not due:
            reporter.update(doing="idle")
            return
        # All of them in one go is more than each of them: see `storage.core.compaction_plan`.
        if len(due) < sum(1 for file_slice in snapshot.slices if len(file_slice.rows)):
            only = due
    reporter.update(doing="compacting")
    result = table.compact() if only is None else table.compact(lambda file_slice: file_slice.group in only)
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    done = f"{len(result.done)} file groups{skipped}"
    last = reporter.report
    reporter.update(
        doing="idle",
        commits=last.commits + bool(result.done),
        rows=last.rows + result.rows,
        committed_at_ms=time.time_ns() // 1_000_000 if result.done else last.committed_at_ms,
        message=f"{done}, {result.bytes_read / 1e6:.1f} MB folded in {result.seconds:.1f} s",
    )


if __name__ == "__main__":
    sys.exit(main())

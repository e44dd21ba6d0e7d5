"""The services of a pipeline, each a process: compaction (with folding), and cleaning.

    python -m streams.pipeline.services PIPELINE [--service compaction|clean] [--once]

A service works with Arrow in its process, without Spark. Writers never wait for it, and it may be killed at any time:
unpublished files of a compaction are garbage, and the next cleaning continues where one was killed. On SIGTERM the
current round is finished.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from streams.pipeline.error_kinds import Ending, describe, ending_of, is_outage
from streams.pipeline.outage import JobOutages, pause_seconds, store_name
from streams.pipeline.status import Reporter, StopSignal

if TYPE_CHECKING:
    from storage import Table
    from storage.engine import CompactionResult, FoldResult
    from streams.pipeline.model import CleanSection, CompactionSection, Pipeline

COMPACTION: Final = "compaction"
CLEAN: Final = "clean"

MAX_FAILURES: Final = 5  # consecutive failed rounds after which the process ends; its supervisor may restart it
MAX_BACK_OFF_SECONDS: Final = 300.0  # the end of a long outage is noticed within this time
STOP_SECONDS: Final = 60.0  # time to finish a round; a killed round is repeated

Round = Callable[[], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; returns the exit code of the process."""
    stop, reporter = StopSignal(), Reporter.from_environment()
    parser = argparse.ArgumentParser(prog="streams.pipeline.services", description="A service of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("--service", choices=(COMPACTION, CLEAN), default=COMPACTION)
    parser.add_argument("--once", action="store_true", help="one round: compact whatever has logs, or clean; then end")
    given = parser.parse_args(arguments)
    reporter.update(doing="starting")
    try:
        from storage import Table
        from storage.engine import check_reachable
        from streams.pipeline.pipeline import load_pipeline

        pipeline = load_pipeline(given.pipeline)
        location, outages = pipeline.table, JobOutages(reporter, stop)

        def open_table() -> Table:
            check_reachable(location.uri, location.storage_options)
            return Table.open(location.uri, storage_options=location.storage_options)

        what = store_name(location.uri)
        table = open_table() if given.once else outages.wait_out(open_table, what)
        if table is None:
            return Ending.DONE
        every, work = _service(given.service, pipeline, table, reporter, once=given.once)
        if given.once:
            work()
        else:
            repeat(stop, every, work, reporter, what)
    except Exception as error:
        traceback.print_exc()
        reporter.update(doing="failed", message=describe(error))
        return ending_of(error)
    reporter.update(doing="ended")
    return 0


def _service(service: str, pipeline: Pipeline, table: Table, reporter: Reporter, *, once: bool) -> tuple[float, Round]:
    """The interval between rounds in seconds, and the function that runs one round."""
    from streams.pipeline.model import CleanSection, CompactionSection

    if service == CLEAN:
        clean = pipeline.clean or CleanSection()
        return clean.every, lambda: clean_round(table, clean, reporter)
    compaction = pipeline.compaction or CompactionSection()
    return compaction.every, lambda: compact_round(table, None if once else compaction, reporter)


def repeat(stop: StopSignal, every: float, work: Round, reporter: Reporter, store: str = "the store") -> None:
    """Run rounds until the service has to stop. Wait for outages of the store to end.

    Args:
        stop: Set when the service has to stop.
        every: Seconds from the start of one round to the start of the next.
        work: The round.
        reporter: Reports failed rounds and outages.
        store: Name of the store, for the report of an outage.

    Raises:
        Exception: The error of the last round, after `MAX_FAILURES` consecutive failed rounds. Outages do not count.
    """
    outages = JobOutages(reporter, stop)
    failures = silences = 0
    delay = 0.0
    while not stop.wait(delay):
        started = time.monotonic()
        try:
            work()
        except Exception as error:
            if is_outage(error):
                silences += 1
                outages.began(store, describe(error))
                delay = max(every, pause_seconds(silences))
                continue
            outages.ended(store)
            failures += 1
            if failures >= MAX_FAILURES:
                raise
            traceback.print_exc()
            pause = min(every * 2**failures, max(MAX_BACK_OFF_SECONDS, every))
            reporter.update(doing="waiting", message=f"{describe(error)}; next try in {pause:.0f} s")
            delay = pause
        else:
            failures = silences = 0
            outages.ended(store)
            reporter.update(progress=reporter.report.progress + 1)
            delay = max(0.0, every - (time.monotonic() - started))


def compact_round(table: Table, policy: CompactionSection | None, reporter: Reporter) -> None:
    """Compact what is due (everything, without a policy), fold if due, and report."""
    reporter.update(doing="compacting")
    compacted = table.compact() if policy is None else compact_due(table, policy)
    if compacted is not None:
        skipped = f", {len(compacted.skipped)} skipped" if compacted.skipped else ""
        done = f"{len(compacted.done)} file groups{skipped}"
        message = f"{done}, {compacted.bytes_read / 1e6:.1f} MB compacted in {compacted.seconds:.1f} s"
        _done(reporter, message, counts=bool(compacted.done), rows=compacted.rows)
    folded = None if policy is None else fold_due(table, policy)
    if folded is not None:
        result, waited = folded
        message = f"{waited} commits, {result.bytes_read / 1e6:.1f} MB folded in {result.seconds:.1f} s"
        _done(reporter, message, counts=bool(result.done), rows=result.rows)
    reporter.update(doing="idle")


def compact_due(table: Table, policy: CompactionSection) -> CompactionResult | None:
    """Compact what is due; None if nothing is."""
    from storage import engine

    return engine.compact_due(table, min_commits=policy.min_commits, max_log_ratio=policy.max_log_ratio)


def fold_due(table: Table, policy: CompactionSection) -> tuple[FoldResult, int] | None:
    """Fold if enough commits are in neither slices nor folds.

    Returns:
        The result and the number of such commits; None if there were too few.
    """
    if policy.fold_commits is None:
        return None
    waiting = {(file.lane, file.seq) for file in table.snapshot().files if not file.is_fold}
    return None if len(waiting) < policy.fold_commits else (table.fold(), len(waiting))


def clean_round(table: Table, policy: CleanSection, reporter: Reporter) -> None:
    """Delete what is not needed any more, and report."""
    reporter.update(doing="cleaning")
    result = table.clean(
        retain=dt.timedelta(seconds=policy.retain),
        versions=policy.versions,
        abandon_after=dt.timedelta(seconds=policy.abandon_after),
    )
    message = f"{result.files} files, {result.bytes / 1e6:.1f} MB deleted"
    if result.archived:
        message += f", {result.archived} entries archived"
    _done(reporter, message, counts=bool(result.files or result.archived), rows=0)


def _done(reporter: Reporter, message: str, *, counts: bool, rows: int) -> None:
    last = reporter.report
    reporter.update(
        doing="idle",
        commits=last.commits + counts,
        rows=last.rows + rows,
        committed_at_ms=time.time_ns() // 1_000_000 if counts else last.committed_at_ms,
        message=message,
    )


if __name__ == "__main__":
    sys.exit(main())

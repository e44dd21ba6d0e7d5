"""Runs a service of a pipeline in a process: compaction (with folding), time to live, publishing, or cleaning.

    python -m weft.streams.pipeline.run.services PIPELINE [--service compaction|ttl|publish|clean] [--once]

A service works with Arrow in its process, without Spark; `weft.streams.write.cluster_job` compacts on a cluster.
Writers never wait for a service, and it may be killed at any time: cleaning deletes unpublished files of a compaction,
and the next cleaning continues where one was killed. On SIGTERM the current round is finished.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from weft.streams.pipeline.run.error_kinds import Ending, describe, ending_of, is_outage
from weft.streams.pipeline.run.outage import JobOutages, pause_seconds, store_name
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.stop_signal import StopSignal

if TYPE_CHECKING:
    from weft.storage import Table
    from weft.storage.services.steps.tasks import Execute
    from weft.streams.pipeline.file.model import Pipeline

COMPACTION: Final = "compaction"
TTL: Final = "ttl"
PUBLISH: Final = "publish"
CLEAN: Final = "clean"

MAX_FAILURES: Final = 5  # consecutive failed rounds after which the process ends; its supervisor may restart it
MAX_BACK_OFF_SECONDS: Final = 300.0  # the end of a long outage is noticed within this time
STOP_SECONDS: Final = 60.0  # time to finish a round; a killed round is repeated

Round = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; returns the exit code of the process."""
    stop, reporter = StopSignal(), Reporter.from_environment()
    parser = argparse.ArgumentParser(prog="weft.streams.pipeline.run.services", description="A service of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("--service", choices=(COMPACTION, TTL, PUBLISH, CLEAN), default=COMPACTION)
    parser.add_argument("--once", action="store_true", help="one round, then end; compaction: whatever has logs")
    options = parser.parse_args(arguments)
    return run_service(options.pipeline, options.service, stop, reporter, once=options.once)


def run_service(
    path: str,
    service: str,
    stop: StopSignal,
    reporter: Reporter,
    *,
    once: bool,
    executor: Callable[[Pipeline], AbstractContextManager[Execute | None]] = lambda _: nullcontext(),
) -> int:
    """Run a service until it has to stop.

    Args:
        path: The pipeline file.
        service: Its name.
        stop: Set to stop after the round in progress.
        reporter: Reports what the service does.
        once: Run one round only: compact whatever has logs, expire, publish, or clean.
        executor: Opens the executor of compaction tasks; None in the block means this process.

    Returns:
        The exit code of the process.
    """
    reporter.update(doing="starting")
    try:
        from weft.streams.pipeline.file.pipeline import load_pipeline
        from weft.streams.pipeline.run.part_states import StoredReports

        pipeline = load_pipeline(path)
        location, outages = pipeline.table, JobOutages(reporter, stop)
        what = store_name(location.uri)
        table = location.open() if once else outages.wait_out(location.open, what)
        if table is None:
            return Ending.DONE
        stored = StoredReports(table.env.store, pipeline.service_name(service), reporter.report)
        reporter.follow(stored.write)
        with executor(pipeline) as execute:
            every, run_round = _service(service, pipeline, table, reporter, execute, once=once)
            if once:
                run_round()
                reporter.update(**after_round(None))
            else:
                repeat(stop, every, run_round, reporter, what)
    except Exception as error:
        traceback.print_exc()
        reporter.update(doing="failed", message=describe(error))
        return ending_of(error)
    reporter.update(doing="ended")
    return 0


def _service(
    service: str, pipeline: Pipeline, table: Table, reporter: Reporter, execute: Execute | None, *, once: bool
) -> tuple[float, Round]:
    """The interval between rounds in seconds, and the function that runs one round."""
    from weft.streams.pipeline.file.letter_places import load_letter_places, retentions_of
    from weft.streams.pipeline.file.model import CleanSection, CompactionSection, PublishSection, TtlSection
    from weft.streams.pipeline.run.publishing import ANSWER_SECONDS, Publisher
    from weft.streams.pipeline.run.service_rounds import clean_round, compact_round, expire_round, publish_round

    if service == TTL:
        return (pipeline.ttl or TtlSection()).every, lambda: expire_round(table, reporter)
    if service == CLEAN:
        clean = pipeline.clean or CleanSection()
        # They remember the files that they have read.
        load = functools.cache(lambda: retentions_of(load_letter_places(pipeline.path)[1], table, pipeline.table))
        return clean.every, lambda: clean_round(table, clean, reporter, load)
    if service == PUBLISH:
        section = pipeline.publish or PublishSection()
        publisher = Publisher(section, answer_seconds=None if once else ANSWER_SECONDS)
        return section.every, lambda: publish_round(table, publisher, reporter, once=once)
    compaction = pipeline.compaction or CompactionSection()
    return compaction.every, lambda: compact_round(table, None if once else compaction, reporter, execute)


def repeat(stop: StopSignal, every: float, run_round: Round, reporter: Reporter, store: str = "the store") -> None:
    """Run rounds until the service has to stop. Wait for outages of the store to end.

    Args:
        stop: Set when the service has to stop.
        every: Seconds from the start of one round to the start of the next.
        run_round: Runs a round.
        reporter: Reports failed rounds and outages.
        store: Name of the store, for the report of an outage.

    Raises:
        Exception: The error of the last round, after `MAX_FAILURES` consecutive failed rounds. Outages do not count.
    """
    outages = JobOutages(reporter, stop)
    failures = outages_in_a_row = 0
    delay = 0.0
    while not stop.wait(delay):
        started = time.monotonic()
        try:
            run_round()
        except Exception as error:
            if is_outage(error):
                outages_in_a_row += 1
                outages.report_outage(store, describe(error))
                delay = max(every, pause_seconds(outages_in_a_row))
                reporter.update(**after_round(delay))
                continue
            outages.report_end(store)
            failures += 1
            if failures >= MAX_FAILURES:
                raise
            traceback.print_exc()
            pause = min(every * 2**failures, max(MAX_BACK_OFF_SECONDS, every))
            message = f"{describe(error)}; next try in {pause:.0f} s"
            reporter.update(doing="waiting", message=message, **after_round(pause))
            delay = pause
        else:
            failures = outages_in_a_row = 0
            outages.report_end(store)
            delay = max(0.0, every - (time.monotonic() - started))
            reporter.update(progress=reporter.report.progress + 1, **after_round(delay))


def after_round(pause_seconds: float | None) -> dict[str, Any]:
    """The changes to the report after a round.

    Args:
        pause_seconds: Time until the next round; None if there is no next round.
    """
    now_ms = time.time_ns() // 1_000_000
    following = None if pause_seconds is None else now_ms + round(pause_seconds * 1000)
    return {"round_at_ms": now_ms, "next_round_at_ms": following}


if __name__ == "__main__":
    sys.exit(main())

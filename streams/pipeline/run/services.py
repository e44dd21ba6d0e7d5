"""Runs a service of a pipeline in a process: compaction (with folding), time to live, publishing, or cleaning.

    python -m weft.streams.pipeline.run.services PIPELINE [--service compaction|ttl|publish|clean] [--once]

A service works with Arrow in its process, without Spark; `weft.streams.write.cluster_job` compacts on a cluster.
Writers never wait for a service, and it may be killed at any time: cleaning deletes unpublished files of a compaction,
and the next cleaning continues where one was killed. On SIGTERM the current round is finished.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from weft.storage.plural import counted
from weft.streams.pipeline.run.error_kinds import Ending, describe, ending_of, is_outage
from weft.streams.pipeline.run.outage import JobOutages, pause_seconds, store_name
from weft.streams.pipeline.run.status import Report, Reporter, StopSignal

if TYPE_CHECKING:
    from weft.storage import Snapshot, Table
    from weft.storage.services.clean.clean import CleanResult
    from weft.storage.services.compaction.compaction import CompactionResult
    from weft.storage.services.expiry import ExpiryResult
    from weft.storage.services.fold.fold import FoldResult
    from weft.storage.services.steps.steps import Steps
    from weft.storage.services.steps.tasks import Execute
    from weft.streams.letters.retention import Retention
    from weft.streams.pipeline.file.model import CleanSection, CompactionSection, Pipeline
    from weft.streams.pipeline.run.publishing import Publisher

COMPACTION: Final = "compaction"
TTL: Final = "ttl"
PUBLISH: Final = "publish"
CLEAN: Final = "clean"

MAX_FAILURES: Final = 5  # consecutive failed rounds after which the process ends; its supervisor may restart it
MAX_BACK_OFF_SECONDS: Final = 300.0  # the end of a long outage is noticed within this time
STOP_SECONDS: Final = 60.0  # time to finish a round; a killed round is repeated

Round = Callable[[], object]


class Reports(Protocol):
    """Where a service reports what it does, such as a `Reporter`."""

    @property
    def report(self) -> Report:
        """The last report."""

    def update(self, **changes: Any) -> None:
        """Change some fields of the report."""


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

    if service == TTL:
        return (pipeline.ttl or TtlSection()).every, lambda: expire_round(table, reporter)
    if service == CLEAN:
        clean = pipeline.clean or CleanSection()
        letters = retentions_of(load_letter_places(pipeline.path)[1], table, pipeline.table)
        return clean.every, lambda: clean_round(table, clean, reporter, letters)
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


def compact_round(
    table: Table, section: CompactionSection | None, reporter: Reporter, execute: Execute | None = None
) -> None:
    """Compact and fold what is due, see `compaction_steps`, and report the remaining bytes after each step."""
    from weft.storage.services.steps.steps import finish

    def on_step(size: int) -> None:
        reporter.update(due_bytes=max(0, (reporter.report.due_bytes or 0) - size))

    reporter.update(doing="compacting")
    finish(compaction_steps(table, section, reporter, execute), on_step)


def compaction_steps(
    table: Table,
    section: CompactionSection | None,
    reports: Reports,
    execute: Execute | None = None,
    on_plan: Callable[[Snapshot], None] = lambda _: None,
) -> Steps[None]:
    """The steps that compact what is due (everything, without a section), fold if due, and report.

    Args:
        table: The table.
        section: Says what is due.
        reports: Where to report what was done.
        execute: Where the work is done; in this process by default.
        on_plan: Called with the snapshot from which the compaction was planned.

    Yields:
        Stored bytes that each step read. The first steps of compaction and of fold only plan: their 0 comes when
        ``due_bytes`` is reported, and nothing is published before the step that follows.
    """
    from weft.storage.planned_work import plan_compaction, plan_fold
    from weft.storage.services.steps.tasks import one_by_one

    if execute is None:
        execute = one_by_one if section is None else section.execute
    policy = None if section is None else section.policy
    compaction = plan_compaction(table, policy, execute)
    reports.update(due_bytes=compaction.bytes)
    on_plan(compaction.snapshot)
    yield 0
    reports.update(doing="compacting")
    compacted = yield from compaction.steps
    if policy is None or compacted.done or compacted.skipped:
        reports.update(**after_compaction(reports.report, compacted))
    if policy is not None:
        fold = plan_fold(table, policy, compaction, execute)
        reports.update(due_bytes=fold.bytes)
        yield 0
        folded = yield from fold.steps
        if folded.done or folded.skipped:
            reports.update(**after_fold(reports.report, folded))
    reports.update(doing="idle", due_bytes=0)


def after_compaction(last: Report, result: CompactionResult) -> dict[str, Any]:
    """The changes to the report after a compaction."""
    done = counted(len(result.done), "file group")
    if result.skipped:
        done += f", {len(result.skipped)} skipped ({'; '.join(sorted(set(result.skipped.values())))})"
    if result.bytes_dropped:
        done += f", {result.bytes_dropped / 1e6:.1f} MB written in vain"
    message = f"{done}, {result.bytes_read / 1e6:.1f} MB compacted in {result.seconds:.1f} s"
    return _changes(last, message, counts=bool(result.done), rows=result.rows, bytes_read=result.bytes_read)


def after_fold(last: Report, result: FoldResult) -> dict[str, Any]:
    """The changes to the report after a fold."""
    message = f"{counted(result.commits, 'commit')}, {result.bytes_read / 1e6:.1f} MB folded in {result.seconds:.1f} s"
    return _changes(last, message, counts=bool(result.done), rows=result.rows, bytes_read=result.bytes_read)


def after_clean(last: Report, result: CleanResult, letter_files: int = 0) -> dict[str, Any]:
    """The changes to the report after a clean, and after the deletion of files of dead letters."""
    message = f"{counted(result.files, 'file')}, {result.bytes / 1e6:.1f} MB deleted"
    if result.archived:
        message += f", {counted(result.archived, 'entry')} archived"
    if result.retired:
        message += f", {counted(len(result.retired), 'closed lane')} retired"
    if letter_files:
        message += f", {counted(letter_files, 'file')} of dead letters deleted"
    return {
        **_changes(last, message, counts=bool(result.files or result.archived or letter_files)),
        "deleted_files": last.deleted_files + result.files,
        "deleted_bytes": last.deleted_bytes + result.bytes,
        "unknown_objects": result.foreign_files,
    }


def _changes(last: Report, message: str, *, counts: bool, rows: int = 0, bytes_read: int = 0) -> dict[str, Any]:
    return {
        "doing": "idle",
        "commits": last.commits + counts,
        "rows": last.rows + rows,
        "stored_bytes": last.stored_bytes + bytes_read,
        "committed_at_ms": time.time_ns() // 1_000_000 if counts else last.committed_at_ms,
        "message": message,
    }


def expire_round(table: Table, reporter: Reporter) -> None:
    """Remove rows and deletes that are older than the time to live of the table, and report."""
    from weft.storage.services.steps.steps import finish

    finish(expiry_steps(table, reporter), lambda _: reporter.update())
    if table.schema.ttl is None:
        reporter.update(message="the table has no time to live: weft alter set-ttl")


def expiry_steps(table: Table, reports: Reports) -> Steps[None]:
    """`expire_round` in steps."""
    from weft.storage.planned_work import expire_in_steps

    reports.update(doing="expiring")
    result = yield from expire_in_steps(table)
    reports.update(**after_expiry(reports.report, result))


def after_expiry(last: Report, result: ExpiryResult) -> dict[str, Any]:
    """The changes to the report after an expiry."""
    message = (
        f"{counted(result.rows, 'row')} and {counted(result.deletes, 'delete')} expired in "
        f"{counted(result.file_groups, 'file group')}, "
        f"{result.bytes_read / 1e6:.1f} MB read in {result.seconds:.1f} s"
    )
    if result.skipped:
        message += (
            f"; {counted(result.skipped, 'file group')} left for the next round, because another service was first"
        )
    counts = bool(result.entries)
    changes = _changes(last, message, counts=counts, bytes_read=result.bytes_read)
    return {
        **changes,
        "message": message if counts or result.skipped else last.message,
        "expired_rows": last.expired_rows + result.rows,
        "forgotten_deletes": last.forgotten_deletes + result.deletes,
        "expired_at_ms": time.time_ns() // 1_000_000,
    }


def publish_round(table: Table, publisher: Publisher, reporter: Reporter, *, once: bool = False) -> None:
    """Publish the base files to the targets that are due, and report.

    Args:
        table: The table.
        publisher: Publishes, and remembers what is published already.
        reporter: Reports what was published, and why a target is not up to date.
        once: Whether the first error of a target is raised; otherwise the next rounds try again.
    """
    done = publisher.publish(table)
    for error in done.errors:
        traceback.print_exception(error)
    reporter.update(**done.report(reporter.report))
    if once and done.errors:
        raise done.errors[0]


def clean_round(table: Table, section: CleanSection, reports: Reports, letters: Sequence[Retention] = ()) -> int:
    """Delete files that are not needed any more, and old dead letters; report, and return the number of files."""
    from weft.storage.operations.clean import clean_table

    reports.update(doing="cleaning")
    result = clean_table(table, section)
    files = sum(retention.expire().files for retention in letters)
    reports.update(**after_clean(reports.report, result, files))
    return result.files + files


if __name__ == "__main__":
    sys.exit(main())

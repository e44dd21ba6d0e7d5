"""Rounds of the services of a table: what a round does, and what it reports.

`weft.streams.pipeline.run.services` repeats the rounds of one service in a process of its own. For
`weft.streams.pipeline.run.table_rounds`, which shares a process between many tables, the rounds that read much are also
divided into steps.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from weft.storage import Snapshot, Table
from weft.storage.operations.clean import clean_table
from weft.storage.planned_work import expire_in_steps, plan_compaction, plan_fold
from weft.storage.plural import counted
from weft.storage.services.clean.clean import CleanResult
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.expiry import ExpiryResult
from weft.storage.services.fold.fold import FoldResult
from weft.storage.services.steps.steps import Steps, finish
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.streams.letters.retention import Retention
from weft.streams.pipeline.file.model import CleanSection, CompactionSection
from weft.streams.pipeline.run.publishing import Publisher
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter


class Reports(Protocol):
    """Where a service reports what it does, such as a `Reporter`."""

    @property
    def report(self) -> Report:
        """The last report."""

    def update(self, **changes: Any) -> None:
        """Change some fields of the report."""


def compact_round(
    table: Table, section: CompactionSection | None, reporter: Reporter, execute: Execute | None = None
) -> None:
    """Compact and fold what is due, see `compaction_steps`, and report the remaining bytes after each step."""

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
    finish(expiry_steps(table, reporter), lambda _: reporter.update())
    if table.schema.ttl is None:
        reporter.update(message="the table has no time to live: weft alter set-ttl")


def expiry_steps(table: Table, reports: Reports) -> Steps[None]:
    """`expire_round` in steps."""
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


def clean_round(
    table: Table, section: CleanSection, reports: Reports, load_letters: Callable[[], Sequence[Retention]] = lambda: ()
) -> int:
    """Delete files that are not needed any more, and old dead letters; report, and return the number of files.

    The retentions of the dead letters are loaded after the table is cleaned, so that an error in them does not prevent
    it.
    """
    reports.update(doing="cleaning")
    result = clean_table(table, section)
    files = sum(retention.expire().files for retention in load_letters())
    reports.update(**after_clean(reports.report, result, files))
    return result.files + files

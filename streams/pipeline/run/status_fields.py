"""The status of a job as named fields, for displays, JSON and metrics."""

from __future__ import annotations

from typing import Any, Final

from weft.storage.plural import counted
from weft.streams.pipeline.run.outage import spell_since
from weft.streams.pipeline.run.supervisor import JobStatus, Phase

STALE_SECONDS: Final = 10.0  # the measurements of an older report are not shown any more


def status_fields(status: JobStatus, now_ms: int) -> dict[str, Any]:
    """The status of a job by field name. Ages are in seconds; None means unknown, or that the field does not apply.

    ``lag`` is an upper bound, see `weft.streams.pipeline.run.report.Report`. It and ``freshness_seconds`` are None if
    the job has not measured them yet, does not report, or does not run any more.
    """
    report = status.report
    measured = _is_current(status, now_ms)

    def age(then_ms: int | None) -> float | None:
        return None if then_ms is None else round(max(0, now_ms - then_ms) / 1000, 1)

    return {
        "job": status.name,
        "state": state_word(status),
        "rows": report.rows,
        "rows_per_second": report.rows_per_second,
        "lag": report.lag if measured else None,
        "commit": report.seq,
        "commit_age_seconds": age(report.committed_at_ms),
        "freshness_seconds": age(report.complete_at_ms) if measured else None,
        "commits": report.commits,
        "dead_letters": report.dead_letters,
        "tombstones_ignored": report.tombstones,
        "due_bytes": report.due_bytes,
        "stored_bytes": report.stored_bytes,
        "deletes": report.deletes,
        "rows_ignored": report.rows_ignored,
        "rows_unordered": report.rows_unordered,
        "late": report.late,
        "skipped_offsets": report.skipped_offsets,
        "delay_seconds": report.delay_seconds if measured else None,
        "read_amplification": report.read_amplification if measured else None,
        "waited_seconds": report.waited_seconds,
        "restarts": status.restarts,
        "failures": status.failures,
        "pid": status.pid,
        "waiting_for": waiting_for(status),
        "waiting_seconds": age(report.waiting_since_ms) if waiting_for(status) else None,
        "note": report.note,
        "message": current_message(status, now_ms),
    }


def _is_current(status: JobStatus, now_ms: int) -> bool:
    """Whether the last measurements of the job are still valid."""
    if status.phase is Phase.DONE:
        return True  # the job ended by itself, after its last measurement
    return status.phase in {Phase.RUNNING, Phase.STOPPING} and not is_silent(status, now_ms)


def is_silent(status: JobStatus, now_ms: int) -> bool:
    """Whether the last report of the job is old. Services report only when something changes (`Report.steady`)."""
    reported_at_ms = status.report.reported_at_ms
    return reported_at_ms is not None and now_ms - reported_at_ms > STALE_SECONDS * 1000


def state_word(status: JobStatus) -> str:
    """One word: from the report of the job while it runs, otherwise its phase."""
    if status.phase is Phase.RUNNING:
        return status.report.doing
    if status.phase is Phase.WAITING:
        return f"restart in {status.next_start_seconds or 0:.0f} s"
    return str(status.phase)


def waiting_for(status: JobStatus) -> str | None:
    """What the job waits for because it does not answer; None if the job does not wait."""
    waits = status.phase in {Phase.RUNNING, Phase.WAITING} and status.report.waiting_since_ms is not None
    return status.report.waiting_for if waits else None


def current_message(status: JobStatus, now_ms: int) -> str:
    """What the job waits for, why it is not running, or its last message."""
    what, since_ms = waiting_for(status), status.report.waiting_since_ms
    if what is not None and since_ms is not None:
        reason = f": {reason_of(status)}" if reason_of(status) else ""
        return f"waiting for {what}, {spell_since(since_ms, now_ms)}{reason}"
    return reason_of(status)


def unordered_words(rows: int) -> str:
    """A text about rows that are not in the table because they have no ordering value; empty if there are none."""
    return f"{counted(rows, 'row')} changed nothing: no ordering value" if rows else ""


def reason_of(status: JobStatus) -> str:
    """Why the job is not running, or the last message of the job."""
    if status.phase in {Phase.FAILED, Phase.FENCED, Phase.WAITING}:
        return status.message
    report = status.report
    text = report.message or report.note or (f"last failure: {status.message}" if status.message else "")
    # A table of `weft services` is both compacted and published: the message of a compaction must not hide that
    # publishing fails.
    return text if report.publish_problem in text else "; ".join(filter(None, (text, report.publish_problem)))

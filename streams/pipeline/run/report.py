"""A report: what a job did so far, and how it is written as a line. Pure, and imports nothing heavy."""

from __future__ import annotations

import bisect
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

_LINE_BYTES: Final = 4096  # a write of up to PIPE_BUF (4096 on Linux) is atomic
_MESSAGE_CHARS: Final = 600
WAITING_CHARS: Final = 80
BATCH_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of the counts in `Report.batch_counts`; the last count is of longer batches."""
NOTE_CHARS: Final = 200
_ESCAPED_BYTES: Final = 6  # the longest JSON escape of one character


@dataclass(frozen=True, slots=True)
class Report:
    """One report. Totals count from the first start of the job, over all its restarts. Times are Unix milliseconds.

    Attributes:
        doing: One word: starting, waiting, running, idle, compacting, expiring, cleaning, stopping.
        rows: Rows stored.
        rows_per_second: Average over the last seconds.
        commits: Commits.
        seq: Lane entry of the last commit; None before the first one.
        committed_at_ms: Time of the last commit; None before the first one.
        complete_at_ms: The table holds everything that was in the source at this time. None until this process has
            measured it.
        lag: Upper bound of the messages that are in the source and not in the table; 0 is exact. Kafka counts offsets,
            which exceed messages on compacted and transactional topics (`weft.streams.pipeline.run.lag`). None until
            this process has measured it, and while the source does not answer.
        dead_letters: Refused messages.
        message: The result of the last round of a service, or why a job failed.
        reported_at_ms: Time of this report; None if no process has made it.
        progress: Grows with each committed batch, each check of a source that has nothing new, and each round of a
            service. A run in which it did not grow counts as failed, however long it lasted.
        waiting_for: What does not answer, such as "the broker 127.0.0.1:9092"; empty if the job does not wait.
        waiting_since_ms: Time of the first request without an answer; None if the job does not wait.
        tombstones: Messages without a value that were skipped.
        due_bytes: Stored bytes that were due for compaction or a fold when last measured; None if that is not known.
        stored_bytes: Stored bytes of what was committed, or of what a service read.
        deletes: Delete events among the rows.
        rows_ignored: Rows without effect, which are not stored: ignored deletes, upserts without an ordering value.
        rows_unordered: The upserts without any ordering value among ``rows_ignored``; usually a mistake.
        late: Events below the watermark of their lane when they were stored; 0 without a lateness.
        skipped_offsets: Offsets that Kafka did not have any more when a batch was planned.
        batch_counts: Number of batches by duration, see `BATCH_BOUNDS`; empty before the first batch.
        batch_seconds: Duration of all batches together.
        deleted_files: Files that cleaning deleted.
        deleted_bytes: Their stored bytes.
        unknown_objects: Objects in the table's folders whose names weft does not use, as of the last cleaning; None
            before the first one.
        expired_rows: Rows that were removed because they were older than the time to live of the table.
        forgotten_deletes: Deletes, and rows hidden by deletes, that were removed for the same reason.
        expired_at_ms: Time of the last expiry that ended; None before the first one.
        publications: Publications that changed a published table.
        published_at_ms: Time when all published tables were last known to show all base files; None before.
        trigger_seconds: Shortest time from the start of one batch to the next; None if the job is not a writer.
        publish_seconds: Time between two rounds of the publisher; None if the job publishes nothing.
        publish_problem: Why a published table is not up to date; empty if all are.
        round_at_ms: End of the last round of a service; None before the first one.
        next_round_at_ms: When its next round begins; None if that is not known.
        error_code: Code of the error that ended the job (`weft.storage.errors.TableError.code`); empty for none.
        steady: Whether the job now reports every second, so that silence means that it hangs.
        delay_seconds: Wait before each batch because reads of the table cost too much, as last measured; 0 if there is
            no wait. None without back-pressure.
        read_amplification: Bytes that a read of the table fetches, divided by those of its base, as last measured; None
            if the measurement failed, and without back-pressure.
        waited_seconds: Duration of all such waits.
        note: What a writer does besides writing (`weft.streams.write.upkeep`), or why it slows down; empty if nothing.
    """

    doing: str = "starting"
    rows: int = 0
    rows_per_second: float = 0.0
    commits: int = 0
    seq: int | None = None
    committed_at_ms: int | None = None
    complete_at_ms: int | None = None
    lag: int | None = None
    dead_letters: int = 0
    message: str = ""
    reported_at_ms: int | None = None
    progress: int = 0
    waiting_for: str = ""
    waiting_since_ms: int | None = None
    tombstones: int = 0
    due_bytes: int | None = None
    stored_bytes: int = 0
    deletes: int = 0
    rows_ignored: int = 0
    rows_unordered: int = 0
    late: int = 0
    skipped_offsets: int = 0
    batch_counts: tuple[int, ...] = ()
    batch_seconds: float = 0.0
    deleted_files: int = 0
    deleted_bytes: int = 0
    unknown_objects: int | None = None
    expired_rows: int = 0
    forgotten_deletes: int = 0
    expired_at_ms: int | None = None
    publications: int = 0
    published_at_ms: int | None = None
    trigger_seconds: float | None = None
    publish_seconds: float | None = None
    publish_problem: str = ""
    round_at_ms: int | None = None
    next_round_at_ms: int | None = None
    error_code: str = ""
    steady: bool = False
    delay_seconds: float | None = None
    read_amplification: float | None = None
    waited_seconds: float = 0.0
    note: str = ""

    def with_batch(self, seconds: float) -> dict[str, Any]:
        """The changes of ``batch_counts`` and ``batch_seconds`` for one more batch."""
        counts = list(self.batch_counts or (0,) * (len(BATCH_BOUNDS) + 1))
        counts[bisect.bisect_left(BATCH_BOUNDS, seconds)] += 1
        return {"batch_counts": tuple(counts), "batch_seconds": round(self.batch_seconds + seconds, 3)}

    def restarted(self) -> Report:
        """The report after its process has ended: totals are kept, measurements are unknown."""
        return replace(
            self,
            doing="starting",
            rows_per_second=0.0,
            complete_at_ms=None,
            lag=None,
            message="",
            error_code="",
            note="",
            delay_seconds=None,
            read_amplification=None,
            next_round_at_ms=None,
            reported_at_ms=None,
            steady=False,
        )


_FIELDS: Final = frozenset(f.name for f in fields(Report))
_DEFAULTS: Final = asdict(Report())
_MESSAGE_MEMBER: Final = ', "message": ""'


def encode_report(report: Report) -> bytes:
    """One line, short enough for an atomic write to a pipe: totals that are 0 and empty texts are left out."""
    report = replace(
        report,
        waiting_for=shortened(report.waiting_for, WAITING_CHARS),
        note=shortened(report.note, NOTE_CHARS),
        publish_problem=shortened(report.publish_problem, NOTE_CHARS),
    )
    available_bytes = _LINE_BYTES - len(_compact(replace(report, message=""))) - len(_MESSAGE_MEMBER)
    report = replace(report, message=shortened(report.message, min(_MESSAGE_CHARS, available_bytes // _ESCAPED_BYTES)))
    line = _compact(report)
    assert len(line) <= _LINE_BYTES, "all fields have a bounded length"
    return line


def _compact(report: Report) -> bytes:
    values = {name: value for name, value in asdict(report).items() if value is None or value != _DEFAULTS[name]}
    return json.dumps(values).encode() + b"\n"


def shortened(text: str, chars: int) -> str:
    """The text, cut to ``chars`` characters; a cut text ends with three dots."""
    return text if len(text) <= chars else text[: chars - 3] + "..."


def parse_report(line: bytes | str) -> Report:
    """Parse a line into a report.

    Raises:
        ValueError: The line is not a report.
    """
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values.keys() <= _FIELDS:
        raise ValueError(f"not a status report: {line[:80]!r}")
    report = Report(**values)
    return replace(report, batch_counts=tuple(report.batch_counts))  # JSON has lists only

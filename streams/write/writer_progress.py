"""Reports of a running writer: its commits, and its progress according to Spark and the brokers."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weft.streams.pipeline.run.reporter import Reporter

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from weft.streams.kafka.errors import TopicMissing
    from weft.streams.pipeline.run.lag import LagMeter
    from weft.streams.write.sink import CommitReport

STALE_SECONDS: Final = 10.0  # the progress of a batch that was planned longer ago does not show the present lag
RATE_SECONDS: Final = 10.0  # rows per second are averaged over this time


class Progress:
    """Turns commits (from Spark's thread) and Spark's progress (from the main thread) into status reports."""

    def __init__(
        self,
        reporter: Reporter,
        trigger_seconds: float,
        meter: LagMeter | None = None,
        waits: Callable[[Exception | None], None] = lambda _: None,
        starved: Callable[[], bool] = lambda: False,
        skipped: Callable[[], int] = lambda: 0,
        lacks: Callable[[TopicMissing | None], None] = lambda _: None,
    ) -> None:
        """Begin without commits.

        Args:
            reporter: Receives the reports.
            trigger_seconds: Time between two checks of the source for new messages.
            meter: Measures lag and freshness; without it they are computed from Spark's progress of the last batch.
            waits: Called with the reason why the brokers of the source do not answer, or with None if they do.
            starved: Returns whether the cluster provides no executor, and reports it.
            skipped: Returns the number of offsets that this process has skipped.
            lacks: Called with the error for topics that the starting query waits for, or with None if all exist.
        """
        self._reporter, self._trigger_ms, self._meter = reporter, int(trigger_seconds * 1000), meter
        self._waits, self._starved, self._skipped, self._lacks = waits, starved, skipped, lacks
        self._skipped_before = reporter.report.skipped_offsets  # by earlier processes of the job
        self._recent: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def committed(self, report: CommitReport) -> None:
        """Count a commit, and report it."""
        commit, last = report.commit, self._reporter.report
        if not commit.replayed or commit.seq > (last.seq or 0):  # otherwise it was counted before the restart
            self._count(report)
        # Update the lag last, so that a status never shows the new lag with the old number of rows.
        self.reached(report.source)

    def _count(self, report: CommitReport) -> None:
        commit, last = report.commit, self._reporter.report
        with self._lock:
            self._recent.append((time.monotonic(), commit.rows))
        self._reporter.update(
            progress=last.progress + 1,
            rows=last.rows + commit.rows,
            commits=last.commits + 1,
            seq=commit.seq,
            committed_at_ms=report.committed_at_ms,
            dead_letters=last.dead_letters + report.rows_refused,
            tombstones=last.tombstones + report.tombstones,
            rows_per_second=self._rate(),
            stored_bytes=last.stored_bytes + report.stored_bytes,
            deletes=last.deletes + report.deletes,
            rows_ignored=last.rows_ignored + commit.rows_ignored,
            rows_unordered=last.rows_unordered + report.unordered,
            late=last.late + commit.late,
            **last.with_batch(report.seconds),
        )

    def reached(self, source: Mapping[str, Any]) -> None:
        """Set the position in the sources at which the last finished batch ends."""
        from weft.streams.pipeline.run.lag import kafka_offsets

        if self._meter is not None:
            self._meter.set_position(kafka_offsets(source))

    def observe(self, query: StreamingQuery) -> None:
        """Ask Spark for the progress of the query, and report it."""
        # `isActive` is read after the status. If it is true, the status is that of an active query. The status of a
        # query that has ended says that no data is available, even if there is some.
        status, last = query.status, query.lastProgress
        active, failed = query.isActive, query.exception() is not None
        busy = bool(status["isTriggerActive"])
        idle = active and not busy and not status["isDataAvailable"]
        outage = None if self._meter is None or failed else self._meter.outage
        if last is not None and idle and not failed and outage is None:
            self._reporter.update(progress=self._reporter.report.progress + 1)
        if failed:
            behind, complete = None, None
        elif self._meter is not None:
            behind, complete = self._measure(active=active)
        else:
            behind, complete = self._estimate(last, idle=idle)
        starting = last is None and active and not failed
        missing = self._meter.missing if self._meter is not None and starting else None
        waiting = outage is not None or missing is not None or (active and not failed and self._starved())
        self._reporter.update(
            doing="waiting" if waiting else "running" if busy else "idle" if last is not None else "starting",
            lag=behind,
            complete_at_ms=complete,
            rows_per_second=self._rate(),
            skipped_offsets=self._skipped_before + self._skipped(),
            steady=True,
        )
        self._waits(outage)  # after the update, so that the outage is not reported together with an older lag
        if not failed and (self._meter is None or self._meter.has_measured):
            self._lacks(missing)

    def _measure(self, *, active: bool) -> tuple[int | None, int | None]:
        """Return the lag, and the time up to which the table is complete, from the meter."""
        assert self._meter is not None, "the caller has checked this"
        lag = self._meter.lag if active else self._meter.measure()
        return (None, None) if lag is None else (lag.waiting, lag.complete_at_ms)

    def _estimate(self, last: StreamingQueryProgress | None, *, idle: bool) -> tuple[int | None, int | None]:
        """Estimate the same values from Spark's progress, for sources without a meter."""
        if last is None:
            return None, None  # no batch of this process has ended
        behind, planned_at_ms = messages_behind(last.sources), _milliseconds(last.timestamp)
        now_ms = time.time_ns() // 1_000_000
        complete = self._reporter.report.complete_at_ms
        if behind == 0:
            complete = max(complete or 0, planned_at_ms)
        if idle:
            # The last check of the source found nothing, at most one trigger interval ago.
            complete = max(complete or 0, now_ms - self._trigger_ms)
        elif now_ms - planned_at_ms > STALE_SECONDS * 1000:
            behind = None  # the number does not include messages that arrived after the batch was planned
        return behind, complete

    def _rate(self) -> float:
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0][0] < now - RATE_SECONDS:
                self._recent.popleft()
            return round(sum(rows for _, rows in self._recent) / RATE_SECONDS, 1)


def messages_behind(sources: Sequence[Any]) -> int | None:
    """Count the messages that the sources had when the last batch was planned, and that are not in the batch.

    Args:
        sources: Sources of a ``StreamingQueryProgress``.

    Returns:
        The number; None if the offsets of a source are not numbers by topic and partition.
    """
    behind = 0
    for source in sources:
        end, latest = (_offsets(text) for text in (source.endOffset, source.latestOffset))
        if end is None or latest is None:
            return None
        behind += sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())
    return behind


def _offsets(text: str | None) -> Mapping[tuple[str, str], int] | None:
    try:
        offsets_by_topic = json.loads(text or "null")
        return {
            (topic, part): int(offset)
            for topic, parts in offsets_by_topic.items()
            for part, offset in parts.items()
            if part.isdecimal()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def _milliseconds(timestamp: str) -> int:
    import datetime as dt

    return int(dt.datetime.fromisoformat(timestamp).timestamp() * 1000)

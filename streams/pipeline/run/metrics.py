"""Metrics for Prometheus: of each part (a writer or a service), and of the table.

The help text of a metric says exactly what is counted. deploy/README.md lists the metrics, and
deploy/prometheus/alerts.yaml and deploy/grafana use them. Values that are not known are absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.storage.services.inspect.measure import TableMeasures
from weft.streams.pipeline.run.report import BATCH_BOUNDS
from weft.streams.pipeline.run.status_fields import status_fields
from weft.streams.pipeline.run.supervisor import JobStatus
from weft.streams.pipeline.run.table_watch import TableView

SINCE: Final = "Counts from the start of the process that serves this page."

_TOTALS: Final[Mapping[str, str]] = {
    "rows": "Rows stored by a writer, or read by a service.",
    "bytes": "Stored bytes of the log files of a writer, or of the files that a service merged.",
    "commits": "Commits of a writer, or rounds of a service that changed the table.",
    "deletes": "Delete events among the rows of a writer.",
    "ignored_rows": (
        "Rows without effect, which are not stored: deletes that the stream ignores, upserts without any ordering "
        "value."
    ),
    "unordered_rows": (
        "Rows that are not in the table because all ordering columns are NULL in them. A part of "
        "weft_ignored_rows_total."
    ),
    "late_events": (
        "Events that were below the watermark of their lane, once for each group. They are stored, and may lose. 0 "
        "without a lateness."
    ),
    "dead_letters": "Messages that could not be decoded or stored.",
    "tombstones_ignored": "Messages without a value that were skipped.",
    "skipped_offsets": (
        "Offsets that Kafka did not have any more when a batch was planned (failOnDataLoss=false). Records of topics "
        "that were truncated or created again are not counted."
    ),
    "back_pressure_wait_seconds": (
        "Time for which a writer has waited before batches, because reads of the table cost too much."
    ),
    "restarts": "Restarts of the process of a part.",
    "cleaned_files": "Files that cleaning deleted: of expired snapshots, and orphans that dead processes left.",
    "cleaned_bytes": "Stored bytes of the files that cleaning deleted.",
    "expired_rows": "Visible rows that were removed, because they were older than the time to live.",
    "forgotten_deletes": (
        "Deletes, and rows that a delete hid, that were removed, because they were older than the time to live."
    ),
    "publications": "Publications of base files that changed an Iceberg or a Delta table.",
}
"""Help texts of counters of a part, by name."""
_GAUGES: Final[Mapping[str, str]] = {
    "up": "Whether a process of the part runs.",
    "stopped_for_good": (
        "1 if the part has ended with an error and is not started again: it was refused (configuration, limit of dead "
        "letters), was fenced, or has failed too often in a row."
    ),
    "lag_messages": "Upper bound of the messages that are in the source and not in the table. Absent if unknown.",
    "freshness_seconds": "The table contains everything that the source had this many seconds ago. Absent if unknown.",
    "commit_age_seconds": "Time since the last commit. Absent before the first one.",
    "waiting_seconds": "Time for which a broker, a store or a cluster has not answered. Absent if all answer.",
    "due_bytes": "Stored bytes that are due for compaction or a fold. Absent if unknown.",
    "back_pressure_delay_seconds": (
        "Wait before each batch of a writer, because reads of the table cost too much; 0 if it does not wait. Absent "
        "without back_pressure."
    ),
    "back_pressure_read_amplification": (
        "Bytes that a read of the table fetches, divided by the bytes of its base, when the writer last looked. "
        "Absent without back_pressure."
    ),
    "failures_in_a_row": "Consecutive failed runs of the process without progress.",
    "unknown_objects": (
        "Objects in the table's folders whose names weft does not use, as of the last cleaning. They are not deleted."
    ),
    "expiry_age_seconds": (
        "Time since the last look for rows that are older than the time to live. Absent before the first one."
    ),
    "publication_age_seconds": (
        "Time since all published tables were last known to show all base files. Absent before the first time."
    ),
    "publication_interval_seconds": "Time from one look of the publisher to the next: every of the section publish.",
    "publication_fails": "1 if the last publication to an Iceberg or a Delta table has failed. It is tried again.",
    "trigger_seconds": "Shortest time from the start of one batch of a writer to the next: its trigger.",
}
"""Help texts of gauges of a part, by name."""
_TABLE_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "buckets": ("buckets", "Buckets that the table is to have."),
    "proposed_buckets": ("proposed_buckets", "Buckets that its sizes ask for; the same if they ask for no split."),
    "unsplit_groups": ("unsplit_file_groups", "File groups that are to be split or merged: they have other buckets."),
    "file_groups": ("file_groups", "File groups that have rows."),
    "log_files": ("log_files", "Log files with rows that are in no base file yet."),
    "commits_waiting": ("waiting_commits", "Commits and folds with rows that are in no base file yet."),
    "events_waiting": ("waiting_events", "Log rows that are in no base file yet."),
    "base_rows": ("base_rows", "Visible rows in base files."),
    "base_bytes": ("base_bytes", "Stored bytes of base and shadow files."),
    "log_bytes": ("log_bytes", "Stored bytes of log rows that are in no base file yet."),
    "read_amplification": (
        "read_amplification",
        (
            "Bytes that a read of all file groups fetches, divided by the bytes of their base; 1 if nothing waits for "
            "compaction. Absent without a base."
        ),
    ),
    "max_read_amplification": (
        "max_read_amplification",
        "The largest read amplification of one file group. Absent without a base.",
    ),
    "due_groups": ("due_file_groups", "File groups that are due for compaction or a fold. Absent without a policy."),
    "due_bytes": (
        "due_bytes",
        "Stored bytes that compaction and folds would read to do what is due. Absent without a policy.",
    ),
    "plans_open": ("open_plans", "Compactions and folds that have begun and neither ended nor been aborted."),
    "log_objects": ("log_objects", "Objects that hold log entries: one for each entry, one for each archive."),
}


class Metrics(Collector):
    """Collects all metrics at the moment of a scrape."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[JobStatus]],
        tables: Callable[[], Mapping[str, TableView]],
        now_ms: Callable[[], int],
    ) -> None:
        """Collect nothing yet.

        Args:
            statuses: Returns the status of each part.
            tables: Returns the last view of each table, by its location.
            now_ms: Returns the time in Unix milliseconds.
        """
        self._statuses, self._tables, self._now_ms = statuses, tables, now_ms

    def collect(self) -> Iterable[Metric]:
        """All metrics; Prometheus' client calls this for each scrape."""
        now_ms = self._now_ms()
        statuses = self._statuses()
        yield from _part_metrics(statuses, now_ms)
        yield from _table_metrics(self._tables(), now_ms)


def _part_metrics(statuses: Sequence[JobStatus], now_ms: int) -> Iterator[Metric]:
    parts = [(status.name, _part_values(status, now_ms)) for status in statuses]
    for name, text in _TOTALS.items():
        yield _counter(name, text, [(part, values[name]) for part, values in parts])
    for name, text in _GAUGES.items():
        yield _gauge(name, text, "part", [(part, values[name]) for part, values in parts])
    yield _batch_histogram(statuses)


def _part_values(status: JobStatus, now_ms: int) -> dict[str, float | None]:
    """The value of each metric of a part; None if it does not apply, or is not known."""
    fields, report = status_fields(status, now_ms), status.report
    cleans, expires = report.unknown_objects is not None, report.expired_at_ms is not None
    publishes = bool(report.published_at_ms or report.publish_problem)

    def age(then_ms: int | None) -> float | None:
        return None if then_ms is None else max(0, now_ms - then_ms) / 1000

    return {
        **{name: fields[name] for name in ("rows", "commits", "deletes", "dead_letters", "tombstones_ignored")},
        **{name: fields[name] for name in ("skipped_offsets", "restarts", "freshness_seconds", "commit_age_seconds")},
        **{name: fields[name] for name in ("waiting_seconds", "due_bytes")},
        "bytes": fields["stored_bytes"],
        "ignored_rows": fields["rows_ignored"],
        "unordered_rows": fields["rows_unordered"],
        "late_events": fields["late"],
        "back_pressure_wait_seconds": fields["waited_seconds"],
        "cleaned_files": report.deleted_files if cleans else None,
        "cleaned_bytes": report.deleted_bytes if cleans else None,
        "expired_rows": report.expired_rows if expires else None,
        "forgotten_deletes": report.forgotten_deletes if expires else None,
        "publications": report.publications if publishes else None,
        "up": status.pid is not None,
        "stopped_for_good": status.is_lost,
        "lag_messages": fields["lag"],
        "back_pressure_delay_seconds": fields["delay_seconds"],
        "back_pressure_read_amplification": fields["read_amplification"],
        "failures_in_a_row": fields["failures"],
        "unknown_objects": report.unknown_objects,
        "expiry_age_seconds": age(report.expired_at_ms),
        "publication_age_seconds": age(report.published_at_ms),
        "publication_interval_seconds": report.publish_seconds if publishes else None,
        "publication_fails": bool(report.publish_problem) if publishes else None,
        "trigger_seconds": report.trigger_seconds,
    }


def _gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    """A gauge with one label. Values that are None are absent."""
    gauge = GaugeMetricFamily(f"weft_{name}", text, labels=[label])
    for label_value, value in values:
        if value is not None:
            gauge.add_metric([label_value], value)
    return gauge


def _counter(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    counter = CounterMetricFamily(f"weft_{name}", f"{text} {SINCE}", labels=["part"])
    for part, value in values:
        if value is not None:
            counter.add_metric([part], value)
    return counter


def _batch_histogram(statuses: Iterable[JobStatus]) -> Metric:
    """The histogram of batch durations; absent for parts without a batch."""
    histogram = HistogramMetricFamily(
        "weft_batch_seconds",
        f"Time of a batch of a writer from the start of its tasks to its commit, without planning its offsets. {SINCE}",
        labels=["part"],
    )
    for status in statuses:
        report = status.report
        if report.batch_counts:
            bounds = [*map(str, BATCH_BOUNDS), "+Inf"]
            buckets = list(zip(bounds, itertools.accumulate(report.batch_counts), strict=True))
            histogram.add_metric([status.name], buckets, report.batch_seconds)
    return histogram


def _table_metrics(tables: Mapping[str, TableView], now_ms: int) -> Iterator[Metric]:
    if not tables:
        return
    measures_by_uri = {uri: view.measures for uri, view in tables.items() if view.measures is not None}
    yield _gauge(
        "table_up",
        "Whether the last look at the table succeeded. Without it the values are absent.",
        "table",
        [(uri, float(view.measures is not None)) for uri, view in tables.items()],
    )
    ages = [
        (uri, max(0, now_ms - view.measured_at_ms) / 1000)
        for uri, view in tables.items()
        if view.measured_at_ms is not None
    ]
    yield _gauge("table_age_seconds", "Time since the last look at the table that succeeded.", "table", ages)
    for field, (name, text) in _TABLE_GAUGES.items():
        values = [(uri, getattr(measures, field)) for uri, measures in measures_by_uri.items()]
        yield _gauge(f"table_{name}", text, "table", values)
    yield _gauge(
        "table_log_ratio",
        "Stored bytes of log rows that are in no base file, divided by those of base files. Absent without a base.",
        "table",
        [(uri, item.log_bytes / item.base_bytes) for uri, item in measures_by_uri.items() if item.base_bytes],
    )
    yield from _lane_metrics(measures_by_uri)
    yield from _sample_metrics(tables)


def _lane_metrics(measures_by_uri: Mapping[str, TableMeasures]) -> Iterator[Metric]:
    entries = CounterMetricFamily(
        "weft_table_entries",
        "Log entries of a lane since the table was created: commits and claims. The empty lane is the table lane.",
        labels=["table", "lane"],
    )
    late = CounterMetricFamily(
        "weft_table_late_events",
        "Events since the table was created that were below the watermark of their lane. Those that were rolled back "
        "are not counted. 0 without a lateness.",
        labels=["table", "stream", "group"],
    )
    for uri, measures in measures_by_uri.items():
        for lane, count in measures.entries.items():
            entries.add_metric([uri, lane], count)
        for (stream, group), count in measures.late.items():
            late.add_metric([uri, stream, group], count)
    yield from (entries, late)


def _sample_metrics(tables: Mapping[str, TableView]) -> Iterator[Metric]:
    sampled = "In the last sample: waiting events of one file group, for each group with an ordering"
    texts = {
        "events": f"{sampled}.",
        "late": f"{sampled}; those that lost against an event of the same key that was committed before them.",
        "ties": f"{sampled}; those with the ordering values of the newest event of their key that was committed "
        "before them: a repeated message, or an ordering that is too coarse.",
    }
    for field, text in texts.items():
        values = [(uri, getattr(view.sample, field)) for uri, view in tables.items() if view.sample is not None]
        yield _gauge(f"table_sampled_{field}", text, "table", values)
    fill = GaugeMetricFamily(
        "weft_table_group_fill_ratio",
        "Share of the rows in sampled base files (at most 16) in which the column group is present.",
        labels=["table", "group"],
    )
    for uri, view in tables.items():
        for group, share in (view.sample.fill if view.sample is not None else {}).items():
            fill.add_metric([uri, group], share)
    yield fill

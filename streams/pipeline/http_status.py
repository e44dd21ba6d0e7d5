"""HTTP endpoint with metrics for Prometheus, and with health and readiness for an orchestrator.

    GET /metrics   status of each part, as Prometheus metrics
    GET /healthz   200 if the process works; 503 if the page was not updated for `HUNG_SECONDS`
    GET /readyz    200 if every part is working; 503 if one is starting, waits for an outage to end, or has failed

A part is a writer or a service, by the name that the status shows. ``weft run --http`` serves the parts that it
supervises, and updates the page several times a second. A writer without a supervisor (spark-submit, the Spark
operator) serves itself: ``--http`` of `streams.write.writer_job`, which updates the page with each of its reports.
The endpoint needs no authentication and shows no secrets: neither messages nor settings.
"""

from __future__ import annotations

import os
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from storage.errors import InvalidInput
from streams.pipeline.status import Report
from streams.pipeline.status_fields import status_fields
from streams.pipeline.supervisor import JobStatus, Phase

HUNG_SECONDS: Final = 120.0  # updates come several times a second; a request to a store may take a minute
LOCAL: Final = "127.0.0.1"
_MAX_PORT: Final = 65_535

_COUNTERS: Final = {
    "rows": "Rows stored by a writer, or read by a service.",
    "commits": "Commits of a writer, or rounds of a service that changed the table.",
    "dead_letters": "Messages that could not be decoded or stored.",
    "tombstones_ignored": "Messages without a value that were skipped.",
    "restarts": "Restarts of the process of a part.",
}
_GAUGES: Final = {
    "lag": (
        "lag_messages",
        "Upper bound of the messages that are in the source and not in the table. Absent if unknown.",
    ),
    "freshness_seconds": (
        "freshness_seconds",
        "The table contains everything that the source had this many seconds ago. Absent if unknown.",
    ),
    "commit_age_seconds": ("commit_age_seconds", "Time since the last commit. Absent before the first one."),
    "waiting_seconds": (
        "waiting_seconds",
        "Time for which a broker or a store has not answered. Absent if all answer.",
    ),
    "due_bytes": ("due_bytes", "Stored bytes that are due for compaction or a fold. Absent if unknown."),
    "failures": ("failures_in_a_row", "Consecutive failed runs of the process without progress."),
}
_AT_WORK: Final = frozenset({"running", "idle", "compacting", "cleaning"})


class StatusPage:
    """The statuses of all jobs as of the last update. Usable from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No job is known before `update`."""
        self._clock = clock
        self._statuses: tuple[JobStatus, ...] = ()
        self._updated = clock()

    def update(self, statuses: Sequence[JobStatus]) -> None:
        """Replace the statuses of all jobs."""
        self._statuses, self._updated = tuple(statuses), self._clock()

    @property
    def healthy(self) -> bool:
        """Whether the last update is recent."""
        return self._clock() - self._updated < HUNG_SECONDS

    @property
    def ready(self) -> bool:
        """Whether there are jobs, and each is working or done."""
        return bool(self._statuses) and all(_is_at_work(status) for status in self._statuses)

    def fields(self) -> list[dict[str, Any]]:
        """Fields of each job, see `streams.pipeline.status_fields.status_fields`."""
        now_ms = time.time_ns() // 1_000_000
        return [status_fields(status, now_ms) for status in self._statuses]


def unsupervised_status(name: str, report: Report) -> JobStatus:
    """The status of a job that runs in this process, without a supervisor."""
    return JobStatus(name, Phase.RUNNING, os.getpid(), 0, report, "", Path(), (), None, background=False)


def _is_at_work(status: JobStatus) -> bool:
    running = status.phase is Phase.RUNNING and status.report.doing in _AT_WORK
    return status.phase is Phase.DONE or (running and status.report.waiting_since_ms is None)


class _Metrics(Collector):
    def __init__(self, page: StatusPage) -> None:
        self._page = page

    def collect(self) -> Iterable[Metric]:
        shown = self._page.fields()
        up = GaugeMetricFamily("weft_up", "Whether a process of the part runs.", labels=["part"])
        for fields in shown:
            up.add_metric([fields["job"]], float(fields["pid"] is not None))
        yield up
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"weft_{field}", text, labels=["part"])
            for fields in shown:
                counter.add_metric([fields["job"]], fields[field])
            yield counter
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"weft_{name}", text, labels=["part"])
            for fields in shown:
                if fields[field] is not None:
                    gauge.add_metric([fields["job"]], fields[field])
            yield gauge


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of ``9464``, ``0.0.0.0:9464`` or ``name:9464``. Without an address: this machine only.

    Raises:
        InvalidInput: The text does not have one of these forms, or the port is larger than 65535.
    """
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > _MAX_PORT:
        raise InvalidInput(
            f"--http {text}: not an address and a port", hint="for example --http 9464, or --http 0.0.0.0:9464"
        )
    return address or LOCAL, int(port)


@contextmanager
def serve_status(page: StatusPage, address: str, port: int) -> Iterator[int]:
    """Serve the page until the end of the block.

    Args:
        page: The page to serve.
        address: Address to listen on; ``0.0.0.0`` for all interfaces.
        port: Port to listen on; 0 for any free port.

    Yields:
        The port.

    Raises:
        InvalidInput: The port is taken, or the address is not one of this machine.
    """
    try:
        server = make_server(address, port, _application(page), _Server, _QuietHandler)
    except OSError as error:
        raise InvalidInput(
            f"--http: cannot listen at {address}:{port}: {error.strerror}", hint="choose another port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="weft-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _application(page: StatusPage) -> Callable[..., Iterable[bytes]]:
    registry = CollectorRegistry()
    registry.register(_Metrics(page))
    metrics = make_wsgi_app(registry)

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environment["PATH_INFO"]
        if path == "/metrics":
            return metrics(environment, start)
        good = {"/healthz": page.healthy, "/readyz": page.ready}.get(path)
        code = HTTPStatus.NOT_FOUND if good is None else HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        lines = [f"{fields['job']}: {fields['state']}\n" for fields in page.fields()]
        start(f"{code.value} {code.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [line.encode() for line in (lines if good is not None else ["see /metrics, /healthz and /readyz\n"])]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread per request, so that a client that reads slowly does not keep a probe waiting."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds; a client that sends nothing must not keep a thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Print nothing: standard error shows problems of the pipeline."""

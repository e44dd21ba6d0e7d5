"""HTTP endpoint with metrics for Prometheus, and with health and readiness for an orchestrator.

    GET /metrics   status of each part and of the table, as Prometheus metrics (`weft.streams.pipeline.run.metrics`)
    GET /healthz   200 if the process works; 503 if the page was not updated for `HUNG_SECONDS`
    GET /readyz    200 if every part works and writers commit; 503 if one is starting, waits for an outage to end, has
                   failed, does not report any more, or has had messages to commit for its trigger interval and
                   `STUCK_SECONDS` without a commit

A part is a writer or a service, by the name that the status shows. ``weft run --http`` serves the parts that it
supervises, and updates the page several times a second. A writer without a supervisor (spark-submit, the Spark
operator) serves itself: ``--http`` of `weft.streams.write.writer_job`, which updates the page with each of its reports.
The endpoint needs no authentication and shows no secrets: neither messages nor settings.
"""

from __future__ import annotations

import os
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from weft.storage.errors import InvalidInput
from weft.streams.pipeline.run.metrics import Metrics
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.status_fields import is_silent, state_word
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_watch import TableView

HUNG_SECONDS: Final = 120.0  # updates come several times a second; a request to a store may take a minute
LOCAL: Final = "127.0.0.1"
STUCK_SECONDS: Final = 600.0  # a batch that takes longer is too large, or hangs
_POLL_SECONDS: Final = 0.1
_MAX_PORT: Final = 65_535

_WORKING: Final = frozenset({"running", "idle", "compacting", "cleaning"})


class StatusPage:
    """The statuses of all jobs as of the last update, and the last view of each table. Usable from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a page without jobs; `update` adds them."""
        self._clock = clock
        self._statuses: tuple[JobStatus, ...] = ()
        self._updated = clock()
        self._last_progress: dict[str, tuple[int, float]] = {}
        self._tables: dict[str, TableView] = {}

    def update(self, statuses: Sequence[JobStatus]) -> None:
        """Replace the statuses of all jobs."""
        now = self._clock()
        last_progress = {}
        for status in statuses:
            commits = status.report.commits
            before = self._last_progress.get(status.name)
            is_idle = not status.report.lag  # nothing to commit, or the lag is unknown
            last_progress[status.name] = before if before and before[0] == commits and not is_idle else (commits, now)
        self._statuses, self._last_progress, self._updated = tuple(statuses), last_progress, now

    def show_table(self, uri: str, view: TableView) -> None:
        """Replace the view of one table."""
        self._tables = {**self._tables, uri: view}

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The statuses of the last update."""
        return self._statuses

    @property
    def tables(self) -> Mapping[str, TableView]:
        """The last view of each table, by location."""
        return self._tables

    @property
    def healthy(self) -> bool:
        """Whether the last update is recent."""
        return self._clock() - self._updated < HUNG_SECONDS

    @property
    def ready(self) -> bool:
        """Whether there are jobs, and each works and commits, or is done."""
        return bool(self._statuses) and not any(problem for _, problem in self.states())

    def states(self) -> list[tuple[JobStatus, str]]:
        """Each job, and why it is not ready; "" if it is."""
        return [(status, self._problem(status)) for status in self._statuses]

    def _problem(self, status: JobStatus) -> str:
        report = status.report
        if status.phase is Phase.DONE:
            return ""
        if status.phase is not Phase.RUNNING or report.doing not in _WORKING:
            return state_word(status)
        if report.waiting_since_ms is not None:
            return f"waits for {report.waiting_for}"
        if report.steady and is_silent(status, now_ms()):
            return "no report from its process"
        _, since = self._last_progress.get(status.name, (0, self._clock()))
        if report.lag and self._clock() - since >= STUCK_SECONDS + (report.trigger_seconds or 0.0):
            return f"no commit for {self._clock() - since:.0f} s, lag {report.lag}"
        return ""


def now_ms() -> int:
    """The time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def unsupervised_status(name: str, report: Report) -> JobStatus:
    """The status of a job that runs in this process, without a supervisor."""
    return JobStatus(name, Phase.RUNNING, os.getpid(), 0, report, "", Path(), (), None, background=False)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``9464``, ``0.0.0.0:9464`` or ``name:9464`` into address and port. The default address is the local one.

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
        InvalidInput: The port is in use, or this machine does not have the address.
    """
    try:
        server = make_server(address, port, _application(page), _Server, _QuietHandler)
    except OSError as error:
        raise InvalidInput(
            f"--http: cannot listen at {address}:{port}: {error.strerror}", hint="choose another port"
        ) from error
    # The end of the block waits for the end of an interval; Python's default is half a second.
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="weft-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _application(page: StatusPage) -> Callable[..., Iterable[bytes]]:
    registry = CollectorRegistry()
    registry.register(Metrics(lambda: page.statuses, lambda: page.tables, now_ms))
    metrics = make_wsgi_app(registry)

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environment["PATH_INFO"]
        if path == "/metrics":
            return metrics(environment, start)
        is_good = {"/healthz": page.healthy, "/readyz": page.ready}.get(path)
        code = HTTPStatus.NOT_FOUND if is_good is None else HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
        lines = []
        for status, problem in page.states():
            state = state_word(status)
            lines.append(f"{status.name}: {state}{f' ({problem})' if problem not in {'', state} else ''}\n")
        start(f"{code.value} {code.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [line.encode() for line in (lines if is_good is not None else ["see /metrics, /healthz and /readyz\n"])]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread per request, so that a client that reads slowly does not keep a probe waiting."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds; a client that sends nothing must not keep a thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Print nothing: standard error shows problems of the pipeline."""

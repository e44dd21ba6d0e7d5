"""Runs jobs, each as a process, and restarts them until they end or the supervisor has to stop.

Decides when a job is restarted and when it has failed permanently. It does not depend on Spark or tables.

    running -- exit 1, signal, UNAVAILABLE --------> waiting -- delay over --> running
    waiting -- too many runs without progress -----> failed
    running -- exit 0 / REFUSED / FENCED ----------> done / failed / fenced
    running -- has to stop: SIGTERM ---------------> stopping --> stopped   (SIGKILL after `Job.stop_seconds`)

A run has failed if it made no progress (`Report.progress`), however long it lasted, because starting may be slow.
An outage of a broker or a store (`Ending.UNAVAILABLE`) is not a failure of the job; it is restarted until the outage is
over. Jobs do not affect each other. No process outlives the supervisor, even if the supervisor is killed: see the
lifeline in `weft.streams.pipeline.run.stop_signal`. Use `run` for a whole program, or `start`, `poll` and `stop` in
another loop.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from weft.storage.errors import InvalidInput
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.job_process import Job, JobProcess
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.stop_signal import stop_signals

__all__ = ["Job", "JobStatus", "Phase", "RestartPolicy", "Supervisor", "ending_of_all"]

POLL_SECONDS: Final = 0.2  # an exit that closes no pipe is noticed within this time
KILL_SECONDS: Final = 10.0  # SIGKILL takes effect at once unless the kernel hangs; then waiting longer does not help


class Phase(StrEnum):
    """State of a job."""

    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FENCED = "fenced"
    FAILED = "failed"


ENDED: Final = frozenset({Phase.DONE, Phase.STOPPED, Phase.FENCED, Phase.FAILED})
GOOD_ENDS: Final = frozenset({Phase.DONE, Phase.STOPPED})
LOST: Final = ENDED - GOOD_ENDS


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to restart a job that ended by itself.

    Attributes:
        first_seconds: Delay after the first failure; doubled after each further one.
        last_seconds: Longest delay. After an outage has ended, a job may still be down for this time.
        max_failures: A job has failed permanently after this many consecutive runs without progress.
        waits_out: Whether to restart after outages without limit; if not, a job has failed permanently after one.
    """

    first_seconds: float = 1.0
    last_seconds: float = 30.0
    max_failures: int = 6
    waits_out: bool = True

    def delay(self, failures: int) -> float | None:
        """Seconds to wait after a number of consecutive failures; None if the job is not restarted any more."""
        return None if failures >= self.max_failures else self.back_off(failures)

    def back_off(self, times: int) -> float:
        """Seconds to wait before the next start, after the job has ended a number of times without progress."""
        # The exponent is bounded, because an outage may last for weeks.
        return min(self.first_seconds * 2.0 ** min(times - 1, 20), self.last_seconds)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of one job.

    Attributes:
        pid: Process id; None if no process runs.
        restarts: How often the job was restarted.
        failures: Consecutive failed runs without progress; outages do not count.
        report: The last report of the job, with totals over all its restarts.
        message: Why the job failed last, or is not running.
        tail: Last lines of its log, if it failed without a message.
        next_start_seconds: Seconds until the job is restarted; None if it is not waiting for a restart.
        exit_code: Exit code of its last process, negative for a signal; see
            `weft.streams.pipeline.run.error_kinds.Ending`.
    """

    name: str
    phase: Phase
    pid: int | None
    restarts: int
    report: Report
    message: str
    log: Path
    tail: tuple[str, ...]
    next_start_seconds: float | None
    background: bool
    exit_code: int | None = None
    failures: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the job has failed permanently or was fenced."""
        return self.phase in LOST


def ending_of_all(statuses: Iterable[JobStatus]) -> Ending:
    """Exit code of a process that has run jobs: the worst one of the jobs, where FAILED is worse than FENCED.

    A fenced writer has an exit code of its own, because starting it again fences the process that took over its lane.
    """
    lost = {status.phase for status in statuses if status.is_lost}
    if lost == {Phase.FENCED}:
        return Ending.FENCED
    return Ending.FAILED if lost else Ending.DONE


class Supervisor:
    """Runs jobs. Call `start`, `poll`, `run` and `stop` from one thread; the other methods are thread-safe."""

    def __init__(self, jobs: Sequence[Job], policy: RestartPolicy | None = None) -> None:
        """Start nothing yet.

        Raises:
            InvalidInput: There is no job, or two jobs have the same name.
        """
        names = [job.name for job in jobs]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"jobs {names}: at least one job is needed, and names must differ", hint="rename a job")
        policy = policy or RestartPolicy()
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._slots = {job.name: _Slot(job, policy, self._selector) for job in jobs}
        self._lifeline = (-1, -1)
        self._wake = (-1, -1)
        self._stop_requests = 0

    def start(self) -> None:
        """Start every job."""
        with self._lock:
            assert self._wake == (-1, -1), "a supervisor is started once"
            # Children inherit only the descriptors that are passed to them. So only this process has the writing end
            # of the lifeline, which closes when this process ends.
            self._lifeline, self._wake = os.pipe(), os.pipe()
            os.set_blocking(self._wake[0], False)
            self._selector.register(self._wake[0], selectors.EVENT_READ)
            for slot in self._slots.values():
                slot.start(self._lifeline[0])

    def poll(self, wait_seconds: float = 0.0) -> tuple[JobStatus, ...]:
        """Read reports, notice exits and start jobs that are due.

        Args:
            wait_seconds: Maximum time to wait for an event.
        """
        for key, _ in self._selector.select(min(wait_seconds, POLL_SECONDS)):
            if key.fd == self._wake[0]:
                os.read(key.fd, 64)
        with self._lock:
            for slot in self._slots.values():
                slot.step(self._lifeline[0])
            alive = [slot for slot in self._slots.values() if slot.phase not in ENDED]
            if alive and all(slot.job.background for slot in alive):
                for slot in alive:
                    slot.request_stop()
            return self.statuses

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """Status of each job at the last poll, in the order of the jobs."""
        with self._lock:
            return tuple(slot.status for slot in self._slots.values())

    @property
    def finished(self) -> bool:
        """Whether every job has ended and none will be restarted."""
        return all(slot.phase in ENDED for slot in self._slots.values())

    @property
    def succeeded(self) -> bool:
        """Whether every job is done, or was stopped on request."""
        return all(slot.phase in GOOD_ENDS for slot in self._slots.values())

    @property
    def is_stop_requested(self) -> bool:
        """Whether SIGTERM or Ctrl-C ended `run`."""
        return self._stop_requests > 0

    def request_stop(self) -> None:
        """Send SIGTERM to every job. Later calls of `poll` kill jobs that take too long to stop."""
        with self._lock:
            for slot in self._slots.values():
                slot.request_stop()

    def stop(self, *, at_once: bool = False) -> tuple[JobStatus, ...]:
        """Send SIGTERM to every job, and wait until all have ended.

        Args:
            at_once: Send SIGKILL instead.
        """
        self.request_stop()
        if at_once:
            self._kill_all()
        while not self.finished:
            self.poll(POLL_SECONDS)
        self._close()
        return self.statuses

    def run(
        self, on_status: Callable[[tuple[JobStatus, ...]], None] = lambda _: None, *, exit_on_failure: bool = False
    ) -> bool:
        """Run until all jobs have ended, or until SIGTERM or Ctrl-C; a second signal kills the jobs.

        Args:
            on_status: Called after each poll, several times a second.
            exit_on_failure: Stop all jobs as soon as one has failed permanently.

        Returns:
            `succeeded`.
        """
        with stop_signals(self._handle_signal):
            self.start()
            try:
                while not self.finished:
                    statuses = self.poll(POLL_SECONDS)
                    on_status(statuses)
                    lost = exit_on_failure and any(status.is_lost for status in statuses)
                    if self._stop_requests == 1 or (lost and not self._stop_requests):
                        self.request_stop()
                    elif self._stop_requests > 1:
                        self._kill_all()
            finally:
                on_status(self.stop())
        return self.succeeded

    def _handle_signal(self, *_: object) -> None:
        """Handle a signal to stop."""
        self._stop_requests += 1
        if self._wake[1] >= 0:
            os.write(self._wake[1], b"!")

    def _kill_all(self) -> None:
        with self._lock:
            for slot in self._slots.values():
                slot.kill()

    def _close(self) -> None:
        with self._lock:
            if self._wake[0] < 0:
                return
            self._selector.unregister(self._wake[0])
            for descriptor in (*self._lifeline, *self._wake):
                os.close(descriptor)
            self._lifeline = self._wake = (-1, -1)


class _Slot:
    """State of one job, and its process if it runs."""

    def __init__(self, job: Job, policy: RestartPolicy, selector: selectors.BaseSelector) -> None:
        self.job = job
        self.phase = Phase.WAITING
        self.process: JobProcess | None = None
        self._policy, self._selector = policy, selector
        self._report = Report()
        self._message = ""
        self._exit_code: int | None = None
        self._tail: tuple[str, ...] = ()
        self._restarts = -1  # the first start is not a restart
        self._failures = 0
        self._outages = 0
        self._progress = 0
        self._next_start = self._deadline = 0.0

    @property
    def status(self) -> JobStatus:
        waits = self.phase is Phase.WAITING
        return JobStatus(
            name=self.job.name,
            phase=self.phase,
            pid=self.process.pid if self.process else None,
            restarts=max(0, self._restarts),
            report=self._report,
            message=self._message,
            exit_code=self._exit_code,
            log=self.job.log,
            tail=self._tail,
            next_start_seconds=max(0.0, self._next_start - time.monotonic()) if waits else None,
            background=self.job.background,
            failures=self._failures,
        )

    def start(self, lifeline: int) -> None:
        self._restarts += 1
        self._progress = self._report.progress
        self._report = self._report.restarted()
        try:
            self.process = JobProcess(self.job, lifeline, self._report)
        except OSError as error:
            self.phase, self._message = Phase.FAILED, f"cannot be started: {error}"
            return
        self._selector.register(self.process.status_fd, selectors.EVENT_READ)
        self.phase = Phase.RUNNING

    def step(self, lifeline: int) -> None:
        """Read reports. Handle the end of the process, of a restart delay, and of the time limit for stopping."""
        now = time.monotonic()
        if self.process is None:
            if self.phase is Phase.WAITING and now >= self._next_start:
                self.start(lifeline)
            return
        code = self.process.exit_code()
        try:
            self._keep_last(self.process.reports())
        except ValueError as error:
            self._message = str(error)
        if code is not None:
            self._handle_end(self.process, code)
            return
        if self.process.has_closed_pipe:
            self._unregister(self.process)
        if self.phase is Phase.STOPPING and now >= self._deadline:
            self._message = f"killed: it did not stop within {self.job.stop_seconds:g} s"
            self.process.kill_group()
            if now >= self._deadline + KILL_SECONDS:
                self._message = f"process {self.process.pid} did not end after SIGKILL: it is blocked in the kernel"
                self._unregister(self.process)
                self.process.abandon()
                self.process, self.phase = None, Phase.FAILED

    def request_stop(self) -> None:
        if self.process is None:
            if self.phase not in ENDED:
                self.phase = Phase.STOPPED
        elif self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._deadline = time.monotonic() + self.job.stop_seconds
            self.process.send(signal.SIGTERM)

    def kill(self) -> None:
        self.request_stop()
        if self.process is not None:
            self.process.kill_group()

    def _keep_last(self, reports: list[Report]) -> None:
        if reports:
            self._report = reports[-1]

    def _unregister(self, process: JobProcess) -> None:
        """Stop polling the status pipe: a closed pipe is always readable."""
        if process.status_fd in self._selector.get_map():
            self._selector.unregister(process.status_fd)

    def _handle_end(self, process: JobProcess, code: int) -> None:
        self._unregister(process)
        self._keep_last(process.close())
        self.process = None
        self._exit_code = code
        stopping = self.phase is Phase.STOPPING
        if code == Ending.DONE or (stopping and (code < 0 or code == Ending.UNAVAILABLE)):
            self.phase = Phase.STOPPED if stopping else Phase.DONE
            return
        has_reason = code in set(Ending) and bool(self._report.message)
        self._message = self._report.message if has_reason else _describe_exit(code, process.tail)
        self._tail = () if has_reason else process.tail
        if code == Ending.FENCED:
            self.phase = Phase.FENCED
        elif code == Ending.REFUSED or stopping or (code == Ending.UNAVAILABLE and not self._policy.waits_out):
            self.phase = Phase.FAILED
        else:
            self._plan_restart(code)

    def _plan_restart(self, code: int) -> None:
        if self._report.progress > self._progress:
            self._failures = self._outages = 0
        delay: float | None
        if code == Ending.UNAVAILABLE:
            self._outages += 1
            delay = self._policy.back_off(self._outages)
        else:
            self._failures += 1
            delay = self._policy.delay(self._failures)
        if delay is None:
            self.phase = Phase.FAILED
            self._message += f" (failed {self._failures} times in a row)"
        else:
            self.phase = Phase.WAITING
            self._next_start = time.monotonic() + delay


def _describe_exit(code: int, tail: Sequence[str]) -> str:
    """Why a job ended that did not report it, from its exit code and the last line of its log."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {tail[-1]}" if tail and code > 0 else how

"""The processes of the soak: the jobs of the pipeline and their incarnations, and operations on them.

Unlike the supervisor of a pipeline this one can leave a process frozen and start its successor beside it: the old
process is a zombie, which later continues its work. It restarts every process that ended, for any reason, and records
the reasons. No process outlives the block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.supervisor import ENDED, Job, JobStatus, Phase, RestartPolicy, Supervisor

ONCE: Final = RestartPolicy(max_failures=1, waits_out=False)
"""A supervisor that starts its job once: restarts are decided here."""
RESTART_SECONDS: Final = 0.5  # pause before a restart
ZOMBIE_SECONDS: Final = 90.0  # from its continuation to its end, including the end of Spark on a busy machine


@dataclass
class Incarnation:
    """One process of a job."""

    job: Job
    supervisor: Supervisor
    thaw_at: float | None = None

    @classmethod
    def start(cls, job: Job) -> Incarnation:
        made = cls(job, Supervisor([job], ONCE))
        made.supervisor.start()
        return made

    @property
    def status(self) -> JobStatus:
        return self.supervisor.statuses[0]

    @property
    def frozen(self) -> bool:
        return self.thaw_at is not None

    def signal(self, number: int) -> None:
        """Send a signal to the process and its JVM, which are one process group."""
        pid = self.status.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def step(self) -> bool:
        """Poll the process; returns whether it still runs."""
        if self.thaw_at is not None and time.monotonic() >= self.thaw_at:
            self.thaw()
        status = self.supervisor.poll()[0]
        return status.phase not in ENDED

    def thaw(self) -> None:
        self.thaw_at = None
        self.signal(signal.SIGCONT)


@dataclass
class Tally:
    """Operations on the processes, and how the processes ended.

    Attributes:
        restarts: Incarnations after the first of each job.
        fenced: Writers that ended because another had claimed their lane.
        zombies: Frozen processes that had a successor when they continued.
        failures: Reasons why processes ended that were not killed, with counts.
        findings: Ends that must not occur.
    """

    kills: int = 0
    freezes: int = 0
    zombies: int = 0
    restarts: int = 0
    fenced: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Jobs:
    """All jobs of the soak, a context manager: at the end no process is left."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.tally = Tally()
        # A supervisor with background jobs only would end them at once.
        self._jobs = {job.name: replace(job, background=False) for job in jobs}
        self._current: dict[str, Incarnation] = {}
        self._zombies: list[tuple[Incarnation, float]] = []
        self._next_start: dict[str, float] = {}

    def __enter__(self) -> Self:
        for name, job in self._jobs.items():
            self._current[name] = Incarnation.start(job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for incarnation in [*self._current.values(), *(zombie for zombie, _ in self._zombies)]:
            incarnation.supervisor.stop(at_once=True)

    def names(self) -> list[str]:
        """Jobs that have a process that is not frozen."""
        return [
            name
            for name, incarnation in self._current.items()
            if incarnation.status.pid is not None and not incarnation.frozen
        ]

    def kill(self, name: str) -> None:
        """SIGKILL for a job's process, its JVM included."""
        self.tally.kills += 1
        self._current[name].signal(signal.SIGKILL)

    def freeze(self, name: str, seconds: float) -> None:
        """Send SIGSTOP, and SIGCONT some seconds later."""
        self.tally.freezes += 1
        incarnation = self._current[name]
        incarnation.signal(signal.SIGSTOP)
        incarnation.thaw_at = time.monotonic() + seconds

    def replace(self, name: str, seconds: float) -> None:
        """Freeze a process and start its successor beside it; some seconds later the frozen one continues."""
        self.freeze(name, seconds)
        incarnation = self._current[name]
        self._zombies.append((incarnation, time.monotonic() + seconds + ZOMBIE_SECONDS))
        self.tally.zombies += 1
        self._start(name)

    def wake(self, name: str) -> None:
        """Let the zombies of a job continue now."""
        for incarnation, _ in self._zombies:
            if incarnation.job.name == name and incarnation.frozen:
                incarnation.thaw()

    def step(self) -> None:
        """Record which processes ended, and restart them."""
        now = time.monotonic()
        for name, incarnation in self._current.items():
            if incarnation.step() or name in self._next_start:
                continue
            self._note(incarnation)
            self._next_start[name] = now + RESTART_SECONDS
        for name in [name for name, at in self._next_start.items() if at <= now]:
            del self._next_start[name]
            self._start(name)
        zombies = []
        for incarnation, until in self._zombies:
            if not incarnation.step():
                self._note(incarnation)
            elif now >= until:
                # It may wait for a source without new messages: it notices only at a commit that it is fenced.
                incarnation.supervisor.stop(at_once=True)
            else:
                zombies.append((incarnation, until))
        self._zombies = zombies

    def calm(self) -> None:
        """Let all frozen processes continue, and end the zombies."""
        for incarnation, _ in self._zombies:
            incarnation.supervisor.stop(at_once=True)
        self._zombies = []
        for incarnation in self._current.values():
            if incarnation.frozen:
                incarnation.thaw()

    def stop(self) -> None:
        """End all processes normally, as Ctrl-C does."""
        self.calm()
        for incarnation in self._current.values():
            incarnation.supervisor.request_stop()
        for name, incarnation in self._current.items():
            if incarnation.supervisor.stop()[0].phase is Phase.FAILED and name not in self._next_start:
                self._note(incarnation)

    def _start(self, name: str) -> None:
        self.tally.restarts += 1
        self._current[name] = Incarnation.start(self._jobs[name])

    def _note(self, incarnation: Incarnation) -> None:
        status = incarnation.status
        incarnation.supervisor.stop()  # it has ended: this closes its pipes
        if status.exit_code == -signal.SIGKILL:
            return  # stopped by this program
        if status.phase is Phase.FENCED:
            self.tally.fenced += 1
            return
        why = f"{status.name}: {status.message}"
        self.tally.failures[why] += 1
        # Errors for which a retry does not help are findings, because everything is retried here.
        if status.exit_code in {Ending.REFUSED, None} or status.exit_code == Ending.DONE:
            self.tally.findings.append(f"{why} (exit code {status.exit_code}; log: {status.log})")

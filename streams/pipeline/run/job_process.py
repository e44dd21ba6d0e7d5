"""One run of one job: a process in its own session, with its pipes and its log.

The process and its descendants are one process group, which is killed when the process ends. The log has a bounded
size. Reading reports never blocks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final

from weft.streams.pipeline.run.report import Report, parse_report
from weft.streams.pipeline.run.reporter import RESUME, STATUS_FD
from weft.streams.pipeline.run.stop_signal import LIFELINE_FD

STOP_SECONDS: Final = 20.0  # time to finish a batch and stop Spark; a killed writer loses nothing
LOG_BYTES: Final = 4 * 1024 * 1024
TAIL_LINES: Final = 20  # lines of the log that are shown when a job fails
_READ_BYTES: Final = 1 << 16
_PUMP_SECONDS: Final = 2.0  # limit for reading the rest of the log after the process group has ended


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run.

    Attributes:
        name: Unique within a supervisor.
        argv: The command; it reports as `weft.streams.pipeline.run.reporter` describes.
        log: File for its standard output and error.
        env: Environment variables in addition to those of the supervisor.
        background: The job serves other jobs; when only such jobs are left, they are stopped.
        stop_seconds: Time from SIGTERM to SIGKILL.
        lock_fds: Open file descriptors of the locks that the process inherits.
        log_bytes: Size at which a new log file is begun. One older file is kept, so a job uses up to twice that.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    background: bool = False
    stop_seconds: float = STOP_SECONDS
    lock_fds: tuple[int, ...] = ()
    log_bytes: int = LOG_BYTES


class JobProcess:
    """A running process of a job.

    Attributes:
        status_fd: Descriptor of the status pipe; readable when there are reports.
        has_closed_pipe: Whether the job has closed its end of the pipe, usually because it ended.
    """

    def __init__(self, job: Job, lifeline: int, resumed: Report) -> None:
        """Start the process.

        Raises:
            OSError: The command cannot be started, or the log cannot be written.
        """
        self._log = _Log(job.log, job.log_bytes)
        reading, writing = os.pipe()
        environment = {
            **os.environ,
            **job.env,
            STATUS_FD: str(writing),
            LIFELINE_FD: str(lifeline),
            RESUME: json.dumps(asdict(resumed)),
        }
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - the command is the caller's
                job.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writing, lifeline, *job.lock_fds),
                start_new_session=True,  # Ctrl-C reaches the supervisor only, which then stops the jobs
            )
        except OSError:
            os.close(reading)
            self._log.close()
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self.status_fd = reading
        self.has_closed_pipe = False
        self._partial = b""
        assert self._popen.stdout is not None
        self._pump = threading.Thread(
            target=self._log.pump, args=(self._popen.stdout,), name=f"weft-log-{job.name}", daemon=True
        )
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the log."""
        return tuple(self._log.tail)

    def reports(self) -> list[Report]:
        """Reports since the last call.

        Raises:
            ValueError: The job wrote something that is not a report.
        """
        data = self._partial
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.status_fd, _READ_BYTES):
                data += part
            self.has_closed_pipe = True
        *lines, self._partial = data.split(b"\n")
        return [parse_report(line) for line in lines if line]

    def send(self, number: int) -> None:
        """Send a signal to the process; does nothing if it has ended."""
        self._popen.send_signal(number)

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._popen.poll()

    def kill_group(self) -> None:
        """Kill the process and all its descendants."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> list[Report]:
        """Clean up after the process has ended, and return its last reports."""
        assert self._popen.poll() is not None, "only an ended process is closed"
        self.kill_group()  # descendants must not outlive the process
        try:
            return self.reports()
        except ValueError:
            return []  # the process was killed while it wrote a line
        finally:
            os.close(self.status_fd)
            self._pump.join(_PUMP_SECONDS)

    def abandon(self) -> None:
        """Stop waiting for a process that SIGKILL does not end."""
        os.close(self.status_fd)


class _Log:
    """A log file that keeps between ``max_bytes`` and twice ``max_bytes`` of the newest output."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._path, self._max_bytes = path, max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._file.write(f"--- {dt.datetime.now(dt.UTC).isoformat(timespec='seconds')} started\n".encode())

    def pump(self, source: IO[bytes]) -> None:
        """Copy line by line until the source ends."""
        with source:
            # A very long line is cut.
            while line := source.readline(_READ_BYTES):
                self.tail.append(line.decode(errors="replace").rstrip())
                try:
                    self._write(line)
                except OSError as error:
                    # A full disk must not stop a writer: its output has to be read even if it cannot be stored.
                    self.tail.append(f"(not written to {self._path}: {error})")
        self.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        if self._file.tell() >= self._max_bytes:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            with self._file:
                self._file = self._path.open("ab")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; the last lines are in the tail
            self._file.close()

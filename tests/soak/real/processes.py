"""The processes of the soak with a real broker: ``weft run``, the schema registry, and a session of SQL queries.

Each is a context manager, and no process outlives its block. `memory_of` reads what their descendants hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from tests.http_get import get
from tests.reserved_port import reserved_port

STOP_SECONDS: Final = 60.0
START_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.1
_PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 1024**2


class Process:
    """A Python module as a process that can be stopped, killed and started again."""

    def __init__(self, name: str, arguments: tuple[str, ...], log: Path) -> None:
        self.name = name
        self._arguments, self._log = arguments, log
        self._popen: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        assert self._popen is None, f"{self.name} is already running"
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._popen,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its id; 0 if it is not started."""
        return 0 if self._popen is None else self._popen.pid

    @property
    def ended(self) -> int | None:
        """The exit status of a process that ended by itself."""
        return None if self._popen is None else self._popen.poll()

    def say(self, line: str) -> None:
        """Write a line to its standard input; a process that has ended does not get it."""
        assert self._popen is not None
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(line + "\n")
            self._popen.stdin.flush()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """End the process; returns its exit status, None if it was not running."""
        process, self._popen = self._popen, None
        if process is None:
            return None
        process.send_signal(how)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait(STOP_SECONDS)
        assert self._reader is not None
        self._reader.join(STOP_SECONDS)
        return status

    def kill(self) -> None:
        """SIGKILL for the process."""
        self.stop(signal.SIGKILL)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.heard(line)

    def heard(self, line: str) -> None:
        """Called with each line of standard output, in a thread."""


class Server(Process):
    """A process that serves a port, which it gets again when it is started again."""

    def __init__(self, name: str, arguments: Callable[[int], tuple[str, ...]], log: Path) -> None:
        self._reservation = contextlib.ExitStack()
        self.port = self._reservation.enter_context(reserved_port())
        super().__init__(name, arguments(self.port), log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._reservation.close()


class WeftRun(Server):
    """``weft run PIPELINE --http PORT --json``.

    Attributes:
        statuses: The last status line of each part, by name.
    """

    def __init__(self, pipeline: Path, log: Path) -> None:
        command = ("weft.streams.cli.main", "run", str(pipeline), "--json", "--http")
        super().__init__("weft run", lambda port: (*command, str(port)), log)
        self.statuses: dict[str, dict[str, Any]] = {}

    def heard(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            status = json.loads(line)
            self.statuses[status["job"]] = status

    def start(self) -> None:
        self.statuses = {}
        super().start()

    def is_running(self, name: str) -> bool:
        """Whether a part has a process."""
        pid = self.statuses.get(name, {}).get("pid")
        return bool(pid) and pid in descendants(self.pid)

    def kill_part(self, name: str) -> bool:
        """SIGKILL for the process of a part, with its JVM; returns whether there was one."""
        pid = self.statuses.get(name, {}).get("pid")
        if not pid or pid not in descendants(self.pid):
            return False
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def scrape(self) -> str:
        """The text of ``/metrics``.

        Raises:
            OSError: It does not answer.
        """
        return get(f"http://127.0.0.1:{self.port}/metrics", seconds=5)


class AnyRegistry(Protocol):
    """A schema registry that keeps its port and its schemas when it is killed and started again."""

    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def register(self, subject: str, schema: str, kind: str) -> int: ...


class Registry(Server):
    """The schema registry of the tests. It keeps port and schemas."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            "registry",
            lambda port: ("tests.soak.real.registry_process", str(port), str(folder / "schemas.jsonl")),
            folder / "registry.log",
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        super().start()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/schemas/types", timeout=1):
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError("the registry does not start")

    def register(self, subject: str, schema: str, kind: str) -> int:
        """Register a schema; returns its id.

        Raises:
            OSError: The registry does not answer.
        """
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return int(json.load(answer)["id"])


class Queries(Process):
    """A Spark session that answers SQL queries over the table, see `tests.soak.real.queries`."""

    def __init__(self, table: Path, log: Path) -> None:
        super().__init__("queries", ("tests.soak.real.queries", str(table)), log)
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def heard(self, line: str) -> None:
        if line.startswith("{"):
            self.answers.put(json.loads(line))


# --- memory ----------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Ids of all descendants of a process, with the names of their programs."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for one, parent, name in _processes():
        children.setdefault(parent, []).append(one)
        names[one] = name
    found, waiting = {}, [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = names[child]
            waiting.append(child)
    return found


def _processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                head, _, rest = (folder / "stat").read_text().rpartition(")")
                yield int(folder.name), int(rest.split()[1]), head.partition("(")[2]


def memory_of(pids: Mapping[int, str]) -> dict[int, float]:
    """Resident memory of processes in MiB, by id; those that have ended are left out."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB
    return found

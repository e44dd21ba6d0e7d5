"""What a measured step costs: seconds, and the CPU seconds of this process and of all that it has started.

Seconds depend on what else the machine does, so they are compared only between steps that take turns. CPU seconds
depend on it far less, so they also compare what runs once. They are those of the JVM, with its compiler and its garbage
collector, and of the Python workers. They need Linux (`/proc`).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_EVERY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the clock, and CPU seconds."""

    seconds: float
    cpu: float

    @classmethod
    def of(cls, run: Callable[[], object]) -> Self:
        """Run it once."""
        cpu, started = cpu_seconds(), time.perf_counter()
        with _processes.watched():
            run()
        seconds = time.perf_counter() - started
        return cls(seconds, cpu_seconds() - cpu)

    @classmethod
    def median(cls, costs: Sequence[Self]) -> Self:
        """Of the seconds, and of the CPU seconds."""
        return cls(statistics.median(each.seconds for each in costs), statistics.median(each.cpu for each in costs))

    def figures(self, name: str) -> dict[str, float]:
        """Under the names that the report looks for."""
        return {name: self.seconds, cpu_name(name): self.cpu}


def cpu_name(name: str) -> str:
    """Name of the figure with the CPU seconds of a step."""
    return f"{name}, CPU"


class _Processes:
    """CPU seconds of this process and of all below it, also of those that have ended.

    The kernel adds the time of an ended process to its parent's only if that waits for it. Spark's daemon of Python
    workers does not, and Spark ends workers that were idle for a minute. So what each process had used when it was last
    seen is kept.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def cpu_seconds(self) -> float:
        """Until now; processes that began and ended since the last call are not in it."""
        with self._lock:
            self._look()
            return sum(self._seen.values())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look twice a second during the block."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_EVERY):
                self.cpu_seconds()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self) -> None:
        now: dict[int, tuple[str, float]] = {}
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # it has ended
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    now[int(entry.name)] = fields[19], (int(fields[11]) + int(fields[12])) / _TICKS
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [os.getpid()]
        for pid in found:
            found += children.get(pid, [])
        for pid in found:
            if pid in now:
                began, used = now[pid]
                self._seen[pid, began] = used


_processes: Final = _Processes()


def cpu_seconds() -> float:
    """CPU seconds of this process and of all below it until now; see the module for what is in them."""
    return _processes.cpu_seconds()

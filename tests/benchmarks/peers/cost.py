"""What a measured step costs: seconds, and the CPU seconds of this process and of all that it has started.

Seconds depend on what else the machine does, so they are compared only between steps that take turns. CPU seconds
depend on it far less, so they also compare what runs once. They are those of the JVM, with its compiler and its garbage
collector, and of the Python workers. They need Linux (`/proc`).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds on the clock, and CPU seconds."""

    seconds: float
    cpu: float

    @classmethod
    def of(cls, run: Callable[[], object]) -> Self:
        """Run it once."""
        cpu, started = cpu_seconds(), time.perf_counter()
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


def cpu_seconds() -> float:
    """Of this process and its children: those that run, and those that have ended and were waited for."""
    used, children = {}, dict[int, list[int]]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                used[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return sum(used.get(pid, 0) for pid in found)

"""Resident memory of all processes of the soak, by role and process, and whether it grows.

A JVM takes memory until its heap has the size that it may have (512 MiB here), whether it needs it or not. So its
growth may be larger than that of other processes, but there is a limit of the whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

WARM_UP_SECONDS: Final = 90.0
"""A JVM compiles, and its heap reaches its size, during this time."""
JUDGED_SECONDS: Final = 240.0  # of life, from which on a process is judged; a quarter of it has 12 samples
GROWTH: Final = 1.1
GROWTH_MIB: Final = 16.0
JAVA_GROWTH: Final = 1.3
JAVA_GROWTH_MIB: Final = 48.0
JAVA_MIB: Final = 700.0
SHOWN_MIB: Final = 20.0


@dataclass(frozen=True, slots=True)
class Life:
    """One process that lived long enough.

    Attributes:
        seconds: How long it was seen.
        before, after: Median in MiB of the third and of the last quarter of its life.
    """

    role: str
    pid: int
    seconds: float
    before: float
    after: float

    @property
    def grows(self) -> bool:
        if "java" in self.role:
            return self.after > min(JAVA_MIB, self.before * JAVA_GROWTH + JAVA_GROWTH_MIB)
        return self.after > self.before * GROWTH + GROWTH_MIB


@dataclass
class Memory:
    """Samples of resident memory."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    """Seconds and MiB, by role and process id."""

    def add(self, seconds: float, roles: Mapping[int, str], mib: Mapping[int, float]) -> None:
        for pid, held in mib.items():
            self.samples.setdefault((roles[pid], pid), []).append((seconds, held))

    def lives(self) -> list[Life]:
        """The processes that lived for `JUDGED_SECONDS` or longer; the longest life first."""
        found = []
        for (role, pid), samples in self.samples.items():
            first, last = samples[0][0], samples[-1][0]
            if last - first < JUDGED_SECONDS:
                continue
            middle, quarter = (first + last) / 2, (last - first) / 4
            third = [held for at, held in samples if middle <= at < middle + quarter]
            fourth = [held for at, held in samples if middle + quarter <= at]
            if middle >= first + WARM_UP_SECONDS and third and fourth:
                found.append(Life(role, pid, last - first, statistics.median(third), statistics.median(fourth)))
        return sorted(found, key=lambda life: -life.seconds)

    def wrong(self) -> Iterator[str]:
        """Processes that grow in the second half of their lives, beyond the limits of this module."""
        for life in self.lives():
            if life.grows:
                yield (
                    f"{life.role} (process {life.pid}) has grown from {life.before:.0f} to {life.after:.0f} MiB in "
                    f"the second half of its {life.seconds:.0f} s"
                )

    def report(self) -> Iterator[str]:
        """For each role: its longest-lived process, in MiB; roles below `SHOWN_MIB` are left out."""
        shown: set[str] = set()
        for life in self.lives():
            if life.role not in shown and life.after >= SHOWN_MIB:
                shown.add(life.role)
                grown = f"{life.before:.0f} -> {life.after:.0f} MiB"
                yield f"  {life.role}: {grown} in the second half of {life.seconds:.0f} s"

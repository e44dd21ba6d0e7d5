"""Resident memory of all processes of the soak, by role and process, and whether it grows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

WARM_UP_SECONDS: Final = 90.0
"""A JVM compiles, and its heap reaches its size, during this time."""
JUDGED_SECONDS: Final = 60.0  # of life after the warm-up, from which on a process is judged
GROWTH: Final = 1.3
GROWTH_MIB: Final = 48.0
SHOWN_MIB: Final = 20.0


@dataclass
class Memory:
    """Samples of resident memory."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)
    """Seconds and MiB, by role and process id."""

    def add(self, seconds: float, roles: Mapping[int, str], mib: Mapping[int, float]) -> None:
        for pid, held in mib.items():
            self.samples.setdefault((roles[pid], pid), []).append((seconds, held))

    def wrong(self) -> Iterator[str]:
        """Processes that have grown after their warm-up beyond `GROWTH` and `GROWTH_MIB`."""
        for (role, pid), samples in self.samples.items():
            warm = [held for at, held in samples if at >= samples[0][0] + WARM_UP_SECONDS]
            if samples[-1][0] - samples[0][0] < WARM_UP_SECONDS + JUDGED_SECONDS:
                continue
            part = max(1, len(warm) // 4)
            first, last = statistics.median(warm[:part]), statistics.median(warm[-part:])
            if last > first * GROWTH + GROWTH_MIB:
                yield f"{role} (process {pid}) has grown from {first:.0f} to {last:.0f} MiB after its warm-up"

    def report(self) -> Iterator[str]:
        """For each role: its longest-lived process over time, in MiB; roles below `SHOWN_MIB` are left out."""
        longest: dict[str, list[tuple[float, float]]] = {}
        count: dict[str, int] = {}
        for (role, _), samples in self.samples.items():
            count[role] = count.get(role, 0) + 1
            if len(samples) > len(longest.get(role, ())):
                longest[role] = samples
        for role, samples in sorted(longest.items()):
            if max(held for _, held in samples) < SHOWN_MIB:
                continue
            step = max(1, len(samples) // 6)
            shown = " ".join(f"{held:.0f}" for _, held in samples[::step])
            life = samples[-1][0] - samples[0][0]
            yield f"  {role}: {shown} over {life:.0f} s ({count[role]} processes)"

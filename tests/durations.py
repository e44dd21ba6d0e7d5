"""What tests cost: recorded by a run with ``--record-durations``, used to choose the fast loop and to order all loops.

`durations.tsv` has a line for each test that took longer than `SHORTEST_RECORDED`: CPU seconds of its process and their
children, wall seconds, and its node id. A test that is not in the file counts as quick, so a new one is run everywhere
until the next recording:

    bash deploy/test.sh --ci --record-durations

``--at-most SECONDS`` leaves out tests whose recorded CPU or wall time is longer; a test with the marker `smoke` stays.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).with_name("durations.tsv")
SHORTEST_RECORDED: Final = 0.2
"""CPU or wall seconds. Shorter tests are most of all, and cost little."""
_PROPERTY: Final = "duration"


@dataclass(frozen=True, slots=True)
class Duration:
    """CPU and wall seconds of a test, with its fixtures."""

    cpu: float
    wall: float

    @property
    def longest(self) -> float:
        return max(self.cpu, self.wall)


@functools.cache
def recorded() -> Mapping[str, Duration]:
    """The durations of the last recording, by node id."""
    durations = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        cpu, wall, node_id = line.split("\t", 2)
        durations[node_id] = Duration(float(cpu), float(wall))
    return durations


@functools.cache
def wall_seconds_of_files() -> Mapping[str, float]:
    """The recorded wall seconds of all tests of a file together, by the path in its node ids."""
    seconds: Counter[str] = Counter()
    for node_id, duration in recorded().items():
        seconds[node_id.partition("::")[0]] += duration.wall  # type: ignore[assignment]
    return seconds


def is_quick(item: pytest.Item, seconds: float) -> bool:
    """Whether a test took at most so many seconds when it was recorded, or is in every loop."""
    duration = recorded().get(item.nodeid)
    return duration is None or duration.longest <= seconds or item.get_closest_marker("smoke") is not None


class Recorder:
    """Writes `FILE` at the end of a session. The processes of pytest-xdist measure; the first process collects."""

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes
        self._durations: dict[str, Duration] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu, wall = cpu_seconds(), time.monotonic()
        item.user_properties.append((_PROPERTY, (cpu, wall)))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            for place, (name, began) in enumerate(item.user_properties):
                if name == _PROPERTY:
                    cpu, wall = began  # type: ignore[misc]
                    item.user_properties[place] = (_PROPERTY, (cpu_seconds() - cpu, time.monotonic() - wall))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, seconds in report.user_properties:
                if name == _PROPERTY:
                    self._durations[report.nodeid] = Duration(*seconds)  # type: ignore[misc]

    def pytest_sessionfinish(self) -> None:
        if not self._writes:
            return
        kept = {name: found for name, found in recorded().items() if name not in self._durations}
        kept |= {name: found for name, found in self._durations.items() if found.longest > SHORTEST_RECORDED}
        lines = [f"{found.cpu:.1f}\t{found.wall:.1f}\t{name}\n" for name, found in sorted(kept.items())]
        FILE.write_text("".join(lines), encoding="utf-8")


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has started; on Linux also of those that still run."""
    ended = sum(os.times()[:4])
    return ended + sum(_of_process(pid) for pid in _children(os.getpid()))


def _children(pid: int) -> Iterator[int]:
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield int(child)
                yield from _children(int(child))
    except OSError:  # another system, or it has ended
        return


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")

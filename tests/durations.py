"""What tests cost: recorded by a run with ``--record-durations``, used to choose the fast loop and to order all loops.

`durations.tsv` has a line for each test that took longer than `SHORTEST_RECORDED`: CPU seconds of its process and of
those that it started, wall seconds, and its node id. A recording needs Linux. It removes the lines of tests that no
longer exist. A test that is not in the file counts as quick, so a new one is run everywhere until the next recording:

    bash deploy/test.sh --ci --record-durations

``--at-most SECONDS`` leaves out tests whose recorded CPU or wall time is longer; a test with the marker `smoke` stays.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.benchmarks.peers.cost import Cost, cpu_seconds

FILE: Final = Path(__file__).with_name("durations.tsv")
SHORTEST_RECORDED: Final = 0.2
"""CPU or wall seconds. Shorter tests are most of all, and cost little."""
_PROPERTY: Final = "duration"
_COLLECTED: Final = "collected"


@functools.cache
def recorded() -> Mapping[str, Cost]:
    """What each test has cost with its fixtures when it was recorded, by node id."""
    costs = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        cpu, wall, node_id = line.split("\t", 2)
        costs[node_id] = Cost(float(wall), float(cpu))
    return costs


def wall_seconds_of_files(items: Iterable[pytest.Item]) -> Mapping[str, float]:
    """The recorded wall seconds of these tests of a file together, by the path in their node ids."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        cost = recorded().get(item.nodeid)
        seconds[_path(item.nodeid)] += 0.0 if cost is None else cost.seconds
    return seconds


def is_quick(item: pytest.Item, seconds: float) -> bool:
    """Whether a test took at most so many seconds when it was recorded, or is in every loop."""
    cost = recorded().get(item.nodeid)
    return cost is None or _longest(cost) <= seconds or item.get_closest_marker("smoke") is not None


def _path(node_id: str) -> str:
    return node_id.partition("::")[0]


def _longest(cost: Cost) -> float:
    return max(cost.seconds, cost.cpu)


class Recorder:
    """Writes `FILE` at the end of a session. The processes of pytest-xdist measure; the first process collects."""

    def __init__(self, *, writes: bool) -> None:
        self._writes = writes
        self._costs: dict[str, Cost] = {}
        self._collected: set[str] = set()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._collected.add(item.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._collected.update(getattr(node, "workeroutput", {}).get(_COLLECTED, ()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.user_properties.append((_PROPERTY, (time.monotonic(), cpu_seconds())))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            for place, (name, began) in enumerate(item.user_properties):
                if name == _PROPERTY:
                    wall, cpu = began  # type: ignore[misc]
                    item.user_properties[place] = (_PROPERTY, (time.monotonic() - wall, cpu_seconds() - cpu))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, seconds in report.user_properties:
                if name == _PROPERTY:
                    wall, cpu = seconds  # type: ignore[misc]
                    self._costs[report.nodeid] = Cost(wall, cpu)

    @pytest.hookimpl(trylast=True)  # the first process has then heard of all others
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._writes:
            session.config.workeroutput[_COLLECTED] = sorted(self._collected)  # type: ignore[attr-defined]
            return
        # Unless single tests were asked for, a file that was collected shows which tests it has.
        files = {_path(name) for name in self._collected} if "::" not in str(session.config.args) else set()
        kept = {
            name
            for name in recorded().keys() - self._costs.keys()
            if name in self._collected
            or (_path(name) not in files and (session.config.rootpath / _path(name)).exists())
        }
        costs = {name: recorded()[name] for name in kept}
        costs |= {name: cost for name, cost in self._costs.items() if _longest(cost) > SHORTEST_RECORDED}
        lines = [f"{costs[name].cpu:.1f}\t{costs[name].seconds:.1f}\t{name}\n" for name in sorted(costs)]
        FILE.write_text("".join(lines), encoding="utf-8")

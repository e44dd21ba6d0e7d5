"""The cost of every operation on tables with many file groups and lanes, and how it grows.

    python -m tests.benchmarks.groups [--groups 500 2000 8000] [--lanes 8 64 512] [--repeat 3] [--folder DIR]

Two sweeps: the file groups at the least number of lanes, and the lanes at the least number of file groups. For every
operation CPU and wall seconds (the least of the repeats), the requests to the store by kind (a call for many objects
counts as many), and the exponents of growth: the slopes of CPU seconds, of function calls and of requests over the
size, all logarithmic, between the last two sizes, where constant costs matter least. 1 is proportional, 2 quadratic.
Calls are counted in a separate run: they do not depend on the load of the machine, but do not show the work of one call
into C. Seconds do; below `NOISE` at the largest size they are not judged. Their exponent leaves out Python's cyclic
garbage collector, which is printed separately: it runs when the number of objects has grown by a quarter, so its cost
comes in steps, and is proportional over many. Every size is measured in a separate process; peak memory is what it adds
to the imports.

Every operation opens the table again, with empty caches. *append* is one commit of one writer, including entering it; a
table of n lanes had n of those, each of which reads the heads of all others (PROTOCOL.md, W2).
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import gc
import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.many_groups import CountingStore, new_uri, steps
from weft.storage import Table, environment
from weft.storage.log.decoded_sidecars import DECODED_INDEXES, DECODED_SLICES

NOISE = 0.1
LIMIT = 1.1
READS = {"read logs", "snapshot", "plan", "read", "get", "get many", "changes"}
"""Change nothing: run `READ_REPEATS` times each."""
READ_REPEATS = 3


@dataclass
class Figure:
    """The costs of one operation at one size."""

    cpu: float
    collector: float
    wall: float
    requests: dict[str, int]
    calls: int = 0

    def least(self, other: Figure) -> Figure:
        """The faster of two runs, with the calls of the first, which counts them."""
        cpu, collector = min((figure.cpu, figure.collector) for figure in (self, other))
        return Figure(cpu, collector, min(self.wall, other.wall), other.requests, self.calls)

    @property
    def work(self) -> float:
        return self.cpu - self.collector

    @property
    def total(self) -> int:
        return sum(self.requests.values())


@dataclass
class Measured:
    """One size: the number of file groups that the table has in the end, and the figures by operation."""

    groups: int
    lanes: int
    figures: dict[str, Figure]
    peak_mib: float

    def least(self, other: Measured) -> Measured:
        """The smaller figures of two runs at one size."""
        figures = {name: figure.least(other.figures[name]) for name, figure in self.figures.items()}
        return Measured(self.groups, self.lanes, figures, min(self.peak_mib, other.peak_mib))


def measure(root: Path, groups: int, lanes: int, *, count_calls: bool) -> Measured:
    stores: list[CountingStore] = []
    opened = environment.open_store

    def counting(uri: str, options: object = None) -> Any:
        stores.append(CountingStore(opened(uri, options)))
        return stores[-1]

    environment.open_store = counting
    collector = _Collector()
    figures: dict[str, Figure] = {}
    before = _peak_mib()
    uri = new_uri(str(root))
    for name, run in steps(uri, groups, lanes):
        for _ in range(READ_REPEATS if name in READS and not count_calls else 1):
            gc.collect()
            stores.clear()
            DECODED_SLICES.clear()
            DECODED_INDEXES.clear()
            collector.seconds = 0.0
            profile = cProfile.Profile()
            cpu, wall = time.process_time(), time.perf_counter()
            if count_calls:
                profile.runcall(run)
            else:
                run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            figure = Figure(cpu, collector.seconds, wall, _sum(stores), _calls(profile))
            figures[name] = figures[name].least(figure) if name in figures else figure
    figures.pop("", None)
    found = len(Table.open(uri).state().slices)
    shutil.rmtree(uri)
    return Measured(found, lanes, figures, _peak_mib() - before)


class _Collector:
    """CPU seconds of Python's cyclic garbage collector."""

    def __init__(self) -> None:
        self.seconds = self._started = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._started = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._started


def _sum(stores: list[CountingStore]) -> dict[str, int]:
    kinds = sorted({kind for store in stores for kind in store.requests})
    return {kind: sum(store.requests.get(kind, 0) for store in stores) for kind in kinds}


def _calls(profile: cProfile.Profile) -> int:
    return sum(entry.callcount for entry in profile.getstats())


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def exponent(first: float, second: float, growth: float) -> float:
    return math.log(second / first) / math.log(growth) if first > 0 and second > 0 else 0.0


def report(title: str, sizes: list[int], measured: list[Measured]) -> list[str]:
    """Print one sweep; returns what grew faster than allowed."""
    growth = sizes[-1] / sizes[-2]
    wrong = []
    print(f"\n{title}: {', '.join(f'{size:,}' for size in sizes)}; peak memory in MiB: ", end="")
    print(", ".join(f"{one.peak_mib:,.0f}" for one in measured))
    print(
        f"{'':17} {'CPU s':>24} {'collector s':>12} {'wall s':>24} {'requests':>24}  "
        "exponents of CPU, calls, requests; requests by kind"
    )
    for name in measured[0].figures:
        figures = [found.figures[name] for found in measured]
        of_cpu = exponent(figures[-2].work, figures[-1].work, growth)
        of_requests = exponent(figures[-2].total, figures[-1].total, growth)
        of_calls = exponent(figures[-2].calls, figures[-1].calls, growth)
        cpu_text = f"{of_cpu:5.2f}" if figures[-1].work >= NOISE else "    -"
        print(
            f"{name:17} "
            + " ".join(
                [
                    f"{' '.join(f'{figure.cpu:7.3f}' for figure in figures):>24}",
                    f"{figures[-1].collector:12.3f}",
                    f"{' '.join(f'{figure.wall:7.3f}' for figure in figures):>24}",
                    f"{' '.join(f'{figure.total:7d}' for figure in figures):>24}",
                    f" {cpu_text} {of_calls:5.2f} {of_requests:5.2f} ",
                    " ".join(f"{kind} {count}" for kind, count in figures[-1].requests.items()),
                ]
            )
        )
        judged = {"requests": of_requests, "calls": of_calls}
        if figures[-1].work >= NOISE:
            judged["CPU seconds"] = of_cpu
        wrong += [
            f"{name}, {title}: {what} grow with exponent {found:.2f}" for what, found in judged.items() if found > LIMIT
        ]
    return wrong


def sweep(root: Path, sizes: list[tuple[int, int]], repeat: int) -> list[Measured]:
    """Every size, repeated in turns, so that a change of the machine's speed affects all sizes."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rounds = [
            [pool.apply(measure, (root, *size), {"count_calls": number == 0}) for size in sizes]
            for number in range(repeat + 1)
        ]
    return [functools.reduce(Measured.least, repeated) for repeated in zip(*rounds, strict=True)]


def size(text: str) -> int:
    """A number of file groups, lanes or repeats.

    Raises:
        ArgumentTypeError: The text is not a number, or is less than 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, those of this process by default; exits with a message if they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, sizes in (("groups", [500, 2000, 8000]), ("lanes", [8, 64, 512])):
        parser.add_argument(
            f"--{name}",
            type=size,
            nargs="+",
            default=sizes,
            help=f"ascending; one alone is not varied (default: {sizes})",
        )
    parser.add_argument("--repeat", type=size, default=3, help="runs of every size (default: 3)")
    parser.add_argument("--folder", type=Path, help="folder for the tables (default: a temporary folder)")
    arguments = parser.parse_args(words)
    for name in ("groups", "lanes"):
        sizes = getattr(arguments, name)
        if sizes != sorted(set(sizes)):
            parser.error(f"argument --{name}: {sizes} does not ascend: growth is measured from one size to the next")
    if len(arguments.groups) == len(arguments.lanes) == 1:
        parser.error("nothing to compare: give two sizes or more of --groups or --lanes")
    return arguments


def main() -> None:
    arguments = parsed()
    root = arguments.folder or Path(tempfile.mkdtemp(prefix="weft-groups-"))
    groups, lanes = arguments.groups, arguments.lanes
    wrong = []
    try:
        if len(groups) > 1:
            found = sweep(root, [(count, lanes[0]) for count in groups], arguments.repeat)
            title = f"file groups, at {lanes[0]} lanes"
            wrong += report(title, [one.groups for one in found], found)
        if len(lanes) > 1:
            found = sweep(root, [(groups[0], count) for count in lanes], arguments.repeat)
            wrong += report(f"lanes, at {found[0].groups} file groups", lanes, found)
    finally:
        if arguments.folder is None:
            shutil.rmtree(root)
    print("\n" + ("\n".join(wrong) if wrong else f"nothing grows with an exponent above {LIMIT}"))


if __name__ == "__main__":
    main()

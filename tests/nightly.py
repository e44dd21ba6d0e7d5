"""The nightly loop: checks that take too long for a normal test run, one part after the other, each with a time limit.

    bash deploy/nightly.sh                      all parts, in a separate environment
    python -m tests.nightly --only soak models  some of them
    python -m tests.nightly --scale 0.1         a tenth of the time for parts with a duration

If a part fails or takes too long, the others still run. At the end a table of all parts is printed; the exit status is
0 only if every part passed. The output of each part is in a separate file, in the folder that is printed first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TAIL_LINES: Final = 40
END_SECONDS: Final = 30.0
"""Seconds from SIGTERM to SIGKILL for a part that takes too long."""

_BENCHMARKS: Final = (
    ("aggregates", "--keys", "20000", "--rounds", "2"),
    ("append", "--keys", "20000", "--rows", "1000", "--rounds", "2"),
    ("archive", "--commits", "600"),
    ("arrival",),
    ("arrow", "--keys", "20000", "--rounds", "2"),
    ("compactors", "--keys", "20000", "--groups", "8", "--rounds", "1"),
    ("cores", "--rows", "20000", "--batch", "10000", "--keys", "20000", "--rounds", "1"),
    ("decode", "--messages", "2000", "--rounds", "2"),
    ("dimension_update", "--keys", "20000", "--customers", "5000", "--rounds", "1"),
    ("dimensions", "--keys", "20000", "--customers", "5000", "--rounds", "1"),
    ("batches", "500", "100"),
    ("catalog_planning", "--rounds", "2"),
    ("checkpoints", "--groups", "1000"),
    ("due_policy", "--keys", "20000", "--groups", "8", "--commits", "60"),
    ("filters", "--keys", "20000", "--rounds", "1"),
    ("fold", "--keys", "20000", "--rows", "40000", "--commits", "20", "--rounds", "2"),
    ("formats", "--messages", "2000", "--rounds", "1"),
    ("groups", "--groups", "50", "200", "--lanes", "8", "16", "--repeat", "1"),
    ("hot_bucket", "--keys", "20000", "--rounds", "2"),
    ("idle_writer", "--rounds", "1", "--idle", "5"),
    ("kafka", "--messages", "20000", "--rounds", "1"),
    ("layout", "--keys", "20000", "--rows", "40000", "--rounds", "2"),
    ("load", "--keys", "20000", "--rounds", "1"),
    ("memory", "--rows", "50000"),
    ("merge", "--keys", "20000", "--rounds", "2"),
    ("modelling", "--keys", "5000", "--rounds", "1"),
    ("moments", "--lanes", "4", "--snapshots", "3"),
    ("page", "--commits", "3000", "--lanes", "8", "--buckets", "64"),
    ("peers", "--smoke"),
    ("overlays", "--keys", "20000", "--columns", "60", "--commits", "10", "--rounds", "1", "--spark"),
    ("requests", "--lanes", "1", "8", "--groups", "8", "--commits", "100", "--latency-ms", "1"),
    ("sizing", "--measure", "2", "4", "--minutes", "10", "--keys", "20000"),
    ("small_groups", "--shapes", "9x8x4"),
    ("snapshot", "--keys", "20000", "--rounds", "2"),
    ("split", "--rows", "20000"),
    ("timeline", "--commits", "12000", "--waiting", "40"),
    ("view_overhead", "--keys", "20000", "--rounds", "2"),
    ("writer", "--rows", "20000", "--batch", "10000", "--runs", "1"),
)
"""Each benchmark at a small size, to check that it runs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Commands that run one after the other, and their common time limit."""

    name: str
    minutes: float
    commands: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a part. ``last`` is the last line that it printed."""

    part: Part
    outcome: str
    seconds: float
    last: str

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _pytest(*arguments: str) -> tuple[str, ...]:
    return _python("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def all_parts(scale: float = 1.0) -> list[Part]:
    """The parts in order; the durations are multiplied by ``scale``."""
    hours, soak_minutes, examples = 1.0 * scale, 20.0 * scale, "deep" if scale >= 1 else "quick"
    jobs = str(os.cpu_count() or 1)
    side_by_side = ("-n", jobs, "--dist", "loadfile", "--no-loadscope-reorder")
    return [
        Part("tests", 120, [_pytest("-m", "nightly", *side_by_side)]),
        Part("seeds", 120, [_python("-m", "tests.simulation.seeds", "--anew", "--jobs", jobs)]),
        Part("simulation", 60 * hours + 15, [_python("tests/simulate.py", "--hours", str(hours), "--jobs", jobs)]),
        Part(
            "laws",
            180,
            [_pytest("-n", jobs, "-m", "laws", f"--hypothesis-profile={examples}", "--timeout=0")],
        ),
        Part("mutants", 300, [_python("-m", "tests.mutation_score", "--jobs", jobs)]),
        Part("soak", 3 * soak_minutes + 30, [_python("-m", "tests.soak", "--minutes", str(soak_minutes))]),
        Part(
            "operation",
            3 * soak_minutes + 60,
            [_python("-m", "tests.soak", "--kafka", "real", "--minutes", str(soak_minutes))],
        ),
        Part("demo", 30, [_python("-m", "weft.streams.cli.main", "demo", "--rows", "200000")]),
        Part("benchmarks", 75, [_python("-m", f"tests.benchmarks.{name}", *given) for name, *given in _BENCHMARKS]),
        Part("links", 10, [_python("deploy/docs/site.py", "external", "--ask")]),
    ]


def run(parts: Sequence[Part], folder: Path) -> list[Result]:
    """Run the parts, print the result of each, and then the summary."""
    results = []
    for part in parts:
        print(f"{part.name}: at most {part.minutes:g} minutes", flush=True)
        log = folder / f"{part.name}.log"
        results.append(_run(part, log))
        if not results[-1].passed:
            print(*_tail(log, TAIL_LINES), sep="\n")
    print(f"\n{'part':12} {'result':14} {'minutes':>7}  last line")
    for result in results:
        print(f"{result.part.name:12} {result.outcome:14} {result.seconds / 60:7.1f}  {result.last[:120]}")
    return results


def _run(part: Part, log: Path) -> Result:
    started = time.monotonic()
    outcome = "passed"
    with log.open("wb") as output:
        for command in part.commands:
            left = part.minutes * 60 - (time.monotonic() - started)
            status = _run_command(command, output.fileno(), left)
            if status is None:
                outcome = "out of time"
                break
            if status != 0:
                outcome = f"failed ({status})"  # the other commands of the part still run
    return Result(part, outcome, time.monotonic() - started, next(iter(_tail(log, 1)), ""))


def _run_command(command: Sequence[str], output: int, seconds: float) -> int | None:
    """Exit status of a command; None if it did not end in time. Its child processes are killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=output,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        return None
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _tail(log: Path, lines: int) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="nightly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in all_parts()]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the run time of simulation and soak")
    parser.add_argument("--folder", type=Path, help="folder for the output (default: a new temporary folder)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="weft-nightly-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"output in {folder}", flush=True)
    results = run([part for part in all_parts(given.scale) if part.name in given.only], folder)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

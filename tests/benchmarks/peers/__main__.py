"""weft, Paimon, Hudi, Delta Lake and Iceberg on the same inputs; the figures as Markdown and as lines of JSON.

    python -m tests.benchmarks.peers                                       everything; an hour and more
    python -m tests.benchmarks.peers --smoke                               few keys, a few minutes: does it run?
    python -m tests.benchmarks.peers --systems weft,paimon --parts table   one part of some systems
    python -m tests.benchmarks.peers --jars paimon=FOLDER                  jars that Maven does not have

Needs Java 17; Maven and pip fetch the peers and their Sparks (some 400 MB for each version of Spark) the first time.
What cannot be fetched is skipped, and its row says so. The exit status is 1 if a measurement failed. The package's
docstring says what is compared, and the modules how.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.peers.dataset import Dataset
from tests.benchmarks.peers.inputs import Plan, one_hot_group, same_keys, wide
from tests.benchmarks.peers.registry import SYSTEMS
from tests.benchmarks.peers.releases import RELEASES, install
from tests.benchmarks.peers.report import markdown
from tests.benchmarks.peers.run_task import run_task
from tests.benchmarks.peers.task import HOUR, PARTS, TABLE, WRITERS, Outcome, Task
from tests.download_cache import Unavailable

_WARM_UP: Final = Plan("warm-up", keys=5_000, buckets=8, columns=63, rounds=1, updated=0.02)
_GENERATORS: Final = {TABLE: wide, WRITERS: same_keys, HOUR: one_hot_group}
_SMOKE: Final = {"keys": 4_000, "rounds": 1, "commits": 1, "pairs": 1, "minutes": 4, "every": 2, "columns": 60}


def at_least(least: int) -> Callable[[str], int]:
    def check(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return check


def some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))}: choose from {','.join(names)}")
        return list(dict.fromkeys(chosen))

    return check


def given_jars(text: str) -> tuple[str, Path]:
    system, separator, folder = text.partition("=")
    if not separator or system not in RELEASES:
        raise argparse.ArgumentTypeError(f"{text!r} is not SYSTEM=FOLDER; systems: {', '.join(RELEASES)}")
    if not any(Path(folder).glob("*.jar")):
        raise argparse.ArgumentTypeError(f"there are no jars in {folder!r}")
    return system, Path(folder).resolve()


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, checked; with ``--smoke``, its sizes are the defaults."""
    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", type=some_of(SYSTEMS), default=list(SYSTEMS), help=f"of {','.join(SYSTEMS)}")
    parser.add_argument("--parts", type=some_of(PARTS), default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--keys", type=at_least(1_000), default=2_000_000, help="keys of the table")
    parser.add_argument("--commits", type=at_least(1), default=5, help="to each of the three groups")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of each query")
    parser.add_argument("--writer-keys", type=at_least(1_000), default=200_000, help="keys of the part `writers`")
    parser.add_argument("--pairs", type=at_least(1), default=5, help="pairs of commits at the same time")
    parser.add_argument("--hour-keys", type=at_least(1_000), default=60_000, help="keys of the part `hour`")
    parser.add_argument("--columns", type=at_least(12), default=300, help="columns of the part `hour`")
    parser.add_argument("--minutes", type=at_least(1), default=60, help="commits of the part `hour`, one a minute")
    parser.add_argument("--every", type=at_least(1), default=5, help="minutes between compactions of the part `hour`")
    parser.add_argument("--limit", type=at_least(1), default=90, help="minutes that a system may take")
    parser.add_argument("--jars", type=given_jars, action="append", default=[], metavar="SYSTEM=FOLDER")
    parser.add_argument("--folder", type=Path, help="keep the inputs here, for the next run (default: none are kept)")
    parser.add_argument("--json", type=Path, help="add a line for each measurement to this file")
    parser.add_argument("--smoke", action="store_true", help="few keys: a check that everything runs")
    if "--smoke" in (sys.argv[1:] if given is None else given):
        few = _SMOKE["keys"]
        parser.set_defaults(**{**_SMOKE, "writer_keys": few, "hour_keys": few})
    asked = parser.parse_args(given)
    if asked.folder is not None and asked.folder.exists() and not asked.folder.is_dir():
        parser.error(f"argument --folder: {asked.folder} is not a folder")
    if asked.minutes < asked.every:
        parser.error(f"argument --every: no compaction in {asked.minutes} minutes; at most --minutes")
    return asked


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that folders are removed
    outcomes = []
    with _folders(asked.folder) as (inputs, tables):
        for outcome in _outcomes(asked, inputs, tables):
            outcomes.append(outcome)
            if asked.json is not None:
                with asked.json.open("a", encoding="utf-8") as file:
                    file.write(outcome.line() + "\n")
            why = outcome.skipped or outcome.failed
            state = "SKIPPED" if outcome.skipped else "FAILED" if outcome.failed else "measured"
            print(f"{outcome.system}, {outcome.part}: {state}{': ' if why else ''}{why}", flush=True)
    print("\n" + markdown(outcomes))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def _outcomes(asked: argparse.Namespace, inputs: Path, tables: Path) -> Iterator[Outcome]:
    jars = dict(asked.jars)
    data: dict[str, Dataset] = {}
    warm_up = "" if asked.smoke else str(wide(_WARM_UP, inputs).folder)
    for system in asked.systems:
        try:
            installed = install(system, jars.get(system))
        except Unavailable as reason:
            yield from (Outcome(system, part, skipped=str(reason)) for part in asked.parts)
            continue
        if installed.missing:
            print(f"{system}: {installed.version} instead of the newest release: {installed.missing}", flush=True)
        for part in asked.parts:
            if part not in data:
                print(f"inputs and oracle of the part {part}", flush=True)
                data[part] = _GENERATORS[part](_plan(part, asked), inputs)
        task = Task(
            system=system,
            version=installed.version,
            data={part: str(data[part].folder) for part in asked.parts},
            warm_up=warm_up,
            folder=str(tables),
            rounds=asked.rounds,
            every=asked.every,
            jars=list(installed.jars),
        )
        yield from run_task(task, installed, asked.limit)


def _plan(part: str, asked: Any) -> Plan:
    plan = Plan(part, keys=asked.keys, buckets=8, columns=63, rounds=asked.commits, updated=0.02)
    match part:
        case part if part == WRITERS:
            return replace(plan, keys=asked.writer_keys, rounds=asked.pairs)
        case part if part == HOUR:
            # Four buckets, so that each has more than the two MiB below which overlays are not made.
            hour = replace(plan, keys=asked.hour_keys, buckets=4, columns=asked.columns)
            return replace(hour, rounds=asked.minutes, updated=0.01)
        case _:
            return plan


@contextlib.contextmanager
def _folders(kept: Path | None) -> Iterator[tuple[Path, Path]]:
    """For inputs and for tables; tables are always removed, inputs unless their folder is given."""
    made = Path(tempfile.mkdtemp(prefix="peers-"))
    try:
        inputs = (kept or made / "inputs").resolve()
        inputs.mkdir(parents=True, exist_ok=True)
        (made / "tables").mkdir()
        yield inputs, made / "tables"
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

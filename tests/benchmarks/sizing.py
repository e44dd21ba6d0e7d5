"""The needs of a large table: requests, measured at small sizes and extrapolated; the rest, computed from rates.

    python -m tests.benchmarks.sizing [--writers 100] [--commits 1000] [--terabytes 10] [--rows 100000]
                                      [--measure 16 32 64] [--minutes 10]

First, the real code runs against the counting store (`tests.benchmarks.counting_s3`): writers, each a process with a
separate lane and four per stream, which commit as often per minute as each writer of the large table. Beside them run a
compaction process (a round every 30 s, with folding, the defaults except ``min_commits``), a clean every 10 minutes,
and a reader that takes a snapshot every 5 s and a query every minute. Time is simulated: ten minutes take seconds.
Requests per minute of each role are fitted as ``a + b x writers`` to the first two sizes, compared with the
measurements of the other sizes, and extrapolated to the large table.

Then it prints these requests per second and folder, compared with S3's limits per prefix, and dollars per month. The
rest is computed from rates of this machine: the times to compact and to ingest are measured on one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.benchmarks.counting_s3 import SERVER, URI, register
from tests.benchmarks.requests import Prices
from tests.benchmarks.requests import build as build_requests_table
from tests.benchmarks.wide_table import GROUPS, Shape, batches
from tests.faulty_store import FakeClock
from weft import DuePolicy, Table
from weft.storage.clock import Stamps
from weft.storage.core.log.checkpoint_codec import encode_table
from weft.storage.core.names import LaneName, Path
from weft.storage.environment import Environment
from weft.storage.planned_work import plan_compaction, plan_fold
from weft.storage.services.steps.steps import finish
from weft.storage.store.open_store import open_store

LANES_OF_A_STREAM: Final = 4
TICK_SECONDS: Final = 5
COMPACTION_SECONDS, CLEAN_SECONDS, QUERY_SECONDS = 30, 600, 60
POLICY: Final = DuePolicy(min_commits=100_000)
"""With the default of 8 waiting commits, a table with this many commits would be rewritten in every round."""
PUT_LIMIT, GET_LIMIT = 3_500, 5_500
"""Requests per second that S3 guarantees for a prefix; it splits prefixes that stay busy."""
MONTH_MINUTES: Final = 30 * 24 * 60
TOLERANCE: Final = 0.15
RATIOS: Final = (0.05, 0.1, 0.2, 0.5)
FOLD_MINUTES: Final = (1, 10, 60)

Load = dict[str, Counter[tuple[str, str]]]
"""Requests per minute by role, kind and folder."""


def config(writers: int) -> dict[str, Any]:
    """A table in which each stream has one group."""
    streams = range(-(-writers // LANES_OF_A_STREAM))
    columns = {f"v{n}": "bigint" for n in streams} | {f"t{n}": "bigint" for n in streams}
    return {
        "key": ["k"],
        "buckets": 8,
        "columns": {"k": "bigint"} | columns,
        "groups": {f"g{n}": {"columns": [f"v{n}", f"t{n}"], "ordering": [f"t{n}"]} for n in streams},
        "streams": {f"s{n}": {"groups": [f"g{n}"]} for n in streams},
    }


@contextlib.contextmanager
def counted(load: Load, role: str) -> Iterator[None]:
    """Count the requests in the block for a role."""
    before = SERVER.folders.copy()
    yield
    of_role = load.setdefault(role, Counter())
    for (kind, folder), count in (SERVER.folders - before).items():
        of_role[kind, _prefix(folder)] += count


def _prefix(folder: str) -> str:
    """The prefix for which S3 counts requests: log files of all lanes are in one folder."""
    return folder if folder.startswith("_weft") else folder.partition("/")[0]


def simulate(writers: int, commits_a_minute: float, minutes: int) -> Load:
    """Requests per minute by role, after a compaction and with all processes running."""
    SERVER.objects.clear()
    SERVER.begin()
    clock = FakeClock()

    def process() -> Table:
        return Table(Environment(open_store(URI), clock), Stamps())

    Table.create_in(Environment(open_store(URI), clock), config(writers))
    load: Load = {}
    with contextlib.ExitStack() as stack:
        open_writers = []
        for number in range(writers):
            stream = number // LANES_OF_A_STREAM
            writer = process().writer(f"s{stream}", lane=LaneName(f"lane{number}"))
            open_writers.append((stream, stack.enter_context(writer)))
            writer.append(_rows(stream, 0, keys=64))
        compactor, cleaner, reader = process(), process(), process()
        compactor.compact()
        cleaner.clean(dt.timedelta(minutes=5))
        reader.snapshot()
        due = [number / writers for number in range(writers)]  # writers do not commit at the same moment
        for second in range(TICK_SECONDS, minutes * 60 + 1, TICK_SECONDS):
            clock.sleep(TICK_SECONDS)
            with counted(load, "writers"):
                for number, (stream, writer) in enumerate(open_writers):
                    due[number] += commits_a_minute * TICK_SECONDS / 60
                    while due[number] >= 1:
                        due[number] -= 1
                        writer.append(_rows(stream, second))
            with counted(load, "a reader's snapshots"):
                snapshot = reader.snapshot()
            if second % QUERY_SECONDS == 0:
                with counted(load, "queries"):
                    scan = snapshot.scan(parallelism=1)
                    for task in scan.tasks:
                        for _ in scan.read(task):
                            pass
            if second % COMPACTION_SECONDS == 0:
                with counted(load, "compaction, folds"):
                    compaction = plan_compaction(compactor, POLICY)  # a round of `weft.streams.pipeline.run.services`
                    finish(compaction.steps)
                    finish(plan_fold(compactor, POLICY, compaction).steps)
            if second % CLEAN_SECONDS == 0:
                with counted(load, "clean"):
                    cleaner.clean(dt.timedelta(minutes=5))
    return {role: Counter({kind: count / minutes for kind, count in found.items()}) for role, found in load.items()}  # type: ignore[misc]


def _rows(stream: int, ts: int, keys: int = 4) -> pa.Table:
    return pa.table({"k": np.arange(keys), f"v{stream}": np.arange(keys), f"t{stream}": np.full(keys, ts)})


def extrapolate(small: tuple[int, Load], large: tuple[int, Load], writers: int) -> Load:
    """Fit ``a + b x writers`` to two sizes, and compute the load of a third."""
    (low, before), (high, after) = small, large
    found: Load = {}
    for role in after:
        kinds = before[role].keys() | after[role].keys()
        slopes = {kind: (after[role][kind] - before[role][kind]) / (high - low) for kind in kinds}
        found[role] = Counter(
            {kind: max(before[role][kind] + slopes[kind] * (writers - low), 0.0) for kind in kinds}  # type: ignore[misc]
        )
    return found


def by_kind(requests: Counter[tuple[str, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (kind, _), count in requests.items():
        found[kind] += count
    return found


def show(load: Load, prices: Prices) -> None:
    total: Counter[tuple[str, str]] = Counter()
    print(f"{'':24} {'PUT':>9} {'GET':>9} {'LIST':>7} {'DELETE':>7} {'$ a month':>10}  (requests a minute)")
    for role, requests in load.items():
        total.update(requests)
        _line(role, by_kind(requests), prices)
    _line("in all", by_kind(total), prices)
    print(f"\n{'folder':24} {'PUT/s':>9} {'of 3,500':>9} {'GET/s':>9} {'of 5,500':>9}")
    for folder in sorted({folder for _, folder in total}):
        puts = (total["PUT", folder] + total["LIST", folder] + total["DELETE", folder]) / 60
        gets = total["GET", folder] / 60
        if puts + gets > 1:
            print(f"{folder:24} {puts:9.1f} {puts / PUT_LIMIT:9.1%} {gets:9.1f} {gets / GET_LIMIT:9.1%}")


def _line(role: str, kinds: Counter[str], prices: Prices) -> None:
    dollars = prices.of(kinds) * MONTH_MINUTES
    print(
        f"{role:24} {kinds['PUT']:9,.0f} {kinds['GET']:9,.0f} {kinds['LIST']:7,.1f} {kinds['DELETE']:7,.0f} "
        f"{dollars:10,.0f}"
    )


def check(predicted: Load, measured: Load) -> None:
    """Print both by role, and mark differences of more than `TOLERANCE`."""
    for role, requests in measured.items():
        guess, found = sum(by_kind(predicted[role]).values()), sum(by_kind(requests).values())
        far = "" if abs(guess - found) <= TOLERANCE * found else "   <- differs"
        print(f"  {role:24} predicted {guess:9,.0f}   measured {found:9,.0f}   {guess / found:5.2f}{far}")


@dataclass(frozen=True)
class Rates:
    """Rates of one thread of this machine, in memory.

    Attributes:
        ingest: Rows per second that a writer appends from Arrow.
        log_row: Stored bytes per row in the log.
        compaction: Stored bytes, read and written, per second.
        ratio: Bytes of the compacted logs, as a part of those of the base.
        amplification: Bytes read and written for each byte of these logs.
    """

    ingest: float
    log_row: float
    compaction: float
    ratio: float
    amplification: float


def compaction_bytes(ratio: float) -> float:
    """Bytes read and written for each byte of log: base and logs are read, the base is written."""
    return 2 / ratio + 1


def fold_bytes(folds: float) -> float:
    """Bytes read and written for each byte of log, with so many folds between two compactions of a file group.

    A row is written ``1 + folds / 8`` times (`weft.storage.core.plan.fold_plan`).
    """
    return 2 * (1 + folds / 8)


def measure_rates(keys: int) -> Rates:
    """Measure with the table of `tests.benchmarks.wide_table`: compact its load, commit and compact its updates."""
    uri = f"memory://sizing/{uuid.uuid4().hex}"
    shape = Shape(keys)
    table = Table.create(uri, shape.config())
    rows, seconds, base = 0, 0.0, 0
    with contextlib.ExitStack() as stack:
        writers = {group: stack.enter_context(table.writer(group)) for group in GROUPS}
        for group, commit, batch in batches(shape):
            if commit and not base:
                base = table.compact().bytes_written
            started = time.process_time()
            writers[group].append(batch)
            if commit:
                seconds += time.process_time() - started
                rows += len(batch)
    log_bytes = sum(file.file.file.size for file in table.snapshot().files)
    started = time.process_time()
    done = table.compact()
    elapsed = time.process_time() - started
    moved = done.bytes_read + done.bytes_written
    return Rates(rows / seconds, log_bytes / rows, moved / elapsed, log_bytes / base, moved / log_bytes)


def measure_folds(folds: int, commits: int = 8) -> float:
    """Bytes read and written for each byte of log, by so many folds of so many commits of keys that do not repeat."""
    table = Table.create(f"memory://sizing/{uuid.uuid4().hex}", config(1))
    moved = 0
    with table.writer("s0") as writer:
        for fold in range(folds):
            for commit in range(commits):
                keys = np.arange(1000) + 1000 * (fold * commits + commit)
                writer.append(pa.table({"k": keys, "v0": keys, "t0": keys}))
            done = table.fold()
            moved += done.bytes_read + done.bytes_written
    logs = sum(size for name, size in open_store(table.uri).list(Path("log")) if not name.startswith("_fold"))
    return moved / logs


def state_bytes(lanes: int) -> float:
    """Bytes of a checkpoint of the table lane per file group."""
    sizes = {}
    for groups in (256, 1024):
        store = build_requests_table(lanes, groups, lanes)
        state = Table(Environment(store), Stamps()).state()
        sizes[groups] = sum(map(len, encode_table(state)))
    return (sizes[1024] - sizes[256]) / (1024 - 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--commits", type=float, default=1000.0, help="commits per minute of all writers")
    parser.add_argument("--terabytes", type=float, default=10.0, help="stored size of the compacted table")
    parser.add_argument("--rows", type=float, default=100_000.0, help="rows per second of all writers")
    parser.add_argument("--group-mb", type=float, default=512.0, help="size of a file group")
    parser.add_argument("--changing", type=float, default=1.0, help="part of the table that rows arrive for")
    parser.add_argument(
        "--measure",
        type=int,
        nargs="+",
        default=[16, 32, 64],
        help="numbers of writers to simulate; the first two are fitted",
    )
    parser.add_argument("--minutes", type=int, default=10, help="minutes to simulate for each number of writers")
    parser.add_argument("--keys", type=int, default=200_000, help="keys of the table with which rates are measured")
    given = parser.parse_args()
    register()
    prices = Prices()
    each = given.commits / given.writers
    measured = [(writers, simulate(writers, each, given.minutes)) for writers in given.measure]
    for writers, load in measured:
        print(f"\n{writers} writers, {each:g} commits a minute each, measured over {given.minutes} minutes")
        show(load, prices)
    for writers, load in measured[2:]:
        print(f"\n{writers} writers, predicted from {measured[0][0]} and {measured[1][0]}")
        check(extrapolate(measured[0], measured[1], writers), load)
    print(f"\n{given.writers} writers, {given.commits:g} commits a minute: extrapolated")
    show(extrapolate(measured[0], measured[1], given.writers), prices)
    _show_capacity(given, measure_rates(given.keys))


def _show_capacity(given: argparse.Namespace, rates: Rates) -> None:
    stored = given.terabytes * 1e12
    groups = stored / (given.group_mb * 1e6)
    log_bytes = given.rows * rates.log_row
    state = groups * state_bytes(8)
    print(
        f"\nrates of one thread: {rates.ingest:,.0f} rows/s into the log ({rates.log_row:.0f} bytes a row); compaction "
        f"{rates.compaction / 1e6:,.0f} MB/s read and written"
    )
    print(
        f"compaction at a ratio of {rates.ratio:.2f}: {rates.amplification:.1f} bytes read and written for each byte "
        f"of log, computed {compaction_bytes(rates.ratio):.1f}"
    )
    for folds in (8, 24):
        print(f"{folds} folds: {measure_folds(folds):.1f} bytes for each byte of log, computed {fold_bytes(folds):.1f}")
    print(f"file groups of {given.group_mb:g} MB: {groups:,.0f}; state of the table lane {state / 1e6:,.1f} MB")
    print(f"log: {log_bytes / 1e6:,.1f} MB/s, {log_bytes * 86400 / 1e9:,.0f} GB a day")
    print(f"cores to write logs (without Kafka and decoding): {given.rows / rates.ingest:,.1f}")
    changing = stored * given.changing
    print(f"cores of compaction and folds, {given.changing:.0%} of the table changing evenly:")
    print(f"{'max_log_ratio':>14} {'fold each':>10} {'MB/s':>8} {'cores':>6} {'compacted each':>15} {'files':>10}")
    for ratio in RATIOS:
        for minutes in FOLD_MINUTES:
            between = ratio * changing / log_bytes  # seconds from one compaction of a file group to the next
            moved = log_bytes * (compaction_bytes(ratio) + fold_bytes(between / (minutes * 60)))
            print(
                f"{ratio:14g} {f'{minutes} min':>10} {moved / 1e6:8,.0f} {moved / rates.compaction:6,.1f} "
                f"{f'{between / 3600:,.1f} h':>15} {given.commits * minutes:10,.0f}"
            )


if __name__ == "__main__":
    main()

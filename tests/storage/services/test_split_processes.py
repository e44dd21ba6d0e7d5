"""A split by real processes: writers go on, the splitter is killed again and again, one writer knows nothing of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.end_process import end_process
from tests.storage.support.shop import SHOP, append, orders
from weft import Table

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120
ROWS = 20  # of a commit

WRITER = """
import sys, time
from weft import Table
from tests.storage.support.shop import orders
uri, lane, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Table.open(uri).writer("orders", lane) as writer:
    for number in range(10_000):
        start = first + number * 20
        writer.append(orders(*range(start, start + 20), status=lane, ts=2))
        print(start + 20, flush=True)
        time.sleep(0.05)  # a split takes seconds: faster writers only make the table larger
"""
STALE = """
import sys
from weft import Table
from weft.storage.write.write_task import write_rows
from tests.storage.support.shop import orders
with Table.open(sys.argv[1]).writer("orders", "stale") as writer:
    begun = writer.begin()
    written = write_rows(begun, orders(*range(900_000, 900_100), status="stale", ts=2))
    print("ready", flush=True)
    sys.stdin.readline()
    writer.commit(begun, [written])
    print("done", flush=True)
"""
# Splits until it is killed: a split ends before the kill on a machine that is fast enough.
SPLITTER = """
import itertools, sys
from weft import Table
print("begins", flush=True)
table = Table(Table.open(sys.argv[1]).env.tuned(small_group_bytes=0, compaction_part_bytes=1))
for buckets in itertools.cycle(map(int, sys.argv[2:])):
    table.split(buckets)
"""


def started(code: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Writer:
    """A process that writes ascending keys, and says up to where they are committed."""

    def __init__(self, uri: str, lane: str, first: int) -> None:
        self.lane, self.first, self.acknowledged = lane, first, first
        self.process = started(WRITER, uri, lane, first)
        assert self.process.stdout is not None
        self.read()

    def read(self) -> None:
        assert self.process.stdout is not None
        self.acknowledged = int(self.process.stdout.readline())


@pytest.mark.extended
@pytest.mark.slow
def test_writers_go_on_while_a_split_is_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(7)
    table = Table.create(tmp_path / "t", {**SHOP, "buckets": 2})
    append(table, orders(*range(1_000)))
    table.compact()
    table.savepoint("before")
    stale = started(STALE, table.uri)
    assert stale.stdout is not None
    assert stale.stdin is not None
    assert stale.stdout.readline() == "ready\n"
    # Each writes at most 200,000 keys: on a fast machine the first would reach those of the second if they were nearer.
    writers = [Writer(table.uri, f"w{number}", 1_000_000 * (number + 1)) for number in range(2)]
    try:
        for buckets in [(16, 4), (16, 2), (4, 32), (32, 1), (1, 8), (8, 2)]:
            splitter = started(SPLITTER, table.uri, *buckets)
            assert splitter.stdout is not None
            splitter.stdout.readline()
            time.sleep(chance.random())
            assert end_process(splitter, signal.SIGKILL) == -signal.SIGKILL
            for writer in writers:
                for _ in range(3):
                    writer.read()
            check(table, writers)
        stale.stdin.write("\n")
        stale.stdin.flush()
        assert stale.stdout.readline() == "done\n"
        assert stale.wait(SECONDS) == 0
        assert table.split(8).buckets == 8
        check(table, writers)
    finally:
        for process in (stale, *(writer.process for writer in writers)):
            end_process(process, signal.SIGKILL)
    table.compact()
    table.split(8)
    rows = table.snapshot().to_arrow(["id", "status"])
    assert {part.group.bits for part in table.snapshot().slices} == {3}
    assert rows.num_rows == pc.count_distinct(rows["id"]).as_py()
    assert rows.filter(pc.equal(rows["status"], "stale")).num_rows == 100
    assert table.snapshot("before").to_arrow(["id"]).num_rows == 1_000
    changes = table.changes("before").read_all()
    assert changes.num_rows == rows.num_rows - 1_000
    assert table.verify().ok


def check(table: Table, writers: list[Writer]) -> None:
    """A snapshot has all commits that were acknowledged before, whole commits only, and each row once."""
    rows = table.snapshot().to_arrow(["id", "status"])
    assert rows.num_rows == pc.count_distinct(rows["id"]).as_py()
    for writer in writers:
        found = sorted(rows.filter(pc.equal(rows["status"], writer.lane))["id"].to_pylist())
        assert len(found) >= writer.acknowledged - writer.first
        assert found == list(range(writer.first, writer.first + len(found)))
        assert len(found) % ROWS == 0

"""Services on real tables: what they compact and delete, and how they handle failures."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock
from tests.many_groups import CountingStore
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.plan.reservation import SHORTEST_RESERVATION_MS
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData, StoreUnavailable
from weft.storage.services.steps.service_plan import open_plan
from weft.storage.store.open_store import open_store
from weft.streams.pipeline.file.model import CleanSection, CompactionSection
from weft.streams.pipeline.run import services
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.service_rounds import clean_round, compact_round, expire_round
from weft.streams.pipeline.run.services import repeat

CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "a": "string"},
    "groups": {"g": {"columns": ["a"]}},
    "streams": {"s": {"groups": ["g"]}},
}
POLICY = CompactionSection(every=0.1, min_commits=3, max_log_ratio=1e9)


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    yield Reporter(writing, Report())
    os.close(reading)
    os.close(writing)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", CONFIG)


def append(table: Table, commits: int, *, keys: int = 50) -> None:
    with table.writer("s") as writer:
        for _ in range(commits):
            writer.append(pa.table({"id": range(keys), "a": ["x"] * keys}))


def waiting(table: Table) -> int:
    return len({(file.lane, file.seq) for file in table.snapshot().files if not file.is_fold})


def compact_repeatedly(stop: Stop, table: Table, reporter: Reporter) -> None:
    repeat(stop, POLICY.every, lambda: compact_round(table, POLICY, reporter), reporter)  # type: ignore[arg-type]


class Stop:
    """Stops after a number of rounds, and records the length of each wait."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.waits = rounds, list[float]()

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.rounds -= 1
        return self.rounds < 0


def test_due_file_groups_are_compacted(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    compact_round(table, POLICY, reporter)  # the first slice: without a base any log is due
    assert waiting(table) == 0
    append(table, 2)
    compact_round(table, POLICY, reporter)
    assert waiting(table) == 2, "below min_commits"
    assert reporter.report.doing == "idle"
    append(table, 1)
    compact_round(table, POLICY, reporter)
    assert waiting(table) == 0
    assert reporter.report.commits == 2
    assert reporter.report.message.startswith("2 file groups, ")
    assert reporter.report.committed_at_ms is not None


def test_expired_rows_and_deletes_are_counted(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    table.compact()
    expire_round(table, reporter)
    assert reporter.report.message == "the table has no time to live: weft alter set-ttl"
    table.set_ttl(rows="1 day", deletes="1 day", within="0 s")
    expire_round(table, reporter)
    assert (reporter.report.expired_rows, reporter.report.commits) == (0, 0)
    assert reporter.report.expired_at_ms is not None
    table.set_ttl(rows="1 ms", within="0 s")
    time.sleep(0.002)
    expire_round(table, reporter)
    assert (reporter.report.expired_rows, reporter.report.forgotten_deletes) == (50, 0)
    assert reporter.report.message.startswith("50 rows and 0 deletes expired in 2 file groups, ")
    assert (reporter.report.commits, reporter.report.doing) == (1, "idle")
    assert table.snapshot().to_arrow().num_rows == 0


def test_only_due_file_groups_are_compacted(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    compact_round(table, POLICY, reporter)
    before = {s.group: s.slice for s in table.snapshot().slices}
    append(table, 3, keys=1)  # one key is in one file group
    compact_round(table, POLICY, reporter)
    changed = [s.group for s in table.snapshot().slices if s.slice != before[s.group]]
    assert len(changed) == 1


def test_without_a_policy_everything_is_compacted(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    compact_round(table, POLICY, reporter)
    append(table, 1)
    compact_round(table, None, reporter)
    assert waiting(table) == 0


def test_a_round_says_why_it_does_nothing(table: Table, reporter: Reporter) -> None:
    append(table, 4)
    with open_plan(table.writable(), table.snapshot().cut, 2, SHORTEST_RESERVATION_MS):
        compact_round(table, None, reporter)
        assert reporter.report.message.startswith("0 file groups, 2 skipped (a rewrite or an erase has reserved")
        assert waiting(table) == 4


def test_rounds_follow_the_interval_until_stopped(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    stop = Stop(rounds=3)
    compact_repeatedly(stop, table, reporter)
    assert stop.waits[0] == 0
    assert all(0 <= wait <= 0.1 for wait in stop.waits)
    assert waiting(table) == 0


def test_failing_rounds_are_reported_delayed_and_bounded(table: Table, reporter: Reporter, tmp_path: Path) -> None:
    append(table, 3)
    shutil.rmtree(tmp_path / "t/log")
    stop = Stop(rounds=100)
    with pytest.raises(CorruptData, match="is missing"):
        compact_repeatedly(stop, table, reporter)
    assert [round(wait, 3) for wait in stop.waits] == [0, 0.2, 0.4, 0.8, 1.6]
    assert "is missing" in reporter.report.message
    assert len(stop.waits) == services.MAX_FAILURES


def test_a_service_reports_an_outage_of_the_store_and_waits(table: Table, reporter: Reporter) -> None:
    """The store is unreachable for 20 rounds, four times the limit of failing rounds, and then answers again."""
    append(table, 3)
    away = 20

    def work() -> None:
        nonlocal away
        away -= 1
        if away >= 0:
            # A full disk and an unreachable server are the same for a round.
            raise StoreUnavailable("no access to _weft: no answer")
        assert reporter.report.waiting_for == "the store of t"
        assert reporter.report.message == "no access to _weft: no answer"
        compact_round(table, POLICY, reporter)

    stop = Stop(rounds=21)
    repeat(stop, POLICY.every, work, reporter, "the store of t")  # type: ignore[arg-type]
    assert stop.waits[:7] == [0, 1, 2, 4, 8, 16, 30]
    assert max(stop.waits) == 30
    assert waiting(table) == 0
    assert (reporter.report.waiting_for, reporter.report.waiting_since_ms) == ("", None)
    assert reporter.report.doing == "idle"
    assert reporter.report.progress == 1


def test_a_service_continues_when_the_store_answers_again(table: Table, reporter: Reporter, tmp_path: Path) -> None:
    append(table, 3)
    (tmp_path / "t/log").rename(tmp_path / "away")

    class Repair(Stop):
        def wait(self, seconds: float) -> bool:
            if len(self.waits) == 2:
                (tmp_path / "away").rename(tmp_path / "t/log")
            return super().wait(seconds)

    stop = Repair(rounds=4)
    compact_repeatedly(stop, table, reporter)
    assert waiting(table) == 0
    assert stop.waits[-1] <= 0.1


def test_commits_that_are_not_due_are_folded(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    patient = CompactionSection(min_commits=1000, max_log_ratio=1e9, fold_commits=4)
    compact_round(table, patient, reporter)  # the first slice
    append(table, 3)
    compact_round(table, patient, reporter)
    assert (waiting(table), reporter.report.commits) == (3, 1)
    append(table, 1)
    compact_round(table, patient, reporter)
    assert waiting(table) == 0
    assert reporter.report.commits == 2
    assert reporter.report.message.startswith("4 commits, ")
    append(table, 4)
    compact_round(table, CompactionSection(min_commits=1000, max_log_ratio=1e9, fold_commits=None), reporter)
    assert waiting(table) == 4


def test_an_idle_round_makes_the_requests_of_one_snapshot(tmp_path: Path, reporter: Reporter) -> None:
    clock = FakeClock()  # it stands, so no mark is due
    Table.create(tmp_path / "counted", CONFIG, clock=clock)
    store: Any = CountingStore(open_store(str(tmp_path / "counted")))
    counted = Table(Environment(store, clock), Stamps())
    append(counted, 1)
    compact_round(counted, POLICY, reporter)
    append(counted, 2)
    counted.snapshot()

    def requests(run: Callable[[], object]) -> dict[str, int]:
        store.requests = {}
        run()
        return dict(store.requests)

    one = requests(counted.snapshot)
    assert one
    assert requests(lambda: compact_round(counted, POLICY, reporter)) == one
    assert waiting(counted) == 2, "nothing was due"


def test_a_fold_after_a_compaction_sees_what_was_compacted(table: Table, reporter: Reporter) -> None:
    append(table, 1)
    compact_round(table, POLICY, reporter)
    append(table, 3)
    both = CompactionSection(min_commits=3, max_log_ratio=1e9, fold_commits=3)
    compact_round(table, both, reporter)
    assert (waiting(table), table.state().folds, reporter.report.commits) == (0, (), 2)


def test_unneeded_files_are_deleted_once_they_are_old_enough(table: Table, reporter: Reporter, tmp_path: Path) -> None:
    def files() -> int:
        return sum(path.is_file() for folder in ("log", "base") for path in (tmp_path / "t" / folder).rglob("*"))

    append(table, 3)
    table.compact()
    append(table, 1)
    table.compact()
    before, rows = files(), table.snapshot().to_arrow().num_rows
    clean_round(table, CleanSection(), reporter)
    assert (files(), reporter.report.commits, reporter.report.doing) == (before, 0, "idle")
    clean_round(table, CleanSection(retain="0 s", versions=2), reporter)  # type: ignore[arg-type]  # as a file has it
    assert files() < before
    before = files()
    clean_round(table, CleanSection(retain="0 s"), reporter)  # type: ignore[arg-type]
    assert files() < before
    assert reporter.report.commits >= 1
    assert reporter.report.message.endswith("MB deleted")
    assert table.snapshot().to_arrow().num_rows == rows == 50

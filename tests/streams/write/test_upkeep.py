"""What a writer does besides writing: compaction in a thread, and back-pressure. Without Spark."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.shop import SHOP, append, contents, orders
from tests.streams.support.pipelines import pipeline_file
from tests.tuning import tune
from tests.wait_until import wait_until
from weft import Table
from weft.storage.core.plan.read_cost import ReadCost, read_cost
from weft.streams.pipeline.file.model import BackPressureSection, CompactionSection
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.status_fields import current_message
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.write.back_pressure import delay_seconds, describe_delay
from weft.streams.write.upkeep import Upkeep, UpkeepThread, upkeep_of, upkeep_thread

pytestmark = pytest.mark.usefixtures("upkeep_ends")

WAIT_SECONDS = 120.0
COSTS = st.builds(ReadCost, amplification=st.floats(1, 1e6), commits=st.integers(0, 10**7))
LIMITS = st.builds(
    BackPressureSection,
    max_read_amplification=st.none() | st.floats(1.1, 100),
    max_commits=st.none() | st.integers(1, 10**6),
    max_delay=st.floats(0.1, 300),
)


@given(LIMITS, COSTS, st.floats(0.1, 3600))
def test_delays_are_bounded_and_begin_at_the_limit(limits: BackPressureSection, cost: ReadCost, trigger: float) -> None:
    delay = delay_seconds(limits, cost, trigger)
    assert 0 <= delay <= limits.max_delay
    over = (limits.max_read_amplification is not None and cost.amplification > limits.max_read_amplification) or (
        limits.max_commits is not None and cost.commits > limits.max_commits
    )
    assert (delay > 0) == over
    if over:
        assert "slowed down by" in describe_delay(limits, cost, delay)


@given(LIMITS, COSTS, COSTS, st.floats(0.1, 3600))
def test_a_more_expensive_read_never_makes_the_delay_shorter(
    limits: BackPressureSection, one: ReadCost, two: ReadCost, trigger: float
) -> None:
    worse = ReadCost(max(one.amplification, two.amplification), max(one.commits, two.commits))
    assert delay_seconds(limits, worse, trigger) >= delay_seconds(limits, one, trigger)


def test_a_reason_names_what_is_exceeded() -> None:
    limits = BackPressureSection(max_read_amplification=4, max_commits=100)
    assert "12.5 times the bytes of the table (limit 4)" in describe_delay(limits, ReadCost(12.5, 5), 3)
    assert "2,000 commits wait for compaction (limit 100)" in describe_delay(limits, ReadCost(1.5, 2000), 3)


@pytest.fixture
def table() -> Table:
    table = Table.create(f"memory://upkeep/{uuid.uuid4().hex}", SHOP)
    append(table, orders(*range(40)))
    return table


class Lines:
    """The lines of the status, and a way to wait for one."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.all.append(line)
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.all), WAIT_SECONDS), self.all


@pytest.fixture
def lines() -> Lines:
    return Lines()


def running(table: Table, upkeep: Upkeep, trigger: float = 1.0) -> UpkeepThread:
    return UpkeepThread(upkeep, table.uri, None, trigger)


def upkeep(lines: Lines, **arguments: float) -> Upkeep:
    return Upkeep(compaction=CompactionSection.model_construct(min_commits=1, every=0.05, **arguments), tell=lines)


def waits(table: Table) -> bool:
    return bool(table.snapshot().files)


def test_what_is_due_is_compacted_after_a_commit(table: Table, lines: Lines) -> None:
    rows = contents(table)
    with running(table, upkeep(lines)) as thread:
        lines.wait_for("compacted 4 file groups")
        assert contents(table) == rows
        append(table, orders(1, status="later", ts=5))
        thread.committed()
        wait_until(lambda: not waits(table), WAIT_SECONDS)
    assert not table.state().plans
    assert table.verify().ok


def test_file_groups_that_are_too_large_are_left_and_named(table: Table, lines: Lines) -> None:
    with running(table, upkeep(lines, memory=400)):
        lines.wait_for("too large for a writer")
    assert waits(table)
    assert "4 file groups of up to" in lines.all[-1]


def test_a_failure_is_told_and_repeated_later(table: Table, lines: Lines) -> None:
    (name, _), *_ = table.env.store.list("log")  # type: ignore[arg-type]
    path = f"log/{name}"
    kept = table.env.store.get(path)  # type: ignore[arg-type]
    assert kept is not None
    table.env.store.delete(path)  # type: ignore[arg-type]
    with running(table, upkeep(lines)):
        lines.wait_for("upkeep of the table failed: ")
        assert "next try in" in lines.all[-1]
        table.env.store.put(path, kept)  # type: ignore[arg-type]
        lines.wait_for("compacted 4 file groups")
    assert not waits(table)


def test_a_thread_ends_between_two_steps(table: Table, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of nearly nothing: after its first step it would rest for hours."""
    tune(monkeypatch, small_group_bytes=0)
    with running(table, upkeep(lines, share=1e-9)):
        wait_until(lambda: bool(table.state().plans), WAIT_SECONDS)
    assert not table.state().plans, "the rest was cancelled"
    assert table.verify().ok


@pytest.fixture
def slow(table: Table) -> Table:
    """A table with commits that wait."""
    for number in range(5):
        append(table, orders(1, ts=number + 5))
    return table


def test_a_batch_waits_while_reads_are_too_expensive(slow: Table, lines: Lines) -> None:
    limits = BackPressureSection.model_construct(max_read_amplification=None, max_commits=1, max_delay=0.3, every=0.05)
    with running(slow, Upkeep(back_pressure=limits, tell=lines)) as thread:
        lines.wait_for("6 commits wait for compaction (limit 1)")
        began = time.monotonic()
        thread.wait_before_batch()
        assert time.monotonic() - began >= 0.3
        slow.compact()
        lines.wait_for("")
        wait_until(lambda: lines.all[-1] == "", WAIT_SECONDS)
        began = time.monotonic()
        thread.wait_before_batch()


def test_a_slowed_writer_reports_its_delay_and_its_waits(slow: Table, tmp_path: Path) -> None:
    path = pipeline_file(tmp_path, back_pressure={"max_commits": 1, "max_delay": "100 ms", "every": "100 ms"})
    reporter = Reporter(None, Report())
    with running(slow, upkeep_of(load_pipeline(path), reporter, NeverStops())) as thread:  # type: ignore[arg-type]
        wait_until(lambda: reporter.report.delay_seconds == 0.1, WAIT_SECONDS)
        assert reporter.report.read_amplification == 1.0, "it is the number of commits that is too large"
        for waits in (1, 2):
            thread.wait_before_batch()
            assert reporter.report.waited_seconds >= 0.1 * waits
        slow.compact()
        wait_until(lambda: reporter.report.delay_seconds == 0, WAIT_SECONDS)
        waited = reporter.report.waited_seconds
        thread.wait_before_batch()
        assert reporter.report.waited_seconds == waited
    again = reporter.report.restarted()
    assert (again.waited_seconds, again.delay_seconds, again.read_amplification) == (waited, None, None)


def test_a_wait_ends_when_the_pressure_does(slow: Table, lines: Lines) -> None:
    limits = BackPressureSection.model_construct(
        max_read_amplification=None, max_commits=1, max_delay=10_000, every=0.05
    )
    with running(slow, Upkeep(back_pressure=limits, tell=lines), trigger=5_000) as thread:
        lines.wait_for("slowed down")
        waiting = threading.Thread(target=thread.wait_before_batch)
        waiting.start()
        slow.compact()
        waiting.join(WAIT_SECONDS)
        assert not waiting.is_alive()


@pytest.mark.parametrize("how", ["stopping", "closed"])
def test_a_writer_that_stops_does_not_wait(slow: Table, lines: Lines, how: str) -> None:
    stop = threading.Event()
    limits = BackPressureSection.model_construct(
        max_read_amplification=None, max_commits=1, max_delay=10_000, every=0.05
    )
    with running(slow, Upkeep(back_pressure=limits, tell=lines, stopping=stop.is_set), trigger=5_000) as thread:
        lines.wait_for("slowed down")
        waiting = threading.Thread(target=thread.wait_before_batch)
        waiting.start()
        if how == "stopping":
            stop.set()
            waiting.join(WAIT_SECONDS)
            assert not waiting.is_alive()
    waiting.join(WAIT_SECONDS)
    assert not waiting.is_alive()


def test_a_table_that_cannot_be_read_slows_nothing_down(lines: Lines) -> None:
    limits = BackPressureSection.model_construct(
        max_read_amplification=None, max_commits=1, max_delay=10_000, every=0.05
    )
    with UpkeepThread(Upkeep(back_pressure=limits, tell=lines), "memory://upkeep/none", None, 5_000) as thread:
        lines.wait_for("upkeep of the table failed: there is no table")
        thread.wait_before_batch()


def test_the_cost_of_a_read(slow: Table) -> None:
    snapshot = slow.snapshot()
    cost = read_cost(snapshot.slices, snapshot.files)
    assert cost == ReadCost(1.0, 6), "the table is small"
    slow.compact()
    snapshot = slow.snapshot()
    assert read_cost(snapshot.slices, snapshot.files) == ReadCost(1.0, 0)


class NeverStops:
    def __bool__(self) -> bool:
        return False


def test_the_pipeline_file_says_what_its_writers_do(tmp_path: Path) -> None:
    section = {"on": "inline", "share": 0.5, "memory": "1 GB", "every": "10 seconds", "min_commits": 3}
    path = pipeline_file(tmp_path, compaction=section, back_pressure={"max_commits": 7})
    reporter = Reporter(None, Report())
    found = upkeep_of(load_pipeline(path), reporter, NeverStops())  # type: ignore[arg-type]
    assert found.compaction == CompactionSection(**section)  # type: ignore[arg-type]
    assert (found.compaction.share, found.compaction.memory, found.compaction.every) == (0.5, 10**9, 10.0)
    assert found.back_pressure == BackPressureSection(max_commits=7)
    assert found.every == 10.0
    found.tell("slowed down by 3.0 s a batch: why")
    assert reporter.report.note == "slowed down by 3.0 s a batch: why"
    status = JobStatus("sa", Phase.RUNNING, 1, 0, reporter.report, "", Path(), (), None, background=False)
    assert current_message(status, 0) == "slowed down by 3.0 s a batch: why"
    assert reporter.report.restarted().note == ""


def test_writers_do_nothing_else_by_default(tmp_path: Path) -> None:
    found = upkeep_of(load_pipeline(pipeline_file(tmp_path)), Reporter(None, Report()), NeverStops())  # type: ignore[arg-type]
    assert (found.compaction, found.back_pressure) == (None, None)
    with upkeep_thread(found, "memory://upkeep/none", None, 1.0) as thread:
        assert thread is None

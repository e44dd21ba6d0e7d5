"""Compaction in the process of a running query, and back-pressure on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS, Feed, event, rows
from weft import Table
from weft.streams.pipeline.file.model import BackPressureSection, CompactionSection
from weft.streams.write.sink import CommitReport, write_stream
from weft.streams.write.upkeep import Upkeep

pytestmark = [pytest.mark.timeout(TEST_SECONDS), pytest.mark.usefixtures("upkeep_ends")]

EAGER = CompactionSection(min_commits=1, every=0.1)


def wait_until(condition: Callable[[], Any], query: StreamingQuery | None = None) -> None:
    """Wait for a condition. If it depends on a query, the error of the query ends the wait."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert query is None or query.isActive, query.exception()
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


@contextlib.contextmanager
def writing(
    feed: Feed, table: Table, tmp_path: Path, upkeep: Upkeep, reports: list[CommitReport]
) -> Iterator[StreamingQuery]:
    """A query that commits a batch for each file of the feed."""
    query = write_stream(
        feed.read(),
        table.uri,
        "orders",
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="200 ms",
        on_commit=reports.append,
        upkeep=upkeep,
    )
    try:
        yield query
    finally:
        query.stop()


def test_a_query_compacts_what_it_has_written(feed: Feed, table: Table, tmp_path: Path) -> None:
    lines: list[str] = []
    reports: list[CommitReport] = []
    feed.put(event(0))
    with writing(feed, table, tmp_path, Upkeep(compaction=EAGER, tell=lines.append), reports) as query:
        for number in range(1, 6):
            wait_until(lambda number=number: len(reports) >= number, query)
            feed.put(event(number), event(0, number + 1, f"s{number}"))
        wait_until(lambda: len(reports) >= 6, query)
        wait_until(lambda: not table.snapshot().files, query)
        wait_until(lambda: any("compacted" in line for line in lines), query)  # when a round has ended
        assert query.isActive
    assert rows(table) == [(0, "s5", 6), *((number, "new", 1) for number in range(1, 6))]
    assert [s for s in table.snapshot().slices if s.slice is not None]
    # The end of the query closes its writer, and cancels what it compacts, in another thread.
    wait_until(lambda: not table.state().plans)
    assert table.verify().ok


def test_a_failing_compaction_fails_no_batch(feed: Feed, table: Table, tmp_path: Path) -> None:
    """A log file is gone, so compaction fails each time. The query goes on, and its status says so."""
    feed.put(event(0))
    lines: list[str] = []
    reports: list[CommitReport] = []
    never = Upkeep(compaction=CompactionSection(min_commits=1000, max_log_ratio=1e9, every=1000))
    with writing(feed, table, tmp_path, never, reports):
        wait_until(lambda: len(reports) >= 1)
    (lost,) = (tmp_path / "table/log").rglob("*.arrow")
    lost.rename(tmp_path / "kept.arrow")
    with writing(feed, table, tmp_path, Upkeep(compaction=EAGER, tell=lines.append), reports) as query:
        for number in range(1, 4):
            feed.put(event(number))
            wait_until(lambda number=number: reports[-1].batch_id >= number, query)
        wait_until(lambda: any("upkeep of the table failed" in line for line in lines), query)
        assert query.isActive
        assert query.exception() is None
    (tmp_path / "kept.arrow").rename(lost)
    assert rows(table) == [(number, "new", 1) for number in range(4)]
    wait_until(lambda: table.compact().skipped == {})  # a last compaction of the query may still go on
    assert table.verify().ok
    assert not query.isActive


def test_a_query_slows_down_says_so_and_writes_everything(feed: Feed, table: Table, tmp_path: Path) -> None:
    lines: list[str] = []
    reports: list[CommitReport] = []
    limits = BackPressureSection(max_read_amplification=None, max_commits=1, max_delay=2.0, every=0.1)
    for number in range(3):
        feed.put(event(number))
    with writing(feed, table, tmp_path, Upkeep(back_pressure=limits, tell=lines.append), reports) as query:
        wait_until(lambda: len(reports) >= 3, query)
        wait_until(lambda: any("3 commits wait for compaction (limit 1)" in line for line in lines), query)
        began = time.monotonic()
        feed.put(event(3))
        wait_until(lambda: len(reports) >= 4, query)
        assert time.monotonic() - began >= 2.0, "the batch began later"
        assert query.isActive
        table.compact()
        wait_until(lambda: lines[-1] == "", query)
    assert rows(table) == [(number, "new", 1) for number in range(4)]

"""Frames into tables: one file per task, exactly once despite crashes at any point, one writer per lane."""

from __future__ import annotations

import contextlib
import decimal
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import QueryIdleEvent

from tests.faulty_store import FakeClock
from tests.streams.write.sink.conftest import CONFIG
from tests.streams.write.sink.rig import COLUMNS, TEST_SECONDS, WAIT_SECONDS, Feed, event, log_files, rows, run
from tests.wait_until import wait_until
from weft import Table
from weft.storage.core.log.entries import Claim, Data
from weft.storage.core.names import LaneName
from weft.storage.errors import Conflict
from weft.storage.log.commit_log import CommitLog
from weft.storage.log.heartbeat import EVERY_MS, newest_heartbeats
from weft.storage.store.open_store import open_store
from weft.streams.write.sink import CommitReport, _Attend, write_stream
from weft.streams.write.write_batch import write_batch

pytestmark = pytest.mark.timeout(TEST_SECONDS)

START_SECONDS = 300
"""Time limit for the start of another process with Spark, which takes about ten seconds."""


def entries(table: Table, lane: str = "orders") -> list[Any]:
    log = CommitLog(table.env)
    return list(log.read_after(lane, 0))


def commits(table: Table, lane: str = "orders") -> list[Data]:
    return [entry for entry in entries(table, lane) if isinstance(entry, Data)]


# --- without failures ------------------------------------------------------------------------------------------------


def test_a_batch_is_one_commit_with_one_file_per_task(feed: Feed, table: Table, tmp_path: Path) -> None:
    for i in range(4):
        feed.put(event(i), event(10 + i))
    reports: list[CommitReport] = []
    began = time.monotonic()
    query = run(feed.read(per_batch=2), table, tmp_path, on_commit=reports.append)
    took = time.monotonic() - began
    assert rows(table) == [(i, "new", 1) for i in (0, 1, 2, 3, 10, 11, 12, 13)]
    data = commits(table)
    assert [(entry.query_id, entry.batch, len(entry.files), entry.rows) for entry in data] == [
        (query.id, 0, 2, 4),
        (query.id, 1, 2, 4),
    ]
    assert [entry.source["offsets"][0]["logOffset"] for entry in data] == [0, 1]
    assert [(r.batch_id, r.commit.rows, r.commit.replayed, r.rows_refused) for r in reports] == [
        (0, 4, False, 0),
        (1, 4, False, 0),
    ]
    assert all(0 < r.seconds < took and r.committed_at_ms >= data[0].committed_at_ms for r in reports)


def test_rows_of_a_commit_are_in_the_order_of_the_partitions(feed: Feed, table: Table, tmp_path: Path) -> None:
    # Equal ordering values: the last one wins, and the second file is the second partition. The first task is slower.
    feed.put(*[event(i, status="first") for i in range(2000)])
    feed.put(event(7, status="second"))
    run(feed.read(per_batch=2), table, tmp_path)
    [entry] = commits(table)
    assert [file.file.rows for file in entry.files] == [2000, 1]
    assert (7, "second", 1) in rows(table)


def test_a_batch_is_one_job_of_one_stage(spark: SparkSession, feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    feed.put(event(2))
    query = run(feed.read(per_batch=2), table, tmp_path)
    # The tracker hears of jobs through a queue.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(WAIT_SECONDS * 1000)  # type: ignore[union-attr]
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(query.runId)]
    # Listing the files may be a separate job; a shuffle would be a second stage.
    assert [len(job.stageIds) for job in jobs] == [1]
    assert tracker.getStageInfo(jobs[0].stageIds[0]).numTasks == 2


def test_a_commit_of_several_tasks_advances_the_watermark(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1, seq=10), event(2, seq=40))
    feed.put(event(3, seq=12))
    feed.put(event(4, seq=30))
    feed.put(event(5, seq=50), event(6, seq=36))
    reports: list[CommitReport] = []
    run(feed.read(per_batch=2), table, tmp_path, lateness="3", on_commit=reports.append)
    assert [(report.commit.rows, report.commit.late) for report in reports] == [(3, 0), (3, 2)]
    mark = table.watermarks()["orders"]["order"]
    assert (mark.value, mark.late) == (47, 2)
    # The promise of earlier commits applies after a restart.
    feed.put(event(7, seq=46))
    run(feed.read(), table, tmp_path, on_commit=reports.append)
    assert reports[-1].commit.late == 1
    assert len(rows(table)) == 7


def test_write_batch_advances_the_watermark_of_its_lane(spark: SparkSession, table: Table) -> None:
    def write(*events: dict[str, Any], **given: Any) -> int:
        return write_batch(spark.createDataFrame(events, COLUMNS), table.uri, "orders", **given).late

    def promised() -> Any:
        return table.watermarks()["orders"]["order"].value

    assert write(event(1, seq=40), event(2, seq=10), lateness=3, lane="orders-backfill") == 0
    assert promised() == 37
    assert write(event(3, seq=36), event(4, seq=50), lateness="5", lane="orders-backfill") == 1
    assert promised() == 45
    # A lane without a promise holds back the watermark, unless it is closed.
    assert write(event(5, seq=1), lane="other") == 0
    assert promised() is None
    table.close_lane("other")
    assert promised() == 45
    assert len(rows(table)) == 5


def test_a_restart_continues_with_the_next_batch(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    first = run(feed.read(), table, tmp_path)
    feed.put(event(1, seq=2, status="paid"))
    second = run(feed.read(), table, tmp_path)
    assert first.id == second.id
    assert first.runId != second.runId
    assert [entry.batch for entry in commits(table)] == [0, 1]
    assert [type(entry) for entry in entries(table)] == [Claim, Data, Claim, Data]
    assert rows(table) == [(1, "paid", 2)]


def test_a_batch_without_rows_is_committed(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1), event(2))
    feed.put(event(3))
    run(feed.read().where("id = 3"), table, tmp_path)
    assert [(entry.batch, entry.rows, len(entry.files)) for entry in commits(table)] == [(0, 0, 0), (1, 1, 1)]
    assert rows(table) == [(3, "new", 1)]


def test_types_keep_their_values(spark: SparkSession, tmp_path: Path) -> None:
    config = {
        "key": ["id", "day"],
        "columns": {
            "id": "decimal(10,0)", "day": "date", "amount": "decimal(12,2)", "at": "timestamp", "local":
            "timestamp_ntz", "raw": "binary", "lines": "array<struct<sku:string,count:int>>", "tags":
            "map<string,bigint>", "ok": "boolean",
        },
        "groups": {"all": {"columns": ["amount", "at", "local", "raw", "lines", "tags", "ok"], "ordering": ["at"]}},
        "streams": {"all": {"groups": ["all"]}},
    }  # fmt: skip
    table = Table.create(tmp_path / "table", config)
    source = spark.range(2).selectExpr(
        "id", "date'2024-02-29' AS day", "cast(id + 0.25 AS decimal(5,2)) AS amount",
        "timestamp'2024-01-02 03:04:05.123456+01:00' AS at", "timestamp_ntz'2024-01-02 03:04:05' AS local",
        "unhex('00FF') AS raw", "array(named_struct('sku', 'a', 'count', 1), null) AS lines",
        "map('k', id, 'n', null) AS tags", "id = 1 AS ok",
    )  # fmt: skip
    commit = write_batch(source.withColumn("id", F.col("id").cast("decimal(10,0)")), table.uri, "all")
    assert (commit.rows, commit.lane) == (2, "all-batches-1")
    found = table.snapshot().to_arrow().sort_by("id").to_pylist()[1]
    assert found["at"].isoformat() == "2024-01-02T02:04:05.123456+00:00"
    assert found["local"].isoformat() == "2024-01-02T03:04:05"
    assert (found["id"], found["amount"]) == (decimal.Decimal(1), decimal.Decimal("1.25"))
    assert (found["raw"], found["ok"]) == (b"\x00\xff", True)
    assert found["lines"] == [{"sku": "a", "count": 1}, None]
    assert found["tags"] == [("k", 1), ("n", None)]


def test_deletes_are_passed_in_the_operation_column(spark: SparkSession, table: Table) -> None:
    df = spark.createDataFrame([(1, "a", 1, "c"), (2, "b", 1, None), (1, None, 2, "D")], f"{COLUMNS}, _op string")
    assert write_batch(df.coalesce(1), table.uri, "orders").rows == 3
    assert rows(table) == [(2, "b", 1)]


def test_write_batch_does_not_fence_a_live_writer(spark: SparkSession, table: Table) -> None:
    live = pa.table({"id": [1], "status": ["live"], "seq": [2]})
    with table.writer("orders") as writer:
        writer.append(live)
        old = spark.createDataFrame([(1, "old", 1), (2, "old", 1)], COLUMNS)
        commit = write_batch(old.repartition(2), table.uri, "orders")
        writer.append(live)
    assert (commit.lane, commit.rows, commit.replayed) == ("orders-batches-1", 2, False)
    assert rows(table) == [(1, "live", 2), (2, "old", 1)]


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_crash_after_the_commit_does_not_double_the_batch(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    feed.put(event(2))
    run(feed.read(), table, tmp_path)
    before = log_files(tmp_path)
    # As if the process had died before Spark recorded the commit.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink()
    reports: list[CommitReport] = []
    feed.put(event(3))
    run(feed.read(), table, tmp_path, on_commit=reports.append)
    assert [(report.batch_id, report.commit.replayed) for report in reports] == [(1, True), (2, False)]
    assert [entry.batch for entry in commits(table)] == [0, 1, 2]
    assert len(log_files(tmp_path) - before) == 1
    assert rows(table) == [(1, "new", 1), (2, "new", 1), (3, "new", 1)]


def test_a_crash_between_files_and_commit_makes_nothing_visible(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    feed.put(event(2))
    crash = tmp_path / "crash"
    crash.touch()

    @F.udf("string")
    def fail_once_the_other_has_written(key: int) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while key == 2 and crash.exists():
            if list((tmp_path / "table/log").rglob("[!.]*.arrow")) or time.monotonic() > deadline:
                raise RuntimeError("the task dies")
            time.sleep(0.02)
        return "made"

    df = feed.read(per_batch=2).withColumn("status", fail_once_the_other_has_written("id"))
    with pytest.raises(StreamingQueryException, match="the task dies"):
        run(df, table, tmp_path)
    orphans = log_files(tmp_path)
    assert len(orphans) == 1
    assert rows(table) == []
    crash.unlink()
    run(df, table, tmp_path)
    assert [(entry.batch, entry.rows) for entry in commits(table)] == [(0, 2)]
    assert orphans < log_files(tmp_path)
    assert rows(table) == [(1, "made", 1), (2, "made", 1)]


# The last message holds it up: otherwise it could be at the end before it is killed.
VICTIM = """
import sys, time
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from weft.streams.write.sink import write_stream
uri, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.readStream.schema("id bigint, status string, seq bigint").option("maxFilesPerTrigger", 1).json(folder)
@F.udf("bigint")
def held(key):
    while key == 11:
        time.sleep(1)
    return key
df = df.withColumn("id", held("id"))
query = write_stream(df, uri, "orders", checkpoint=checkpoint, trigger=None)
query.awaitTermination()
"""


@pytest.mark.timeout(START_SECONDS + 2 * WAIT_SECONDS)
def test_a_killed_process_is_continued_exactly_once(feed: Feed, table: Table, tmp_path: Path) -> None:
    checkpoint, said = tmp_path / "checkpoint", tmp_path / "victim.log"
    for i in range(12):
        feed.put(event(i))
    with said.open("w") as output:
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, table.uri, str(feed._folder), str(checkpoint)],
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: victim.poll() is not None or len(commits(table)) >= 2, START_SECONDS)
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        ended = victim.wait(WAIT_SECONDS)
    assert ended == -signal.SIGKILL, said.read_text()
    assert 2 <= len(commits(table)) < 12
    run(feed.read(), table, tmp_path)
    # A batch may have two files: a kill after Spark's file source noted a file, and before the batch was planned,
    # leaves the file to the next batch, which adds its own.
    assert [entry.batch for entry in commits(table)] == list(range(len(commits(table))))
    assert sum(entry.rows for entry in commits(table)) == 12
    assert rows(table) == [(i, "new", 1) for i in range(12)]


def test_a_failing_on_commit_fails_the_query_after_the_commit(feed: Feed, table: Table, tmp_path: Path) -> None:
    def fail(report: CommitReport) -> None:
        raise RuntimeError(f"after batch {report.batch_id}")

    feed.put(event(1))
    with pytest.raises(StreamingQueryException, match="after batch 0"):
        run(feed.read(), table, tmp_path, on_commit=fail)
    assert len(commits(table)) == 1
    run(feed.read(), table, tmp_path)
    assert len(commits(table)) == 1


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_a_fenced_query_stops_and_loses_nothing(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    query = write_stream(feed.read(), table.uri, "orders", checkpoint=str(tmp_path / "checkpoint"), trigger=None)
    try:
        wait_until(lambda: commits(table), WAIT_SECONDS)
        second = write_stream(
            feed.read().where("id > 1"), table.uri, "orders",
            checkpoint=str(tmp_path / "second"), trigger=None, takeover=True,
        )  # fmt: skip
        try:
            wait_until(lambda: len(commits(table)) == 2, WAIT_SECONDS)
            feed.put(event(2))
            with pytest.raises(StreamingQueryException) as caught:
                assert query.awaitTermination(WAIT_SECONDS)
            wait_until(lambda: len(commits(table)) == 3, WAIT_SECONDS)
        finally:
            second.stop()
    finally:
        query.stop()
    text = str(caught.value)
    assert "Fenced" in text
    assert "stream 'orders' was claimed by" in text
    assert "hint: this writer must stop" in text
    assert query.exception() is not None
    assert "was claimed by" in str(query.exception())
    assert {entry.query_id for entry in commits(table)} == {query.id, second.id}
    assert rows(table) == [(1, "new", 1), (2, "new", 1)]


@pytest.mark.parametrize("trigger", ["50 ms", "0.05 s", "50 milliseconds", "interval 50 milliseconds"])
def test_triggers_have_the_form_of_a_pipeline_or_of_spark(
    feed: Feed, table: Table, tmp_path: Path, trigger: str
) -> None:
    feed.put(event(1))
    query = write_stream(feed.read(), table.uri, "orders", checkpoint=str(tmp_path / "c"), trigger=trigger)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert rows(table) == [(1, "new", 1)]


def test_another_checkpoint_needs_takeover(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    run(feed.read(), table, tmp_path)
    # Its writer is closed by a listener; until then it is known to run, and is to be stopped first.
    wait_until(lambda: not newest_heartbeats(open_store(table.uri)), WAIT_SECONDS)
    before = table.snapshot().cut
    with pytest.raises(Conflict, match="takeover=True") as refused:
        run(feed.read(), table, tmp_path, checkpoint=str(tmp_path / "other"))
    assert "(in a pipeline file: takeover: true)" in refused.value.hint
    # The lane was not claimed, so a live query would not have been fenced.
    assert table.snapshot().cut == before


def test_the_writer_is_always_closed(feed: Feed, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = Table.writer
    monkeypatch.setattr(Table, "writer", lambda *a, **k: made.append(original(*a, **k)) or made[-1])
    feed.put(event(1))
    run(feed.read(), table, tmp_path)  # it ends by itself
    feed.put(event(None))
    with pytest.raises(StreamingQueryException):  # it fails
        run(feed.read(), table, tmp_path, on_error="stop")
    stopped = write_stream(
        feed.read().where("id > 1"), table.uri, "orders",
        lane="stopped", checkpoint=str(tmp_path / "stopped"), trigger=None,
    )  # fmt: skip
    stopped.stop()
    assert len(made) == 3
    wait_until(lambda: not any(writer._open for writer in made), WAIT_SECONDS)


def test_a_writer_without_messages_sends_heartbeats(spark: SparkSession, tmp_path: Path) -> None:
    clock = FakeClock()
    table = Table.create(tmp_path / "table", CONFIG, clock=clock)

    def last_sign() -> int | None:
        beat = newest_heartbeats(open_store(table.uri)).get(LaneName("orders"))
        return None if beat is None else beat.at_ms

    run_id, other = uuid.uuid4(), uuid.uuid4()
    with contextlib.ExitStack() as end:
        listener = _Attend(spark, str(run_id), end.enter_context(table.writer("orders")), end)
        first = last_sign()
        clock.time_ms += 10 * EVERY_MS
        listener.onQueryIdle(QueryIdleEvent(uuid.uuid4(), other, "2026-01-01T00:00:00Z"))
        assert last_sign() == first
        listener.onQueryIdle(QueryIdleEvent(uuid.uuid4(), run_id, "2026-01-01T00:00:00Z"))
        assert last_sign() == clock.time_ms
    assert last_sign() is None, "a writer that stops normally deletes its heartbeat"

"""Frames into tables: exactly once over crashes at any point, one file a task, refusals, dead letters."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from storage import Table
from storage.core.entries import Claim, Data
from storage.core.names import Path as StorePath
from storage.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from storage.table import _timeline
from streams.dead_letter import DeadLetters, open_dead_letters
from streams.decode import decode_json
from streams.demo.broker import EmbeddedBroker
from streams.kafka import register
from streams.sink import CommitReport, write_batch, write_stream

pytestmark = pytest.mark.timeout(180)

WAIT_SECONDS = 60
START_SECONDS = 180
"""Bound on the start of another process with a Spark of its own; it takes some ten seconds."""
CONFIG = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "status": "string",
        "seq": "bigint",
        "price": "double",
        "priced": "double",
    },
    "groups": {
        "order": {"columns": ["status", "seq"], "ordering": ["seq"]},
        "price": {"columns": ["price", "priced"], "ordering": ["priced"]},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "prices": {"groups": ["price"]}},
}
MESSAGE = {"id": "bigint", "status": "string", "seq": "bigint", "_op": "string"}
COLUMNS = "id bigint, status string, seq bigint"

_numbers = itertools.count()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", CONFIG)


class Feed:
    """A folder of JSON files as a streaming source: every file one partition, every `maxFilesPerTrigger` one batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        folder.mkdir()
        self._spark, self._folder, self._count = spark, folder, 0

    def put(self, *rows: dict[str, Any]) -> None:
        self._count += 1
        hidden = self._folder / f"_{self._count}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Files are taken in the order of their times.
        os.utime(hidden, (time.time() - 1000 + self._count,) * 2)
        hidden.rename(self._folder / f"{self._count}.json")

    def read(self, per_batch: int = 1, columns: str = COLUMNS) -> DataFrame:
        reader = self._spark.readStream.schema(columns).option("maxFilesPerTrigger", per_batch)
        return reader.json(str(self._folder))


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "feed")


def event(key: int | None, seq: int | None = 1, status: str = "new") -> dict[str, Any]:
    return {"id": key, "status": status, "seq": seq}


def run(df: DataFrame, table: Table, tmp_path: Path, stream: str = "orders", **given: Any) -> StreamingQuery:
    """Run a query over what there is, to its end; raises what ended it."""
    given = {"checkpoint": str(tmp_path / "checkpoint"), "once": True, **given}
    query = write_stream(df, table.uri, stream, **given)
    try:
        assert query.awaitTermination(WAIT_SECONDS), "the query has not ended in time"
    finally:
        query.stop()
    return query


def rows(table: Table) -> list[tuple[Any, ...]]:
    found = table.snapshot().to_arrow(["id", "status", "seq"]).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def entries(table: Table, lane: str = "orders") -> list[Any]:
    log = _timeline(table.uri, None, table._clock).log
    return list(log.read_after(lane, 0))


def commits(table: Table, lane: str = "orders") -> list[Data]:
    return [entry for entry in entries(table, lane) if isinstance(entry, Data)]


def log_files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "table/log").rglob("*.arrow")}


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]


def wait_until(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


# --- the ordinary case -----------------------------------------------------------------------------------------------


def test_batches_become_commits_of_one_file_a_task(feed: Feed, table: Table, tmp_path: Path) -> None:
    for i in range(4):
        feed.put(event(i), event(10 + i))
    reports: list[CommitReport] = []
    query = run(feed.read(per_batch=2), table, tmp_path, on_commit=reports.append)
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
    assert all(0 < r.seconds < WAIT_SECONDS and r.committed_at_ms >= data[0].committed_at_ms for r in reports)


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
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(query.runId)]
    # Reading the files' list may be a job of its own; a shuffle would be a second stage.
    assert [len(job.stageIds) for job in jobs] == [1]
    assert tracker.getStageInfo(jobs[0].stageIds[0]).numTasks == 2


def test_a_restart_goes_on_with_the_next_batch(feed: Feed, table: Table, tmp_path: Path) -> None:
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
    assert (commit.rows, commit.lane) == (2, "all-backfill")
    found = table.snapshot().to_arrow().sort_by("id").to_pylist()[1]
    assert found["at"].isoformat() == "2024-01-02T02:04:05.123456+00:00"
    assert found["local"].isoformat() == "2024-01-02T03:04:05"
    assert (found["id"], found["amount"]) == (decimal.Decimal(1), decimal.Decimal("1.25"))
    assert (found["raw"], found["ok"]) == (b"\x00\xff", True)
    assert found["lines"] == [{"sku": "a", "count": 1}, None]
    assert found["tags"] == [("k", 1), ("n", None)]


def test_deletes_travel_in_the_operation_column(spark: SparkSession, table: Table) -> None:
    df = spark.createDataFrame([(1, "a", 1, "c"), (2, "b", 1, None), (1, None, 2, "D")], f"{COLUMNS}, _op string")
    assert write_batch(df.coalesce(1), table.uri, "orders").rows == 3
    assert rows(table) == [(2, "b", 1)]


def test_a_batch_beside_a_live_writer_does_not_fence_it(spark: SparkSession, table: Table) -> None:
    live = pa.table({"id": [1], "status": ["live"], "seq": [2]})
    with table.writer("orders") as writer:
        writer.append(live)
        old = spark.createDataFrame([(1, "old", 1), (2, "old", 1)], COLUMNS)
        commit = write_batch(old.repartition(2), table.uri, "orders")
        writer.append(live)
    assert (commit.lane, commit.rows, commit.replayed) == ("orders-backfill", 2, False)
    assert rows(table) == [(1, "live", 2), (2, "old", 1)]


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_crash_after_the_commit_does_not_double_the_batch(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    feed.put(event(2))
    run(feed.read(), table, tmp_path)
    before = log_files(tmp_path)
    # As if the process had died before Spark took note of the commit.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint/commits" / name).unlink()
    reports: list[CommitReport] = []
    feed.put(event(3))
    run(feed.read(), table, tmp_path, on_commit=reports.append)
    assert [(report.batch_id, report.commit.replayed) for report in reports] == [(1, True), (2, False)]
    assert [entry.batch for entry in commits(table)] == [0, 1, 2]
    assert len(log_files(tmp_path) - before) == 1
    assert rows(table) == [(1, "new", 1), (2, "new", 1), (3, "new", 1)]


def test_a_crash_between_the_files_and_the_commit_leaves_nothing_visible(
    feed: Feed, table: Table, tmp_path: Path
) -> None:
    feed.put(event(1))
    feed.put(event(2))
    crash = tmp_path / "crash"
    crash.touch()

    @F.udf("string")
    def fail_once_the_other_has_written(key: int) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while key == 2 and crash.exists():
            if list((tmp_path / "table/log").rglob("*.arrow")) or time.monotonic() > deadline:
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


VICTIM = """
import sys
from pyspark.sql import SparkSession
from streams.sink import write_stream
uri, folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.readStream.schema("id bigint, status string, seq bigint").option("maxFilesPerTrigger", 1).json(folder)
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
    assert [(entry.batch, entry.rows) for entry in commits(table)] == [(i, 1) for i in range(12)]
    assert rows(table) == [(i, "new", 1) for i in range(12)]


def test_on_commit_that_fails_ends_the_query_after_the_commit(feed: Feed, table: Table, tmp_path: Path) -> None:
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
        wait_until(lambda: commits(table))
        second = write_stream(
            feed.read().where("id > 1"), table.uri, "orders",
            checkpoint=str(tmp_path / "second"), trigger=None, takeover=True,
        )  # fmt: skip
        try:
            wait_until(lambda: len(commits(table)) == 2)
            feed.put(event(2))
            with pytest.raises(StreamingQueryException) as caught:
                assert query.awaitTermination(WAIT_SECONDS)
            wait_until(lambda: len(commits(table)) == 3)
        finally:
            second.stop()
    finally:
        query.stop()
    text = str(caught.value)
    assert "Fenced" in text
    assert "lane 'orders' was claimed by" in text
    assert "hint: this writer must stop" in text
    assert query.exception() is not None
    assert "was claimed by" in str(query.exception())
    assert {entry.query_id for entry in commits(table)} == {query.id, second.id}
    assert rows(table) == [(1, "new", 1), (2, "new", 1)]


def test_another_checkpoint_needs_takeover(feed: Feed, table: Table, tmp_path: Path) -> None:
    feed.put(event(1))
    run(feed.read(), table, tmp_path)
    before = table.snapshot().cut
    with pytest.raises(Conflict, match="takeover=True"):
        run(feed.read(), table, tmp_path, checkpoint=str(tmp_path / "other"))
    # The lane was not even claimed: a live query would not have been fenced.
    assert table.snapshot().cut == before


def test_the_writer_is_closed_however_the_query_ends(
    feed: Feed, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    original = Table.writer
    monkeypatch.setattr(Table, "writer", lambda *a, **k: made.append(original(*a, **k)) or made[-1])
    feed.put(event(1))
    run(feed.read(), table, tmp_path)  # it ends by itself
    feed.put(event(None))
    with pytest.raises(StreamingQueryException):  # it fails
        run(feed.read(), table, tmp_path)
    stopped = write_stream(
        feed.read().where("id > 1"), table.uri, "orders",
        lane="stopped", checkpoint=str(tmp_path / "stopped"), trigger=None,
    )  # fmt: skip
    stopped.stop()
    assert len(made) == 3
    wait_until(lambda: not any(writer._open for writer in made))


# --- refusals at the call --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "given", "error", "names"),
    [
        ({}, {"checkpoint": ""}, InvalidInput, ["checkpoint"]),
        ({}, {"stream": "payments"}, NotFound, ["'payments'", "orders, prices"]),
        ({}, {"lane": "a/b"}, InvalidInput, ["'a/b'"]),
        ({}, {"trigger": "5 parsecs"}, InvalidInput, ["'5 parsecs'"]),
        ({}, {"trigger": ""}, InvalidInput, ["trigger"]),
        ({}, {"dead_letter": ""}, InvalidInput, ["dead_letter"]),
        ({}, {"dead_letter": "nosuch://x/y"}, InvalidInput, ["nosuch"]),
        ({}, {"dead_letter": "/proc/weft"}, StoreUnavailable, ["/proc/weft"]),
        ({"id": None}, {}, InvalidInput, ["key column 'id' is missing"]),
        ({"status": None}, {}, InvalidInput, ["group 'order' is incomplete", "'status'"]),
        ({"seq": "cast(seq AS string)"}, {}, InvalidInput, ["'seq'", "string", "bigint"]),
        ({"id": "cast(id AS double)"}, {}, InvalidInput, ["'id'", "double", "bigint"]),
        ({"_op": "1"}, {}, InvalidInput, ["'_op'"]),
        ({"price": "1.0D"}, {}, InvalidInput, ["'price'", "'orders'"]),
        ({"colour": "1"}, {}, InvalidInput, ["no column 'colour'"]),
        ({"status": "make_ym_interval(1)"}, {}, InvalidInput, ["'status'"]),
        ({"__weft_source": "1"}, {}, InvalidInput, ["__weft_source"]),
    ],
)
def test_mistakes_are_refused_before_the_lane_is_claimed(
    feed: Feed,
    table: Table,
    tmp_path: Path,
    change: dict[str, str | None],
    given: dict[str, Any],
    error: type[Exception],
    names: list[str],
) -> None:
    columns = {**{name: name for name in ("id", "status", "seq")}, **change}
    df = feed.read().selectExpr(*(f"{sql} AS {name}" for name, sql in columns.items() if sql is not None))
    arguments = {"stream": "orders", "checkpoint": str(tmp_path / "checkpoint"), **given}
    with pytest.raises(error) as caught:
        write_stream(df, table.uri, **arguments)
    assert [name for name in names if name not in str(caught.value)] == []
    assert caught.value.hint  # type: ignore[attr-defined]
    assert table.state().lanes == {}
    assert not (tmp_path / "checkpoint").exists()


def test_frames_of_the_other_kind_and_missing_tables_are_refused(
    spark: SparkSession, feed: Feed, table: Table, tmp_path: Path
) -> None:
    batch = spark.createDataFrame([], COLUMNS)
    with pytest.raises(InvalidInput, match="not a stream"):
        write_stream(batch, table.uri, "orders", checkpoint=str(tmp_path / "c"))
    with pytest.raises(InvalidInput, match="use write_stream"):
        write_batch(feed.read(), table.uri, "orders")
    with pytest.raises(NotFound):
        write_stream(feed.read(), str(tmp_path / "none"), "orders", checkpoint=str(tmp_path / "c"))
    with table.writer("prices"):
        pass
    with pytest.raises(Conflict, match="belongs to stream"):
        write_batch(batch, table.uri, "orders", lane="prices")
    with pytest.raises(InvalidInput, match="is missing"):
        write_batch(batch.drop("id"), table.uri, "orders")


def test_two_queries_of_one_name_are_refused(feed: Feed, table: Table, tmp_path: Path) -> None:
    query = write_stream(
        feed.read(), table.uri, "orders", checkpoint=str(tmp_path / "a"), query_name="same", trigger=None
    )
    try:
        assert query.name == "same"
        with pytest.raises(InvalidInput, match="'same' is running"):
            write_stream(feed.read(), table.uri, "orders", checkpoint=str(tmp_path / "b"), query_name="same")
        assert query.isActive
    finally:
        query.stop()


# --- messages that cannot be stored ----------------------------------------------------------------------------------


@contextlib.contextmanager
def topic(broker: EmbeddedBroker, values: Sequence[Sequence[bytes | None]]) -> Iterator[str]:
    """A topic with these messages, one list a partition."""
    name = f"sink-{next(_numbers)}"
    broker.create_topics({name: len(values)})
    producer = broker.producer()
    for partition, part in enumerate(values):
        for value in part:
            producer.produce(name, value=value, partition=partition)
    assert producer.flush(WAIT_SECONDS) == 0
    yield name
    broker.delete_topic(name)


def decoded(spark: SparkSession, broker: EmbeddedBroker, name: str, **given: Any) -> DataFrame:
    register(spark)
    source = (
        spark.readStream.format("weft_kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .load()
    )
    return decode_json(source, MESSAGE, **{"select": None, "where": None, "keep_source": True, **given})


def message(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


BAD = [
    [
        message(**event(1)),
        b"{broken",
        None,
        message(**event(2)),
        message(id=3, status=b"\xff".decode("latin-1"), seq="x"),
    ],
    [
        b"\xff\xfe",
        message(id=None, status="no key", seq=1),
        message(**event(4)),
        message(id=5, status="?", seq=1, _op="merge"),
        message(id=1, _op="D"),
    ],
]
REASONS = {
    (0, 1): "the value is not one JSON object",
    (0, 2): "the message has no value (a tombstone)",
    (0, 4): "a field of the value does not have its declared type",
    (1, 0): "the value is not UTF-8",
    (1, 1): "column 'id': NULL in a key column",
    (1, 3): "column '_op': not an operation",
    (1, 4): "column 'seq': NULL in every ordering column of a delete",
}


def test_refused_messages_are_dead_letters_exactly_once(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    folder = tmp_path / "dead"
    reports: list[CommitReport] = []
    with topic(broker, BAD) as name:
        df = decoded(spark, broker, name)
        query = run(df, table, tmp_path, dead_letter=str(folder), on_commit=reports.append)
        assert rows(table) == [(1, "new", 1), (2, "new", 1), (4, "new", 1)]
        found = letters(folder)
        assert {(letter["partition"], letter["offset"]): letter["reason"] for letter in found} == REASONS
        assert len(found) == len(REASONS)
        for letter in found:
            raw = BAD[letter["partition"]][letter["offset"]]
            value, encoding = letter["value"], letter["encoding"]
            assert letter["topic"] == name
            assert (letter["query_id"], letter["stream"], letter["lane"]) == (query.id, "orders", "orders")
            if raw is None:
                assert (value, encoding) == (None, None)
            elif raw == b"\xff\xfe":
                assert (base64.b64decode(value), encoding) == (raw, "base64")
            else:
                assert (value.encode(), encoding) == (raw, "utf-8")
        batch = reports[-1].batch_id
        assert {letter["batch"] for letter in found} == {batch}
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
            f"{query.id}/{batch}-0.jsonl",
            f"{query.id}/{batch}-1.jsonl",
        }
        assert [report.rows_refused for report in reports] == [0] * batch + [len(REASONS)]

        # Replayed as a batch that is there: nothing is written again.
        for file in (f"{batch}", f".{batch}.crc"):
            (tmp_path / "checkpoint/commits" / file).unlink()
        run(df, table, tmp_path, dead_letter=str(folder), on_commit=reports.append)
        assert reports[-1].commit.replayed
        assert letters(folder) == found


def test_dead_letters_of_a_batch_that_is_run_again_are_replaced(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path
) -> None:
    folder, crash = tmp_path / "dead", tmp_path / "crash"
    crash.touch()

    @F.udf("bigint")
    def die_late(key: int | None) -> int | None:
        deadline = time.monotonic() + WAIT_SECONDS
        while key == 4 and crash.exists():
            if list(folder.rglob("*-0.jsonl")) or time.monotonic() > deadline:
                raise RuntimeError("the task dies")
            time.sleep(0.02)
        return key

    with topic(broker, BAD) as name:
        df = decoded(spark, broker, name).withColumn("id", die_late("id"))
        with pytest.raises(StreamingQueryException, match="the task dies"):
            run(df, table, tmp_path, dead_letter=str(folder))
        [left] = folder.rglob("*.jsonl")  # task 0 had ended
        batch, _ = left.stem.split("-")
        # As if the batch had been cut into other tasks when it ran first; another batch's file is not touched.
        left.with_name(f"{batch}-7.jsonl").write_text('{"partition": 9, "offset": 9, "reason": "stale"}\n')
        left.with_name(f"{batch}0-7.jsonl").write_text("")
        crash.unlink()
        run(df, table, tmp_path, dead_letter=str(folder))
    found = letters(folder)
    assert {(letter["partition"], letter["offset"]): letter["reason"] for letter in found} == REASONS
    assert len(found) == len(REASONS)
    assert left.with_name(f"{batch}0-7.jsonl").exists()
    assert rows(table) == [(1, "new", 1), (2, "new", 1), (4, "new", 1)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{broken", "the value is not one JSON object"),
        (None, "tombstone"),
        (message(id=None, status="x", seq=1), "column 'id': NULL in a key column"),
    ],
)
def test_without_dead_letters_the_first_bad_message_fails_the_query(
    spark: SparkSession, broker: EmbeddedBroker, table: Table, tmp_path: Path, value: bytes | None, reason: str
) -> None:
    with topic(broker, [[message(**event(1)), value], [message(**event(2))]]) as name:
        df = decoded(spark, broker, name)
        with pytest.raises(StreamingQueryException) as caught:
            run(df, table, tmp_path)
        text = str(caught.value)
        assert f"a message cannot be stored (topic {name}, partition 0, offset 1): " in text
        assert reason in text
        assert "hint: set dead_letter to a folder" in text
        assert rows(table) == []
        assert log_files(tmp_path) == set()
        # Configured, the same query goes on from the same checkpoint.
        run(df, table, tmp_path, dead_letter=str(tmp_path / "dead"))
        assert rows(table) == [(1, "new", 1), (2, "new", 1)]
        assert [letter["offset"] for letter in letters(tmp_path / "dead")] == [1]


def test_rows_without_a_source_are_dead_letters_too(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    df = spark.createDataFrame(
        [(1, 1.5, 1.0), (None, 2.5, 1.0), (2, 3.5, float("nan"))], "id bigint, price double, priced double"
    ).coalesce(1)
    with pytest.raises(InvalidInput, match="NULL in a key column") as caught:
        write_batch(df, table.uri, "prices")
    assert "dead_letter" in caught.value.hint
    assert table.snapshot().to_arrow().num_rows == 0
    commit = write_batch(df, table.uri, "prices", dead_letter=str(tmp_path / "dead"))
    assert commit.rows == 1
    first, second = letters(tmp_path / "dead")
    assert (first["reason"], first["encoding"], first["offset"]) == ("column 'id': NULL in a key column", "row", None)
    assert json.loads(first["value"]) == {"id": None, "price": 2.5, "priced": 1.0}
    assert second["reason"] == "column 'priced': NaN in an ordering column"


def test_dead_letters_go_to_any_store(table: Table) -> None:
    store = open_dead_letters("memory://dead", table.uri, {"ignored": "for another kind of store"})
    assert store.list(StorePath("")) == []
    for attempt in ("first", "second"):
        batch = DeadLetters(store, "query", 3, "orders", "orders")
        for task in (0, 1) if attempt == "first" else (1, 2):
            with batch.open(task) as file:
                file.add(attempt, None, {"day": dt.date(2024, 2, 29), "raw": b"\xff", "price": decimal.Decimal("1.5")})
    batch.discard_others({1})
    assert [name for name, _ in store.list(StorePath(""))] == ["query/3-1.jsonl"]
    letter = json.loads(store.get(StorePath("query/3-1.jsonl")) or b"")
    assert letter["reason"] == "second"
    assert json.loads(letter["value"]) == {"day": "2024-02-29", "raw": "/w==", "price": "1.5"}


def test_a_task_that_fails_leaves_no_dead_letters(tmp_path: Path) -> None:
    batch = DeadLetters(open_dead_letters(str(tmp_path), "", None), "query", 0, "orders", "orders")
    with contextlib.suppress(ZeroDivisionError), batch.open(0) as file:
        file.add("reason", None, {})
        _ = 1 / 0
    with batch.open(1):
        pass  # nothing to tell, no file
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

"""`weft.write_batch`: a repeated batch is stored once, and two jobs never share a lane by accident."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.faulty_store import FakeClock
from tests.streams.write.sink.conftest import CONFIG
from tests.streams.write.sink.rig import COLUMNS, TEST_SECONDS, WAIT_SECONDS, Feed, event, rows
from tests.wait_until import wait_until
from weft import Table
from weft.storage.core.names import LaneName
from weft.storage.errors import Conflict, Fenced, GapError, InvalidInput
from weft.storage.log.heartbeat import EVERY_MS, newest_heartbeats
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.store.open_store import open_store
from weft.storage.write.writer import Commit
from weft.streams.write.write_batch import lane_for, send_heartbeats, write_batch

pytestmark = pytest.mark.timeout(TEST_SECONDS)

SUMS: dict[str, Any] = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "n": "bigint"},
    "groups": {"clicks": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}}},
    "streams": {"clicks": {"groups": ["clicks"]}},
}


@pytest.fixture
def sums(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "sums", SUMS)


def clicks(spark: SparkSession, n: int) -> DataFrame:
    return spark.createDataFrame([(1, n)], "id bigint, n bigint").coalesce(1)


def total(table: Table) -> int:
    return int(table.snapshot().to_arrow(["n"])["n"][0].as_py())


def lanes(table: Table) -> dict[str, int | None]:
    """Last entry of each closed lane; None while it is open."""
    return {str(name): lane.closed for name, lane in table.state().lanes.items()}


class Held:
    """A frame whose task waits until it is released, and a job that writes it."""

    def __init__(self, spark: SparkSession, folder: Path, key: int) -> None:
        self._begun, self._go = folder / f"begun-{key}", folder / f"go-{key}"
        begun, go, seconds = str(self._begun), str(self._go), WAIT_SECONDS

        @F.udf("string")
        def wait(status: str) -> str:
            import time
            from pathlib import Path

            Path(begun).touch()
            deadline = time.monotonic() + seconds
            while not Path(go).exists():
                assert time.monotonic() < deadline, "the event was not set in time"
                time.sleep(0.02)
            return status

        frame = spark.createDataFrame([(key, "held", 1)], COLUMNS).coalesce(1)
        self.frame = frame.withColumn("status", wait("status"))

    def started(self, pool: ThreadPoolExecutor, write: Callable[[DataFrame], Commit]) -> Future[Commit]:
        job = pool.submit(write, self.frame)
        wait_until(lambda: self._begun.exists() or job.done(), WAIT_SECONDS)
        return job

    def let_go(self) -> None:
        self._go.touch()


# Redelivery ----------------------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_stored_once(spark: SparkSession, sums: Table) -> None:
    first = write_batch(clicks(spark, 5), sums.uri, "clicks", batch=("clicks-query", 3))
    again = write_batch(clicks(spark, 5), sums.uri, "clicks", batch=("clicks-query", 3))
    assert (first.replayed, again.replayed, again.seq) == (False, True, first.seq)
    assert total(sums) == 5
    following = write_batch(clicks(spark, 2), sums.uri, "clicks", batch=("clicks-query", 4))
    assert (following.replayed, following.lane) == (False, first.lane)
    # An old batch, in a lane that is given by name.
    assert write_batch(clicks(spark, 5), sums.uri, "clicks", batch=("clicks-query", 3)).replayed
    for _ in range(2):
        write_batch(clicks(spark, 10), sums.uri, "clicks", batch=("other", 0), lane="by-name")
    assert total(sums) == 17
    assert lanes(sums) == {first.lane: None, "by-name": None}


def test_foreach_batch_is_exactly_once_by_its_number(feed: Feed, table: Table, tmp_path: Path) -> None:
    commits: list[Commit] = []

    def write(batch: DataFrame, number: int) -> None:
        commits.append(write_batch(batch, table.uri, "orders", batch=("orders-query", number)))

    def run() -> None:
        target = feed.read().writeStream.option("checkpointLocation", str(tmp_path / "c"))
        query = target.foreachBatch(write).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()

    feed.put(event(1))
    feed.put(event(2))
    run()
    # As if the process had died before Spark recorded the batch.
    for name in ("1", ".1.crc"):
        (tmp_path / "c/commits" / name).unlink()
    feed.put(event(3))
    run()
    assert [commit.replayed for commit in commits] == [False, False, True, False]
    assert rows(table) == [(i, "new", 1) for i in (1, 2, 3)]


def test_a_number_that_does_not_follow_is_refused(spark: SparkSession, sums: Table) -> None:
    def write(number: int, query: str = "q", **given: Any) -> Commit:
        return write_batch(clicks(spark, 1), sums.uri, "clicks", batch=(query, number), **given)

    write(0)
    before = sums.snapshot().cut.lanes
    with pytest.raises(GapError, match=r"(?s)batch 2 of query 'q' follows batch 0.*every batch, also one without rows"):
        write(2)
    for wrong in (("", 0), ("q", -1), ("q", "0"), "q", ("q", True)):
        with pytest.raises(InvalidInput, match=r"is not \(query id, number\)"):
            write_batch(clicks(spark, 1), sums.uri, "clicks", batch=wrong)  # type: ignore[arg-type]
    assert total(sums) == 1
    [lane] = before
    sums.close_lane(lane)
    with pytest.raises(Conflict, match=r"(?s)is closed.*another query id"):
        write(1)
    write(0, "other", lane="mine")
    before = sums.snapshot().cut.lanes
    with pytest.raises(Conflict, match=r"(?s)query 'other'; this is query 'q'.*leave out lane"):
        write(1, lane="mine")
    assert sums.snapshot().cut.lanes == before, "a refused job has not fenced another writer"


# Lanes ---------------------------------------------------------------------------------------------------------------


def test_two_jobs_of_one_stream_do_not_fence_each_other(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    held = Held(spark, tmp_path, 1)
    with ThreadPoolExecutor(1) as pool:
        first = held.started(pool, lambda frame: write_batch(frame, table.uri, "orders"))
        second = write_batch(spark.createDataFrame([event(2)], COLUMNS), table.uri, "orders")
        held.let_go()
        assert first.result(WAIT_SECONDS).lane != second.lane
    assert rows(table) == [(1, "held", 1), (2, "new", 1)]
    assert set(lanes(table)) == {"orders-batches-1", "orders-batches-2"}


def test_two_jobs_with_one_query_id_are_detected(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    held = Held(spark, tmp_path, 1)
    with ThreadPoolExecutor(1) as pool:
        first = held.started(pool, lambda frame: write_batch(frame, table.uri, "orders", batch=("same", 0)))
        second = write_batch(spark.createDataFrame([event(2)], COLUMNS), table.uri, "orders", batch=("same", 0))
        held.let_go()
        with pytest.raises(Fenced, match=r"(?s)was claimed by .*another job.*'same'.*different query ids"):
            first.result(WAIT_SECONDS)
    assert not second.replayed
    assert rows(table) == [(2, "new", 1)]


def test_jobs_that_follow_each_other_share_a_lane(spark: SparkSession, table: Table) -> None:
    with table.writer("orders", lateness=3) as live:
        live.append(spark.createDataFrame([event(1, seq=40)], COLUMNS).toArrow())
        commit = write_batch(spark.createDataFrame([event(2)], COLUMNS), table.uri, "orders")
        assert table.watermarks()["orders"]["order"].value == 37, "an ended job holds no watermark back"
        live.append(spark.createDataFrame([event(3, seq=41)], COLUMNS).toArrow())
    assert commit.lane == "orders-batches-1"
    # Also if the job fails: because of its input, and in a task.
    with pytest.raises(InvalidInput, match="NULL in a key column"):
        write_batch(spark.createDataFrame([event(None)], COLUMNS), table.uri, "orders")
    bad = spark.createDataFrame([event(4)], COLUMNS).withColumn("status", F.udf(lambda _: 1 // 0, "string")("status"))
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        write_batch(bad, table.uri, "orders")
    assert lanes(table) == {"orders": None, "orders-batches-1": None}
    assert [lane.lane for lane in Inspection.of(table.snapshot()).lanes() if lane.finished] == ["orders-batches-1"]
    assert {row[0] for row in rows(table)} == {1, 2, 3}
    assert newest_heartbeats(open_store(table.uri)) == {}
    assert table.verify().findings == ()


def test_closing_the_lane_fences_a_running_job(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    held = Held(spark, tmp_path, 1)
    with ThreadPoolExecutor(1) as pool:
        job = held.started(pool, lambda frame: write_batch(frame, table.uri, "orders"))
        [lane] = lanes(table)
        table.close_lane(lane)
        held.let_go()
        with pytest.raises(Fenced, match="was claimed"):
            job.result(WAIT_SECONDS)
    assert rows(table) == []


@pytest.mark.parametrize("stream", ["s", "S" * 64, "a-b_c9"])
def test_lane_names_differ_by_job_and_query_id(stream: str) -> None:
    names = {lane_for(stream, query) for query in ("q", "Q", "weiß/nicht", "q" * 1000)}
    assert len({name.lower() for name in names}) == 4
    assert all(len(name) <= 64 for name in names)
    assert lane_for(stream, "q") == lane_for(stream, "q")
    assert lane_for(stream, "q") != lane_for(f"{stream[:63]}2", "q")
    for name in names:
        LaneName(name)


def test_a_long_job_sends_heartbeats(tmp_path: Path) -> None:
    clock = FakeClock()
    table = Table.create(tmp_path / "table", CONFIG, clock=clock)

    def last_sign() -> int:
        return newest_heartbeats(open_store(table.uri))[LaneName("orders")].at_ms

    def is_beating() -> bool:
        return any(thread.name == "weft-heartbeat" for thread in threading.enumerate())

    with table.writer("orders") as writer:
        with send_heartbeats(writer, every=0.01):
            clock.time_ms += 10 * EVERY_MS
            wait_until(lambda: last_sign() == clock.time_ms, WAIT_SECONDS)
            assert is_beating()
        assert not is_beating()

"""Changes through Spark: each once, across restarts from the checkpoint, and never incomplete without an error."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.storage.support.cleaning import NOW
from tests.storage.support.paying import Pipeline
from tests.storage.support.shop import SHOP, append, orders, payments
from tests.storage.support.world import bag, to_arrow
from tests.strategies import POOLS
from tests.streams.support.slow_starts import start_in_time
from weft import Table
from weft.storage.core.log.cut import Cut, parse_cut
from weft.storage.core.names import LaneName
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.change_stream import ChangeOptions, ChangeStreamReader, change_schema
from weft.streams.read.table_source import register

END_S = 300
"""Time limit of a query."""
Rows = list[dict[str, Any]]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    register(spark)
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    append(table, payments(1), "payments")
    return table


class Consumer:
    """A query that records its batches, and its checkpoint."""

    def __init__(self, spark: SparkSession, table: Table, folder: Path, **options: Any) -> None:
        self.spark, self.table, self.folder = spark, table, folder
        self.options = {"starting": "earliest", **options}
        self.batches: dict[int, Rows] = {}
        self.fail_in: int | None = None

    def run(self) -> Consumer:
        """Read all existing changes, then stop."""
        start_in_time(self._run)
        return self

    def _run(self) -> None:
        query = self._start(availableNow=True)
        assert query.awaitTermination(END_S) or query.stop() is not None

    def start(self) -> StreamingQuery:
        """Start a query that follows the table; returns when it has read all existing changes."""
        return start_in_time(self._follow)

    def _follow(self) -> StreamingQuery:
        query = self._start(processingTime="0 seconds")
        query.processAllAvailable()
        return query

    def _start(self, **trigger: Any) -> StreamingQuery:
        stream = self.spark.readStream.format("weft").options(**self.options).load(self.table.uri)
        writer = stream.writeStream.foreachBatch(self._take).trigger(**trigger)
        return writer.option("checkpointLocation", str(self.folder)).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [row.asDict(recursive=True) for row in frame.collect()]
        if number == self.fail_in:
            raise RuntimeError("the sink fails after it has written")

    def cuts(self) -> list[str]:
        """Ends of the batches in the checkpoint."""
        files = sorted((self.folder / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[-1])["cut"] for path in files]

    @property
    def rows(self) -> list[Rows]:
        """The received batches, without empty ones."""
        return [in_order(self.batches[number]) for number in sorted(self.batches) if self.batches[number]]


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: row["id"])


def changed_rows(table: Table, since: str | None, until: str, **arguments: Any) -> Rows:
    return in_order(table.changes(since, until, **arguments).read_all().to_pylist())


Make = Callable[..., Consumer]


@pytest.fixture
def consumer(spark: SparkSession, table: Table, tmp_path: Path) -> Make:
    return lambda **options: Consumer(spark, table, tmp_path / "checkpoint", **options)


def cut(table: Table) -> str:
    return str(table.snapshot().cut)


def test_a_stream_without_starting_begins_at_earliest(spark: SparkSession, table: Table, consumer: Make) -> None:
    mine = consumer()
    del mine.options["starting"]
    assert mine.run().rows == [changed_rows(table, None, cut(table))]
    latest = spark.readStream.option("starting", "latest").format("weft").load(table.uri)
    assert latest.columns == [*table.schema.arrow.names, "_change", "_changed_groups"]
    assert spark.read.format("weft").load(table.uri).columns == table.schema.arrow.names


def test_every_batch_equals_the_changes_of_its_range(table: Table, consumer: Make) -> None:
    mine = consumer(before="true")
    mine.run()
    append(table, orders(2, 3, status="paid", ts=2))
    append(table, orders(1, ts=3, op="delete"))
    table.compact()
    mine.run()
    append(table, payments(3), "payments")
    mine.run()
    ends = mine.cuts()
    ranges = [(since, until) for since, until in zip([None, *ends[:-1]], ends, strict=True)]
    by_table = [changed_rows(table, since, until, before=True) for since, until in ranges]
    assert mine.rows == [rows for rows in by_table if rows]
    assert [[(row["id"], row["_change"]) for row in rows] for rows in mine.rows] == [
        [(1, "insert"), (2, "insert")],
        [(1, "delete"), (2, "update"), (3, "insert")],
        [(3, "update")],
    ]
    assert mine.rows[1][1]["_before"] == {"status": "new", "ots": 1, "paid": None, "pts": None}
    mine.run()
    assert len(mine.rows) == 3


def test_a_failed_batch_is_repeated_unchanged(table: Table, consumer: Make) -> None:
    """Between the failure and the restart the table gets commits, a compaction and a column."""
    mine = consumer()
    mine.run()
    append(table, orders(2, 3, status="paid", ts=2))
    failing = consumer()
    failing.fail_in = 1
    with pytest.raises(StreamingQueryException, match="after it has written"):
        failing.run()
    append(table, orders(3, 4, status="sent", ts=3))
    table.compact()
    table.add_column("order", "note", "string", default="none")
    mine.run()
    seen = [{**row, "note": None} for row in failing.batches[1]]
    assert in_order(mine.batches[1]) == in_order(seen)
    assert [[(row["id"], row["_change"], row["status"]) for row in rows] for rows in mine.rows[1:]] == [
        [(2, "update", "paid"), (3, "insert", "paid")],
        [(3, "update", "sent"), (4, "insert", "sent")],
    ]


def test_commits_per_trigger_bound_a_batch(table: Table, consumer: Make) -> None:
    mine = consumer(max_commits_per_trigger=1)
    mine.run()
    for key in (10, 11):
        append(table, orders(key))
        append(table, payments(key), "payments")
    mine.run()
    assert [[(row["id"], row["_change"]) for row in rows] for rows in mine.rows[1:]] == [
        [(10, "insert")],
        [(10, "update")],
        [(11, "insert")],
        [(11, "update")],
    ]
    assert mine.cuts()[-1] == cut(table)


def test_a_stream_that_begins_at_latest_sees_later_commits(table: Table, consumer: Make) -> None:
    mine = consumer(starting="latest")
    mine.run()
    append(table, orders(7))
    mine.run()
    assert [[row["id"] for row in rows] for rows in mine.rows] == [[7]]


@pytest.mark.parametrize("starting", ["cut", "savepoint", "time"])
def test_the_first_batch_is_empty_and_ends_at_the_start(table: Table, starting: str) -> None:
    table.savepoint("then")
    then = table.snapshot().cut
    mark = dt.datetime.fromtimestamp((table.state().committed_at_ms + 1) / 1000, dt.UTC)
    options = ChangeOptions.of(
        {"starting": {"cut": str(then), "savepoint": "then", "time": mark.isoformat()}[starting]}
    )
    assert options is not None
    while dt.datetime.now(dt.UTC) <= mark:
        pass  # less than two milliseconds, so that the next commit is later
    append(table, orders(7))
    reader = ChangeStreamReader(TableLocation(table.uri), options, change_schema(table, options))
    assert reader.initialOffset() == {}
    first = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert parse_cut(first["cut"]).lanes == then.lanes
    assert reader.partitions({}, first) == []
    second = reader.latestOffset(first, ReadAllAvailable())
    (task,) = pickle.loads(pickle.dumps(reader.partitions(first, second)))
    assert [row["id"] for batch in reader.read(task) for row in batch.to_pylist()] == [7]
    assert reader.latestOffset(second, ReadAllAvailable()) == second == reader.reportLatestOffset()
    assert reader.partitions(second, second) == []


def test_a_running_stream_follows_the_table_and_stops(table: Table, consumer: Make) -> None:
    mine = consumer(columns="paid", require="order,payment")
    query = mine.start()
    try:
        append(table, orders(2, status="paid", ts=2))
        append(table, payments(2, paid=5.0), "payments")
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row for rows in mine.rows for row in rows] == [
        {"id": 1, "paid": 1.0, "_change": "insert", "_changed_groups": ["payment"]},
        {"id": 2, "paid": 5.0, "_change": "insert", "_changed_groups": ["payment"]},
    ]
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress.sources[0].latestOffset)["cut"] == cut(table)


def test_incomplete_changes_fail_the_query(table: Table, consumer: Make) -> None:
    mine = consumer()
    mine.run()
    append(table, orders(3))
    table.compact()
    append(table, orders(3, status="paid", ts=2))
    table.compact()
    table.clean(NOW)
    with pytest.raises(StreamingQueryException, match="OffsetExpired") as caught:
        mine.run()
    assert "read the whole table again (since=None;" in str(caught.value)
    assert len(mine.rows) == 1


def test_a_restore_fails_the_query(table: Table, consumer: Make) -> None:
    table.savepoint("good")
    append(table, orders(3))
    mine = consumer()
    mine.run()
    table.restore("good")
    with pytest.raises(StreamingQueryException, match="OffsetInvalidated") as caught:
        mine.run()
    assert "read the whole table again" in str(caught.value)


def test_a_recreated_table_fails_the_query(table: Table, consumer: Make) -> None:
    mine = consumer().run()
    shutil.rmtree(table.uri.removeprefix("file://"))
    anew = Table.create(table.uri, SHOP)
    append(anew, orders(7))
    append(anew, payments(8), "payments")  # as many commits as before, so the cut is valid in this table, too
    append(anew, orders(9))
    mine.table = anew
    with pytest.raises(
        StreamingQueryException, match=r"(?s)OffsetInvalidated.*is not the one that the query has read.*new checkpoint"
    ):
        mine.run()
    assert [len(rows) for rows in mine.rows] == [2]


def test_a_widened_column_fails_the_query_and_a_restart_continues(table: Table, consumer: Make) -> None:
    table.add_column("order", "n", "int")
    mine = consumer()
    query = mine.start()
    try:
        table.add_column("order", "note", "string")
        append(table, orders(1, status="paid", ts=2))
        query.processAllAvailable()
        assert "note" not in mine.rows[-1][0]
        table.widen_column("n", "bigint")
        append(table, orders(2, status="paid", ts=2))
        with pytest.raises(StreamingQueryException, match="restart the query"):
            query.processAllAvailable()
    finally:
        query.stop()
    mine.run()
    assert [row["id"] for row in mine.rows[-1]] == [2]
    assert mine.rows[-1][0]["note"] is None


def test_a_batch_of_changes(spark: SparkSession, table: Table) -> None:
    start = cut(table)
    append(table, orders(1, ts=9, op="delete"))
    table.savepoint("end")
    append(table, orders(8))

    def read(**options: str) -> Rows:
        frame = spark.read.format("weft").options(**options).load(table.uri)
        return in_order([row.asDict(recursive=True) for row in frame.collect()])

    assert read(changes_since=start) == changed_rows(table, start, cut(table))
    assert read(changes_since=start, changes_until="end", before="true") == changed_rows(
        table, start, "end", before=True
    )
    assert read(changes_since="earliest", columns="status", require="payment") == []
    assert read(changes_since="end", changes_until="end") == []
    with pytest.raises(AnalysisException, match="is not after the first"):
        read(changes_since="end", changes_until=start)


def test_values_of_every_type_are_preserved(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    types = {f"c{number}": name for number, name in enumerate(POOLS)}
    config = {
        "key": ["k", "l"],
        "columns": {"k": "string", "l": "decimal(12,2)", **types},
        "groups": {"g": {"columns": list(types)}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(tmp_path / "typed", config)
    for turn in (0, 1):
        rows = [
            {"k": key, "l": number, **{name: POOLS[of][(n + 2 * turn) % len(POOLS[of])] for name, of in types.items()}}
            for n, (key, number) in enumerate(itertools.product(["", "a\x00"], POOLS["decimal(12,2)"][turn : turn + 3]))
        ]
        append(table, to_arrow(config, rows, "s"), "s")
    options = {"changes_since": str(Cut(table.state().head, {LaneName("s"): 2})), "before": "true"}
    got = spark.read.format("weft").options(**options).load(table.uri).toArrow()
    expected = table.changes(options["changes_since"], before=True).read_all()
    assert {row["_change"] for row in expected.to_pylist()} == {"insert", "update"}
    assert bag(got) == bag(expected)


def test_wrong_options_are_refused(spark: SparkSession, table: Table, consumer: Make) -> None:
    for options, message in (
        ({"starting": "latest", "changes_since": "x"}, "do not go together"),
        ({"starting": "latest", "max_commits_per_trigger": "0"}, "greater than or equal to 1"),
        ({"starting": "latest", "befor": "true"}, "'befor'"),
        ({"changes_since": "2026-11-20T10:30:00"}, "has no zone"),
    ):
        with pytest.raises(InvalidInput, match=message):
            ChangeOptions.of({"path": table.uri, **options})
    assert ChangeOptions.of({"path": table.uri, "as_of": "x"}) is None
    wrong = (
        spark.readStream.option("changes_since", "earliest").format("weft").load(table.uri).writeStream.format("noop")
    )
    with pytest.raises(StreamingQueryException, match="needs option 'starting'"):
        start_in_time(lambda: wrong.trigger(availableNow=True).start().awaitTermination(END_S))
    with pytest.raises(AnalysisException, match="'starting' is for streams"):
        spark.read.format("weft").option("starting", "latest").load(table.uri).collect()
    with pytest.raises(StreamingQueryException, match="no savepoint 'nowhere'"):
        consumer(starting="nowhere").run()


def test_offsets_are_moments_and_never_go_back() -> None:
    """While lanes commit in each round, the newest moment is that of the newest mark, maybe before the last offset."""
    with ExitStack() as stack:
        pipeline = Pipeline(stack)
        options = ChangeOptions.of({"starting": "earliest"})
        assert options is not None
        reader = ChangeStreamReader(TableLocation(pipeline.uri), options, change_schema(pipeline.reader, options))
        reader._table = pipeline.reader
        first = reader.latestOffset({}, ReadAllAvailable())
        pipeline.never_rest()
        assert reader.latestOffset(first, ReadAllAvailable()) == first
        Table.open(pipeline.uri).mark()
        second = reader.latestOffset(first, ReadAllAvailable())
        assert second != first
        assert pipeline.orphans(pipeline.reader.snapshot(second["cut"])) == set()
        assert reader.latestOffset(second, ReadAllAvailable()) == second

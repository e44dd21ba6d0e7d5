"""Arguments that the sink refuses before anything is claimed or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.streams.write.sink.rig import COLUMNS, TEST_SECONDS, Feed
from weft import Table
from weft.storage.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from weft.streams.write.sink import write_stream
from weft.streams.write.write_batch import write_batch

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.mark.parametrize(
    ("change", "given", "error", "names"),
    [
        ({}, {"checkpoint": ""}, InvalidInput, ["checkpoint"]),
        ({}, {"stream": "payments"}, NotFound, ["'payments'", "orders, prices"]),
        ({}, {"lane": "a/b"}, InvalidInput, ["'a/b'"]),
        ({}, {"trigger": "5 parsecs"}, InvalidInput, ["'5 parsecs'"]),
        ({}, {"trigger": ""}, InvalidInput, ["trigger"]),
        ({}, {"lateness": "soon"}, InvalidInput, ["lateness: 'soon' is not a duration"]),
        ({}, {"lateness": "10 minutes"}, InvalidInput, ["lateness: 0:10:00 is a duration", "seq bigint"]),
        ({}, {"dead_letter": ""}, InvalidInput, ["dead_letter"]),
        ({}, {"on_error": "ignore"}, InvalidInput, ["on_error", "'ignore'", "stop"]),
        ({}, {"on_error": "stop", "dead_letter": "x"}, InvalidInput, ["dead_letter", "stop"]),
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
def test_wrong_input_is_refused_before_the_lane_is_claimed(
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


def test_frames_of_the_wrong_kind_and_missing_tables_are_refused(
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
    with pytest.raises(InvalidInput, match="lateness: 'soon'"):
        write_batch(batch, table.uri, "orders", lateness="soon")
    with pytest.raises(InvalidInput, match="lateness: 0:10:00 is a duration"):
        write_batch(batch, table.uri, "orders", lateness="10 minutes")


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

"""weft tables as Spark tables: a live view, and one fixed snapshot.

The front door for readers on Spark; how a table answers a query is `streams.read.table_planner`, how Spark asks is
`streams.read.relation.live_view`, and what a reader may ask for is `streams.read.read_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from storage import Table
from streams.read.as_of import Point
from streams.read.hadoop_access import FileReach
from streams.read.read_options import ReadOptions, Through
from streams.read.relation.live_view import create_relation_view, relation_dataframe
from streams.read.table_planner import FixedPlanner, ScanFacts, TablePlanner


def create_view(
    spark: SparkSession,
    uri: str | Path,
    name: str,
    *,
    as_of: Point | None = None,
    require: Sequence[str] | None = None,
    read_optimized: bool = False,
    complete_through: Through | None = None,
    settled: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Create or replace the temporary view ``name`` over a table.

    Every query sees the newest committed snapshot at its planning, exactly one however often the view occurs in it;
    with ``as_of`` always that one.

    Args:
        spark: The session.
        uri: The table's path or URL.
        name: A plain identifier.
        as_of: Aware time (datetime, or ISO 8601), name of a savepoint, or text of a cut.
        require: Groups that must be present in a row: one makes a left join, all an inner join.
        read_optimized: Base files alone, as the last compaction has left them: as fast as Parquet, and less fresh.
        complete_through: A query fails while events up to this value may still come, by the watermarks of the streams
            that feed the groups of ``require``, or all groups.
        settled: Refuse a time that may still give another snapshot; else that is logged, with the cut.
        storage_options: For fsspec.

    Raises:
        NotFound: There is no such table, snapshot or group.
        InvalidInput: ``name`` or an option is not well-formed.
        SnapshotExpired: The snapshot is older than what is retained.
        NotComplete: A stream is not complete through ``complete_through``; it is named.
        NotSettled: ``as_of`` is a time that may still change, and ``settled`` was asked for.
    """
    given = {"as_of": as_of, "require": require, "read_optimized": read_optimized, "complete_through": complete_through}
    options = ReadOptions.of({**given, "settled": settled})
    create_relation_view(spark, name, planner_of(spark, uri, options, storage_options))


def snapshot(
    spark: SparkSession,
    uri: str | Path,
    *,
    as_of: Point | None = None,
    require: Sequence[str] | None = None,
    read_optimized: bool = False,
    complete_through: Through | None = None,
    settled: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """One fixed snapshot as a DataFrame; arguments and errors as in `create_view`.

    It can be read as long as cleaning retains it. A query that finds it given up fails with `SnapshotExpired`; one that
    is running meanwhile and misses a file fails too, with that or with Spark's own error for a missing file.
    """
    given = {"as_of": as_of, "require": require, "read_optimized": read_optimized, "complete_through": complete_through}
    options = ReadOptions.of({**given, "settled": settled})
    planner = planner_of(spark, uri, options, storage_options)
    return relation_dataframe(spark, FixedPlanner(planner.pin()), name=Path(str(uri)).name or "weft")


def planner_of(
    spark: SparkSession,
    uri: str | Path,
    options: ReadOptions,
    storage_options: Mapping[str, Any] | None = None,
    on_scan: Callable[[ScanFacts], None] | None = None,
) -> TablePlanner:
    """What the view and the DataFrame are made of; ``on_scan`` is told of every scan of a query.

    Raises:
        TableError: See `create_view`: a wrong option is an error now, not at the first query.
    """
    table = Table.open(uri, storage_options=storage_options)
    options.check(table)
    return TablePlanner(table, options, _parallelism(spark), FileReach(spark), on_scan)


def _parallelism(spark: SparkSession) -> int:
    """Tasks that run at once; without a JVM to ask, Spark's usual small cluster."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return 8

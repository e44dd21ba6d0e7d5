"""weft tables as Spark tables: a live view, and one fixed snapshot.

This is the entry point for reads with Spark. `weft.streams.read.relation.live_view` connects a view to Spark's planner,
`weft.streams.read.native_or_merged` plans the scans, and `weft.streams.read.read_options` has the options.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from weft.storage import Table
from weft.storage.operations.points import Point
from weft.streams.read.hadoop_access import HadoopAccess
from weft.streams.read.native_or_merged import TablePlanner
from weft.streams.read.read_options import ReadOptions, Through
from weft.streams.read.relation.live_view import create_relation_view, relation_dataframe
from weft.streams.read.scan_facts import ScanFacts


def create_view(
    spark: SparkSession,
    uri: str | Path,
    name: str,
    *,
    as_of: Point | None = None,
    require: Sequence[str] | None = None,
    read_optimized: bool = False,
    complete_through: Through | None = None,
    complete_groups: Sequence[str] | None = None,
    settled: bool = False,
    moment: bool = False,
    push_aggregates: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Create or replace the temporary view ``name`` over a table.

    Every query reads exactly one snapshot, however often the view occurs in it: the newest when the query is planned,
    or with ``as_of`` always the same one.

    Args:
        spark: The session.
        uri: The table's path or URL.
        name: A plain identifier.
        as_of: Aware time (datetime, or ISO 8601), name of a savepoint, or text of a cut.
        require: Groups that must be present in a row. With one group the result is that of a left join, with all groups
            that of an inner join.
        read_optimized: Read base files only: as fast as Parquet, but without commits since the last compaction.
        complete_through: A query fails while events up to this value may still arrive, according to the watermarks of
            the streams that feed the groups of ``complete_groups``.
        complete_groups: Groups that ``complete_through`` applies to; all by default. No row is left out.
        settled: Refuse a time whose snapshot may still change. By default a warning with the cut is logged.
        moment: Require that each query reads the table at one moment; see `weft.Table.snapshot`.
        push_aggregates: Let the tasks that merge rows also aggregate them, and find the first rows of a LIMIT, if the
            result is the same as Spark's. Without it Spark gets all rows.
        storage_options: Options of the fsspec file system.

    Raises:
        NotFound: There is no such table, snapshot or group.
        InvalidInput: ``name`` or an option is invalid.
        SnapshotExpired: The snapshot is older than cleaning retains.
        NotComplete: Streams are not complete through ``complete_through``; the message names them.
        NotSettled: ``as_of`` is a time whose snapshot may still change, and ``settled`` is true.
        NotOneMoment: ``moment`` is true, and an earlier version of weft commits at the same time.
    """
    options = ReadOptions.of(
        {
            "as_of": as_of,
            "require": require,
            "read_optimized": read_optimized,
            "complete_through": complete_through,
            "complete_groups": complete_groups,
            "settled": settled,
            "moment": moment,
            "push_aggregates": push_aggregates,
        }
    )
    create_relation_view(spark, name, planner_of(spark, uri, options, storage_options))


def snapshot(
    spark: SparkSession,
    uri: str | Path,
    *,
    as_of: Point | None = None,
    require: Sequence[str] | None = None,
    read_optimized: bool = False,
    complete_through: Through | None = None,
    complete_groups: Sequence[str] | None = None,
    settled: bool = False,
    moment: bool = False,
    push_aggregates: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return one fixed snapshot as a DataFrame; arguments and errors as in `create_view`.

    It can be read as long as cleaning retains it. Later a new query fails with `SnapshotExpired`. A query that is
    running when its files are deleted fails with the same error, or with Spark's error for a missing file.
    """
    options = ReadOptions.of(
        {
            "as_of": as_of,
            "require": require,
            "read_optimized": read_optimized,
            "complete_through": complete_through,
            "complete_groups": complete_groups,
            "settled": settled,
            "moment": moment,
            "push_aggregates": push_aggregates,
        }
    )
    planner = planner_of(spark, uri, options, storage_options)
    return relation_dataframe(spark, planner().recheck, name=Path(str(uri)).name or "weft")


def planner_of(
    spark: SparkSession,
    uri: str | Path,
    options: ReadOptions,
    storage_options: Mapping[str, Any] | None = None,
    on_scan: Callable[[ScanFacts], None] | None = None,
) -> TablePlanner:
    """Return the planner of a view or DataFrame; ``on_scan`` is called with the facts of every scan of a query.

    Raises:
        TableError: See `create_view`. A wrong option is reported here, and not by the first query.
    """
    table = Table.open(uri, storage_options=storage_options)
    options.check(table)
    return table_planner(spark, table, options, on_scan)


def table_planner(
    spark: SparkSession, table: Table, options: ReadOptions, on_scan: Callable[[ScanFacts], None] | None = None
) -> TablePlanner:
    """Return the planner of an open table. The options are checked when a query is planned."""
    task_bytes = functools.partial(_task_bytes, spark)
    return TablePlanner(table, options, _parallelism(spark), task_bytes, HadoopAccess(spark), on_scan)


def _parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at the same time; a guess if the JVM is not accessible."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return 8


_MAX_PARTITION_BYTES: Final = "spark.sql.files.maxPartitionBytes"
_UNITS: Final = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def _task_bytes(spark: SparkSession) -> int | None:
    """Return the session's limit of the bytes of a split of Parquet files; None if the setting cannot be read."""
    try:
        setting = spark.conf.get(_MAX_PARTITION_BYTES)
    except Exception:
        return None
    return None if setting is None else parse_size(setting)


def parse_size(text: str) -> int | None:
    """Parse a size as Spark writes it, such as ``128MB``, ``64k`` or ``1048576b``, to bytes; None for other texts."""
    size_match = re.fullmatch(r"([0-9]+)(b|[kmgtp]b?)?", text.strip().lower())
    return None if size_match is None else int(size_match[1]) << 10 * _UNITS[(size_match[2] or "")[:1]]

"""weft tables as Spark tables: a live view, one fixed snapshot, and the plain data source.

This room turns a table into what `streams.relation` can read: it pins a snapshot per query, translates the filters that
Arrow evaluates exactly as Spark does, and says when base files can be read as they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from storage import Snapshot, Table
from storage.scan import Scan
from streams.filters import translate
from streams.relation import PinnedPlanner, Plan, create_relation_view, relation_dataframe

AsOf = dt.datetime | str | None


def create_view(
    spark: SparkSession,
    uri: str | Path,
    name: str,
    *,
    as_of: AsOf = None,
    require: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Create or replace the temporary view ``name`` over a table.

    Every query sees the newest committed snapshot at its planning, exactly one however often the view occurs in it;
    with ``as_of`` always that one.

    Args:
        spark: The session.
        uri: The table's path or URL.
        name: A plain identifier.
        as_of: Aware datetime or cut text.
        require: Groups that must be present in a row: one makes a left join, all an inner join.
        storage_options: For fsspec.

    Raises:
        NotFound: There is no such table, snapshot or group.
        InvalidInput: ``name`` or ``as_of`` is not well-formed.
    """
    create_relation_view(spark, name, _planner(spark, uri, as_of, require, storage_options))


def snapshot(
    spark: SparkSession,
    uri: str | Path,
    *,
    as_of: AsOf = None,
    require: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """One fixed snapshot as a DataFrame; arguments and errors as in `create_view`.

    It can be read as long as cleaning retains it. A query that finds it given up fails with `SnapshotExpired`; one that
    is running meanwhile and misses a file fails too, with that or with Spark's own error for a missing file.
    """
    planner = _planner(spark, uri, as_of, require, storage_options)
    return relation_dataframe(spark, _Fixed(planner.pin()), name=Path(str(uri)).name or "weft")


def _planner(
    spark: SparkSession,
    uri: str | Path,
    as_of: AsOf,
    require: Sequence[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> TablePlanner:
    table = Table.open(uri, storage_options=storage_options)
    planner = TablePlanner(table, as_of, tuple(require or ()), _parallelism(spark))
    planner.pin().plan([], [])  # a wrong `as_of` or `require` is an error now, not at the first query
    return planner


def _parallelism(spark: SparkSession) -> int:
    """Tasks that run at once; without a JVM to ask, Spark's usual small cluster."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return 8


@dataclass(frozen=True)
class TablePlanner:
    """A table as it moves on, or at one moment if ``as_of`` is given."""

    table: Table
    as_of: AsOf
    require: tuple[str, ...]
    parallelism: int

    def pin(self) -> PinnedSnapshot:
        return PinnedSnapshot(self.table.snapshot(self.as_of), self.require, self.parallelism)


@dataclass(frozen=True)
class _Fixed:
    pinned: PinnedSnapshot

    def pin(self) -> PinnedPlanner:
        self.pinned.snapshot.check_kept()  # once a query: Spark's own reader could only say that a file is gone
        return self.pinned


@dataclass(frozen=True)
class PinnedSnapshot:
    """One snapshot as a query sees it."""

    snapshot: Snapshot
    require: tuple[str, ...]
    parallelism: int

    def schema(self) -> StructType:
        return from_arrow_schema(self.snapshot.schema)

    def exact(self, filters: Sequence[Filter]) -> Sequence[int]:
        """Filters that tasks apply themselves; none where Spark's own reader does better, over clean base files."""
        if self.snapshot.scan([], require=self.require).clean_files is not None:
            return ()
        return [i for i, item in enumerate(filters) if translate(item, self.snapshot.schema) is not None]

    def plan(self, columns: Sequence[str], filters: Sequence[Filter]) -> Plan:
        predicate = None
        for item in filters:
            expression = translate(item, self.snapshot.schema)
            if expression is not None:
                predicate = expression if predicate is None else predicate & expression
        scan = self.snapshot.scan(columns, predicate, self.require, parallelism=self.parallelism)
        # Spark evaluates filters over clean files itself (see `exact`), so they may be read as they are.
        clean = scan.clean_files
        reader = replace(scan, tasks=())  # the tasks travel one by one
        return Plan(
            description=self._describe(scan),
            tasks=scan.tasks,
            read=reader.read,
            parquet_paths=[scan.store.url(file.path) for file in clean] if clean else None,
            size_bytes=sum(task.bytes for task in scan.tasks),
        )

    def _describe(self, scan: Scan) -> str:
        slices = [file_slice for task in scan.tasks for file_slice in task.slices]
        log_bytes = sum(file_slice.log_bytes for file_slice in slices)
        base_bytes = sum(file_slice.base_bytes for file_slice in slices)
        dirty = sum(1 for file_slice in slices if len(file_slice.rows))
        return (
            f"weft {self.snapshot.cut}, {len(slices)} file groups ({dirty} with logs), "
            f"logs {log_bytes} bytes, base {base_bytes} bytes"
        )

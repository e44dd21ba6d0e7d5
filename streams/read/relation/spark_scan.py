"""The objects that Spark calls while it plans a query over a view: table function -> table -> scan builder -> scan.

    analysis       a table function        returns a relation over a LiveTable, or a union of two
    optimization   LiveTable.newScanBuilder -> PruningScanBuilder.pushPredicates, pushAggregation, pushLimit or
                   pushTopN, pruneColumns, build
    execution      TaskScan, ParquetScan    wrap scans of Spark; from now on no Python code runs in the driver

If some file groups of a state are read natively and others are merged, they need two scans, because Spark's Parquet
reader and Python tasks cannot share one. The relation is then a UNION ALL: Spark pushes filters, columns and limits
through it, and includes it in code generation. Spark chooses the union when it analyses a query, and it is correct for
every state on which the query may run (`planner_interface.Part`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition
from weft.storage.errors import InvalidInput
from weft.storage.read.pushed.first_rows import FirstRows
from weft.storage.read.pushed.partial_aggregates import Aggregation
from weft.streams.read.relation.callbacks import Callback, PlainTable, ScalaFunction, check_methods
from weft.streams.read.relation.file_ranges import RangesOfFiles, batch_of
from weft.streams.read.relation.join_frames import join_frames
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.planner_interface import (
    JoinedColumns,
    ParquetFile,
    Part,
    PinnedPlanner,
    Planner,
    ReadPlan,
)
from weft.streams.read.relation.pushed_aggregates import filters_of_groups, has_inexact_average, parse_aggregation
from weft.streams.read.relation.pushed_filters import PushedPredicate, parse_predicate
from weft.streams.read.relation.pushed_limits import parse_order
from weft.streams.read.relation.query_state import QueryState, QueryStates
from weft.streams.read.relation.runtime_filters import FilteredAtRunTime, Replan
from weft.streams.read.relation.scan_statistics import ScanStatistics
from weft.streams.read.relation.worker import PlannedTask, task_reader
from weft.streams.spark.for_workers import for_workers

__all__ = ["LiveTable", "LiveView", "PruningScanBuilder", "check_interfaces", "new_dataframe", "register_view"]

_numbers = itertools.count(1)

# Lists of Parquet files that a view keeps in the JVM, because queries of one state often read the same files (all, or
# those of some keys or partitions). A list takes a few hundred bytes per file, and milliseconds to create.
LISTS_KEPT: Final = 8


def register_view(jvm: Jvm, name: str, planner: Planner) -> None:
    """Create or replace a view and its table function."""
    view = LiveView(jvm, name, planner)
    function = ScalaFunction(jvm, f"weft view {view.number}: {name}", lambda _arguments: view.newest_relation())
    jvm.create_view(name, f"weft_{name}", function)


def new_dataframe(jvm: Jvm, name: str, planner: Planner) -> DataFrame:
    """Create a DataFrame with the present columns of the table."""
    view = LiveView(jvm, name, planner)
    state = planner()
    return jvm.dataframe(view.relation(state, state.parts()))


def check_interfaces(jvm: Jvm) -> None:
    """Check that callbacks have all methods that this version of Spark may call, so that no query fails later.

    Raises:
        UnsupportedSessionError: An interface has a method that the callback lacks, as in a newer Spark.
    """
    check_methods(jvm, (LiveTable, PruningScanBuilder, TaskScan, ParquetScan, RangesOfFiles, ScanStatistics))


class LiveView:
    """State that all callbacks of one view share."""

    def __init__(self, jvm: Jvm, name: str, planner: Planner) -> None:
        self.jvm = jvm
        self.name = name
        self.pins = QueryStates(jvm, planner)
        self.number = next(_numbers)
        self.capabilities = jvm.HashSet()
        self.capabilities.add(jvm.TableCapability.BATCH_READ)
        self._parts: tuple[Part, ...] = ()
        self._lists: dict[Any, Any] = {}  # ordered by last use
        self._joined: dict[str, LiveView] = {}

    def newest_relation(self) -> Any:
        """Return a logical plan over the state of the query that is analysed on this thread."""
        pin = self.pins.current()
        try:
            return pin.prepared.pop()
        except IndexError:
            return self.relation(pin.state, self.stable_parts(pin.state.parts()))

    def output_schema(self) -> StructType:
        """Return the columns of `newest_relation`. If a table is joined, the relation is made here, and kept for it."""
        pin = self.pins.current()
        if not pin.state.joins():
            return pin.state.schema()
        plan = self.relation(pin.state, self.stable_parts(pin.state.parts()))
        pin.prepared.append(plan)
        return self.jvm.parse_struct(plan.schema())

    def relation(self, state: PinnedPlanner, parts: Sequence[Part]) -> Any:
        """Create a logical plan over a state, with one scan per part."""
        joins = state.joins()
        joined_names = {name for join in joins for _, name in join.columns}
        schema = StructType([field for field in state.schema().fields if field.name not in joined_names])
        struct = self.jvm.struct(schema)
        plan = self.jvm.union([self.jvm.relation(LiveTable(self, schema, part), struct) for part in parts])
        if not joins:
            return plan

        def frame_of(join: JoinedColumns) -> DataFrame:
            joined_state = state.joined(join.name)
            # Each query gets the state of the other table that belongs to its state of this view.
            new_view = LiveView(
                self.jvm, f"{self.name}.{join.name}", lambda: self.pins.current().state.joined(join.name)
            )
            view = self._joined.setdefault(join.name, new_view)
            return self.jvm.dataframe(view.relation(joined_state, view.stable_parts(joined_state.parts())))

        return self.jvm.analyzed(join_frames(self.jvm.dataframe(plan), joins, frame_of))

    def stable_parts(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Choose the parts of the next query: ``parts``, or those of the last query while Spark has cached anything.

        Spark finds cached data only for a query with the plan with which the data was cached.
        """
        if not self._parts or not self.jvm.caches_plans():
            self._parts = tuple(parts)
        return self._parts

    def parquet_index(self, files: tuple[ParquetFile, ...]) -> Any:
        index = self._lists.pop(files, None) or self.jvm.parquet_index(files)
        self._lists[files] = index
        # Another thread may remove the same list.
        for old in list(self._lists)[:-LISTS_KEPT]:
            self._lists.pop(old, None)
        return index


def _read_by_spark(file: ParquetFile) -> bool:
    """Whether Spark reads a file: it ignores files whose names begin with an underscore or a dot."""
    return not file.path.rpartition("/")[2].startswith(("_", "."))


class LiveTable(PlainTable, java=("org.apache.spark.sql.connector.catalog.SupportsRead",)):
    """A table for Spark (`SupportsRead`): columns and part are fixed at analysis, rows come from the query's state."""

    def __init__(self, view: LiveView, schema: StructType, part: Part) -> None:
        # Two occurrences of a view must be equal tables: otherwise Spark would not find the data of a cached view.
        identity = f"weft table {view.number}: {view.name}, {part.value}, {schema.simpleString()}"
        super().__init__(view.jvm, identity, view.name, schema)
        self._view = view
        self._part = part

    def newScanBuilder(self, _options: Any) -> PruningScanBuilder:  # noqa: N802
        return PruningScanBuilder(self._view, self._schema, self._part, self._view.pins.current())

    def capabilities(self) -> Any:
        return self._view.capabilities


class PruningScanBuilder(
    Callback,
    java=(
        "org.apache.spark.sql.connector.read.SupportsPushDownAggregates",
        "org.apache.spark.sql.connector.read.SupportsPushDownLimit",
        "org.apache.spark.sql.connector.read.SupportsPushDownTopN",
        "org.apache.spark.sql.connector.read.SupportsPushDownV2Filters",
        "org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns",
    ),
    answers={"supportsIterativePushdown": False},
):
    """Collects filters and columns of one scan, then plans it. Spark calls the methods in the order below."""

    def __init__(self, view: LiveView, schema: StructType, part: Part, pin: QueryState) -> None:
        super().__init__(view.jvm, f"weft scan builder {next(_numbers)}")
        self._view = view
        self._schema = schema
        self._part = part
        self._pin = pin
        self._pushed: list[PushedPredicate] = []
        self._filters: tuple[Condition, ...] = ()
        self._exact: frozenset[Condition] = frozenset()
        self._pruned: Any = None
        self._refused = False
        self._aggregated: tuple[Aggregation, ReadPlan] | None = None
        self._first: FirstRows | None = None

    def pushPredicates(self, predicates: Any) -> Any:  # noqa: N802
        """Accept filters, and return those that Spark must evaluate after the scan, as the same objects."""
        offered, schema = list(predicates), self._pin.state.schema()
        parsed = [parse_predicate(predicate, schema) for predicate in offered]
        self._pushed = [item for item in parsed if item is not None]
        self._filters = tuple(item.condition for item in self._pushed if item.condition is not None)
        self._exact = frozenset(self._filters[index] for index in self._pin.state.exact(self._filters, self._part))
        after = [
            predicate
            for predicate, item in zip(offered, parsed, strict=True)
            if item is None or item.condition not in self._exact
        ]
        return self.jvm.array(self.jvm.Predicate, after)

    def pushedPredicates(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.Predicate, self._predicates())

    def _predicates(self) -> list[Any]:
        return [item.predicate for item in self._pushed]

    def _pushed_values(self) -> tuple[Any, ...]:
        """Return the pushed predicates as values that are equal for equal predicates."""
        return tuple(item.condition or item.predicate.toString() for item in self._pushed)

    def pushLimit(self, count: int) -> bool:  # noqa: N802
        """Accept a limit on rows to which Spark applies no further filter.

        Spark limits the rows that tasks return, unless one task returns exactly the rows of the limit. That is better:
        Spark ends the Python worker of a task if it does not read all rows, and the next query has to start another.
        """
        in_all = self._pin.state.has_first(self._filters, self._part, count)
        self._first = FirstRows(count, in_all=in_all)
        return True

    def pushTopN(self, orders: Any, count: int) -> bool:  # noqa: N802
        """Accept a limit with an order; Spark sorts and limits the rows that tasks return."""
        order = parse_order(orders)
        if order is not None:
            self._check_columns([key.column for key in order])
            self._first = FirstRows(count, order)
        return order is not None

    def isPartiallyPushed(self) -> bool:  # noqa: N802
        return self._first is None or not self._first.in_all

    def pruneColumns(self, required: Any) -> None:  # noqa: N802
        self._pruned = required

    def supportCompletePushDown(self, aggregation: Any) -> bool:  # noqa: N802
        """Note whether an average is inexact, and return False: Spark then calls `pushAggregation` without averages."""
        self._refused = self._refused or has_inexact_average(aggregation, self._schema)
        return False

    def pushAggregation(self, aggregation: Any) -> bool:  # noqa: N802
        """Accept an aggregation of rows to which Spark applies no further filter; Spark combines the tasks' results."""
        aggregated = None if self._refused else parse_aggregation(aggregation)
        if aggregated is not None:
            self._check_columns(aggregated.columns)
            plan = self._pin.state.plan_aggregates(aggregated, self._filters, self._part)
            self._aggregated = None if plan is None else (aggregated, plan)
        return self._aggregated is not None

    def build(self) -> Any:
        if self._aggregated is not None:
            return self._aggregated_scan(*self._aggregated)
        schema = self._required_schema()
        key = (self._part, tuple(schema.names), self._pushed_values(), self._exact, self._first)
        scan = self._pin.scans.get(key)
        if scan is None:
            scan = self._pin.scans.setdefault(key, self._scan(schema))
        return scan

    def _scan(self, schema: StructType) -> Any:
        names, filters = tuple(schema.names), self._filters

        def planned(runtime_filters: Sequence[Condition]) -> ReadPlan:
            return self._plan_rows(names, (*filters, *runtime_filters))

        plan = planned(())
        if plan.parquet_files and not self._exact and all(map(_read_by_spark, plan.parquet_files)):
            return ParquetScan(self.jvm, plan, schema, planned, lambda files: self._parquet_scan(files, schema))
        return self._task_scan(plan, schema, self._share(schema), planned)

    def _plan_rows(self, columns: tuple[str, ...], filters: tuple[Condition, ...]) -> ReadPlan:
        plan = None
        if self._first is not None:
            plan = self._pin.state.plan_first(columns, filters, self._part, self._first)
        return self._pin.state.plan(columns, filters, self._part) if plan is None else plan

    def _aggregated_scan(self, aggregation: Aggregation, plan: ReadPlan) -> Any:
        key = (self._part, aggregation, self._pushed_values())
        scan = self._pin.scans.get(key)
        if scan is None:
            assert plan.columns is not None, "a plan of aggregates has columns"
            filters = self._filters

            def planned(runtime_filters: Sequence[Condition]) -> ReadPlan:
                runtime = filters_of_groups(runtime_filters, aggregation)
                return self._pin.state.plan_aggregates(aggregation, filters, self._part, runtime) or plan

            scan = self._pin.scans.setdefault(key, self._task_scan(plan, plan.columns, 1.0, planned))
        return scan

    def _task_scan(self, plan: ReadPlan, schema: StructType, share: float, replan: Replan) -> TaskScan:
        reader = for_workers(task_reader(plan.read, to_arrow_schema(schema, timezone="UTC")))
        v1_filters = self.jvm.v1_filters(self._predicates())
        return TaskScan(
            self.jvm, plan, schema, share, replan, lambda tasks: self.jvm.task_scan(reader, tasks, schema, v1_filters)
        )

    def _share(self, schema: StructType) -> float:
        """Estimate the share of the columns in the bytes of a row, by the default size of types, as Spark does."""
        return self.jvm.struct(schema).defaultSize() / self.jvm.struct(self._pin.state.schema()).defaultSize()

    def _parquet_scan(self, files: Sequence[ParquetFile], schema: StructType) -> Any:
        pushed = [item.predicate for item in self._pushed if item.skips]
        index = self._view.parquet_index(tuple(files))
        pruned = self.jvm.struct(schema) if self._pruned is None else self._pruned
        return self.jvm.parquet_scan(index, self.jvm.struct(self._pin.state.schema()), pruned, pushed)

    def _required_schema(self) -> StructType:
        """Return the required columns with all fields of structs, checked against the schema of the query's state."""
        names = self._schema.names if self._pruned is None else self.jvm.parse_struct(self._pruned).names
        self._check_columns(names)
        return StructType([self._schema[name] for name in names])

    def _check_columns(self, names: Sequence[str]) -> None:
        """Check columns against the schema of the query's state.

        Raises:
            InvalidInput: A column was dropped or has another type since the query was analysed.
        """
        newest = {field.name: field for field in self._pin.state.schema().fields}
        for name in names:
            planned_field = self._schema[name]
            if name not in newest or newest[name].dataType != planned_field.dataType:
                now = f"is now {newest[name].dataType.simpleString()}" if name in newest else "no longer exists"
                raise InvalidInput(
                    f"column {name!r} of {self._view.name!r} was {planned_field.dataType.simpleString()} and {now}",
                    hint="create the DataFrame again: it keeps the columns that the table had when it was created",
                )


class _PlannedScan(
    FilteredAtRunTime,
    java=(
        "org.apache.spark.sql.connector.read.SupportsReportStatistics",
        "org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering",
        "org.apache.spark.sql.internal.connector.SupportsMetadata",
    ),
    answers={"reflectsFullyPushedDownFilters": False},
):
    """Wraps a scan of Spark: adds the description of the plan, and runtime filters."""

    def __init__(self, jvm: Jvm, inner: Any, batch: Any, plan: ReadPlan, schema: StructType) -> None:
        super().__init__(jvm, f"weft scan {next(_numbers)}", batch, plan, schema)
        self._inner = inner

    def description(self) -> str:
        return self.plan.description + self.effect

    def readSchema(self) -> Any:  # noqa: N802
        return self._inner.readSchema()

    def getMetaData(self) -> Any:  # noqa: N802
        return self._inner.getMetaData()

    def columnarSupportMode(self) -> Any:  # noqa: N802
        return self.jvm.ColumnarSupportMode.PARTITION_DEFINED

    def toMicroBatchStream(self, _checkpoint: str) -> Any:  # noqa: N802
        raise InvalidInput(
            "a view of a table cannot be read as a stream", hint='read changes with spark.readStream.format("weft")'
        )

    toContinuousStream = toMicroBatchStream  # noqa: N815


class TaskScan(_PlannedScan):
    """Spark's scan of a Python data source, with the statistics of the plan."""

    def __init__(
        self,
        jvm: Jvm,
        plan: ReadPlan,
        schema: StructType,
        share: float,
        replan: Replan,
        scan_of: Callable[[Sequence[Any]], tuple[Any, Any]],
    ) -> None:
        inner, batch = scan_of(plan.tasks)
        super().__init__(jvm, inner, batch, plan, schema)
        self._size_bytes = None if plan.size_bytes is None else max(1, int(plan.size_bytes * share))
        self._planned = replan
        self._scan_of = scan_of

    def filtered_batch(self, filters: Sequence[Condition]) -> tuple[Any, ReadPlan]:
        plan = self._planned(filters)
        _, batch = self._scan_of([PlannedTask(plan.read, task) for task in plan.tasks])
        return batch, plan

    def estimateStatistics(self) -> ScanStatistics:  # noqa: N802
        return ScanStatistics(self.jvm, self._size_bytes, self.plan.row_count)

    def estimateSizeInBytes(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._size_bytes)


class ParquetScan(_PlannedScan):
    """Spark's scan of Parquet files, with Spark's statistics."""

    def __init__(
        self,
        jvm: Jvm,
        plan: ReadPlan,
        schema: StructType,
        replan: Replan,
        scan_of: Callable[[Sequence[ParquetFile]], Any],
    ) -> None:
        inner = scan_of(plan.parquet_files or ())
        super().__init__(jvm, inner, batch_of(jvm, inner, plan.parquet_files or ()), plan, schema)
        self._planned = replan
        self._scan_of = scan_of

    def filtered_batch(self, filters: Sequence[Condition]) -> tuple[Any, ReadPlan] | None:
        plan = self._planned(filters)
        if not plan.parquet_files and plan.tasks:
            return None
        files = plan.parquet_files or ()
        return batch_of(self.jvm, self._scan_of(files), files), plan

    def description(self) -> str:
        metadata = self._inner.getMetaData()
        properties = ", ".join(f"{name}: {metadata.apply(name)}" for name in ("PushedFilters", "ReadSchema"))
        return f"{self.plan.description}; ParquetScan {properties}{self.effect}"

    def getMetaData(self) -> Any:  # noqa: N802
        # Spark's location is the temporary list of files (`Jvm.parquet_index`), which means nothing to a user.
        return self._inner.getMetaData().updated("Location", self.plan.description)

    def estimateStatistics(self) -> Any:  # noqa: N802
        return self._inner.estimateStatistics()

    def estimateSizeInBytes(self) -> Any:  # noqa: N802
        return self._inner.estimateStatistics().sizeInBytes()

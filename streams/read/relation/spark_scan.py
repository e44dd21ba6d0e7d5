"""The objects Spark calls back while it plans: table function -> table -> scan builder -> scan.

    analysis       ViewFunction.apply      the state's schema becomes a relation over a LiveTable, or a union of two
    optimization   LiveTable.newScanBuilder -> PruningScanBuilder.pushPredicates, pruneColumns, build
    execution      TaskScan, ParquetScan    Spark's own objects from here on, no Python in the driver

A state whose rows lie partly in files as they are and are partly merged is read by two scans, for Spark's own Parquet
reader and our tasks cannot share one: a UNION ALL through which Spark pushes filters, columns and limits, and which it
compiles into the operators above it. The union is chosen when a query is analysed, and is right for any state that it
is executed on (`relation_plan.Part`).

The method names are those of Spark's Java interfaces; Py4J looks for every method that Spark may call, defaults of the
interface included, so all of them are here. Callbacks come on any JVM thread (broadcasts are planned on a pool). Py4J
drops its reference to a callback object when the JVM collects its proxy, so what lives here lives as long as the plans.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from pyspark.sql import DataFrame
from pyspark.sql.datasource import Filter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from storage.errors import InvalidInput
from streams.read.relation.jvm import Jvm, UnfitError
from streams.read.relation.planner_interface import ParquetFile, Part, Planner, ReadPlan
from streams.read.relation.pushed_filters import parse_predicate, safe_for_statistics
from streams.read.relation.query_state import QueryState, QueryStates
from streams.read.relation.worker import task_reader
from streams.spark.for_workers import for_workers

__all__ = ["check_interfaces", "new_dataframe", "register_view"]

_numbers = itertools.count(1)

# Lists of Parquet files that a view keeps in the JVM. Queries of a state differ in what they prune: all files, or those
# of some keys or partitions. A list is a few hundred bytes a file, and is made anew in milliseconds.
LISTS_KEPT: Final = 8


def register_view(jvm: Jvm, name: str, planner: Planner) -> None:
    """Create the view; replacing one of the same name also replaces its function, so nothing accumulates."""
    jvm.create_view(name, f"weft_{name}", ViewFunction(_View(jvm, name, planner)))


def new_dataframe(jvm: Jvm, name: str, planner: Planner) -> DataFrame:
    """A DataFrame whose columns are those of now."""
    view = _View(jvm, name, planner)
    state = planner.pin()
    return jvm.dataframe(view.relation(state.schema(), state.parts()))


def check_interfaces(jvm: Jvm) -> None:
    """Make sure that whatever this Spark may call is here, rather than fail in the middle of somebody's query.

    Raises:
        UnfitError: An interface has a method that the callback lacks: a newer Spark.
    """
    for kind in (LiveTable, PruningScanBuilder, TaskScan, ParquetScan, ScanStatistics):
        for interface in kind.Java.implements:
            missing = sorted(name for name in jvm.method_names(interface) if not hasattr(kind, name))
            if missing:
                raise UnfitError(f"this Spark's {interface.rpartition('.')[2]} also has {', '.join(missing)}")


class _View:
    """What the callbacks of one view share."""

    def __init__(self, jvm: Jvm, name: str, planner: Planner) -> None:
        self.jvm = jvm
        self.name = name
        self.pins = QueryStates(jvm, planner)
        self.number = next(_numbers)
        self.capabilities = jvm.HashSet()
        self.capabilities.add(jvm.TableCapability.BATCH_READ)
        self._parts: tuple[Part, ...] = ()
        self._lists: dict[Any, Any] = {}  # the one that was used last is last

    def relation(self, schema: StructType, parts: Sequence[Part]) -> Any:
        struct = self.jvm.struct(schema)
        return self.jvm.union([self.jvm.relation(LiveTable(self, schema, part), struct) for part in parts])

    def settled_parts(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts of the next query: those asked for, or those of the last query while Spark caches anything.

        Whatever was cached is found again only by the very plan that it was cached with.
        """
        if not self._parts or not self.jvm.caches_plans():
            self._parts = tuple(parts)
        return self._parts

    def parquet_index(self, files: tuple[ParquetFile, ...]) -> Any:
        index = self._lists.pop(files, None) or self.jvm.parquet_index(files)
        self._lists[files] = index
        # Other threads may have taken what is looked at here.
        for old in list(self._lists)[:-LISTS_KEPT]:
            self._lists.pop(old, None)
        return index


def _read_by_spark(file: ParquetFile) -> bool:
    """Spark passes over files with such names in silence, even when it is told to read them."""
    return not file.path.rpartition("/")[2].startswith(("_", "."))


class _Called:
    """Identity as the JVM asks for it: Spark compares the parts of plans, and so these objects, with one another."""

    def __init__(self, jvm: Jvm, identity: str) -> None:
        self.jvm = jvm
        self._identity = identity

    def hashCode(self) -> int:  # noqa: N802
        return zlib.crc32(self._identity.encode()) >> 1

    def equals(self, other: Any) -> bool:
        # Spark also compares with plans and sequences, whose text is long; a proxy's text is its identity.
        return self.jvm.is_callback(other) and str(other) == self._identity

    def toString(self) -> str:  # noqa: N802
        return self._identity


Method = TypeVar("Method", bound=Callable[..., Any])


def _callback(method: Method) -> Method:
    """Called by the JVM: an error leaves as one that Spark reports well."""

    @functools.wraps(method)
    def called(self: _Called, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            self.jvm.raise_in_spark(error)

    return cast("Method", called)


class ViewFunction(_Called):
    """`Seq[Expression] => LogicalPlan`, the table function behind a view."""

    def __init__(self, view: _View) -> None:
        super().__init__(view.jvm, f"weft view {view.number}: {view.name}")
        self._view = view

    @_callback
    def apply(self, _arguments: Any) -> Any:
        state = self._view.pins.current().state
        return self._view.relation(state.schema(), self._view.settled_parts(state.parts()))

    class Java:
        implements = ("scala.Function1",)


class LiveTable(_Called):
    """`SupportsRead`: the columns and the part of one analysis, the rows of whichever query scans it."""

    def __init__(self, view: _View, schema: StructType, part: Part) -> None:
        # Two occurrences of a view are equal tables, else a cached view would never be found again.
        super().__init__(view.jvm, f"weft table {view.number}: {view.name}, {part.value}, {schema.simpleString()}")
        self._view = view
        self._schema = schema
        self._part = part

    @_callback
    def newScanBuilder(self, _options: Any) -> PruningScanBuilder:  # noqa: N802
        return PruningScanBuilder(self._view, self._schema, self._part, self._view.pins.current())

    def name(self) -> str:
        return self._view.name

    @_callback
    def schema(self) -> Any:
        return self.jvm.struct(self._schema)

    @_callback
    def columns(self) -> Any:
        return self.jvm.columns(self._schema)

    def capabilities(self) -> Any:
        return self._view.capabilities

    @_callback
    def partitioning(self) -> Any:
        return self.jvm.array(self.jvm.Transform)

    @_callback
    def constraints(self) -> Any:
        return self.jvm.array(self.jvm.Constraint)

    @_callback
    def properties(self) -> Any:
        return self.jvm.HashMap()

    def id(self) -> None:
        return None

    def version(self) -> None:
        return None

    class Java:
        implements = ("org.apache.spark.sql.connector.catalog.SupportsRead",)


class PruningScanBuilder(_Called):
    """Collects what one scan needs, then asks the state for a plan. Spark calls the methods in the order below."""

    def __init__(self, view: _View, schema: StructType, part: Part, pin: QueryState) -> None:
        super().__init__(view.jvm, f"weft scan builder {next(_numbers)}")
        self._view = view
        self._schema = schema
        self._part = part
        self._pin = pin
        self._predicates: list[Any] = []
        self._filters: list[Filter] = []
        self._exact: frozenset[int] = frozenset()
        self._pruned: Any = None

    @_callback
    def pushPredicates(self, predicates: Any) -> Any:  # noqa: N802
        """Returns those that Spark must evaluate after the scan: the very objects it gave."""
        after = []
        for predicate in predicates:
            parsed = parse_predicate(predicate)
            if parsed is None:
                after.append(predicate)
            else:
                self._predicates.append(predicate)
                self._filters.append(parsed)
        self._exact = frozenset(self._pin.state.exact(tuple(self._filters), self._part))
        after += [predicate for index, predicate in enumerate(self._predicates) if index not in self._exact]
        return self.jvm.array(self.jvm.Predicate, after)

    @_callback
    def pushedPredicates(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.Predicate, self._predicates)

    def supportsIterativePushdown(self) -> bool:  # noqa: N802
        return False

    def pruneColumns(self, required: Any) -> None:  # noqa: N802
        self._pruned = required

    @_callback
    def build(self) -> Any:
        schema = self._required_schema()
        key = (self._part, tuple(schema.names), tuple(map(repr, self._filters)), self._exact)
        scan = self._pin.scans.get(key)
        if scan is None:
            scan = self._pin.scans.setdefault(key, self._scan(schema))
        return scan

    def _scan(self, schema: StructType) -> Any:
        plan = self._pin.state.plan(tuple(schema.names), tuple(self._filters), self._part)
        if plan.parquet_files and not self._exact and all(map(_read_by_spark, plan.parquet_files)):
            return ParquetScan(self.jvm, self._parquet_scan(plan.parquet_files, schema), plan)
        read = for_workers(task_reader(plan.read, to_arrow_schema(schema, timezone="UTC")))
        inner = self.jvm.task_scan(read, plan.tasks, schema, self.jvm.v1_filters(self._predicates))
        return TaskScan(self.jvm, inner, plan, self._share(schema))

    def _share(self, schema: StructType) -> float:
        """Of the table's bytes: by the width of columns, as Spark estimates it for its own files."""
        return self.jvm.struct(schema).defaultSize() / self.jvm.struct(self._pin.state.schema()).defaultSize()

    def _parquet_scan(self, files: Sequence[ParquetFile], schema: StructType) -> Any:
        pushed = [
            predicate
            for predicate, parsed in zip(self._predicates, self._filters, strict=True)
            if safe_for_statistics(parsed)
        ]
        index = self._view.parquet_index(tuple(files))
        pruned = self.jvm.struct(schema) if self._pruned is None else self._pruned
        return self.jvm.parquet_scan(index, self.jvm.struct(self._pin.state.schema()), pruned, pushed)

    def _required_schema(self) -> StructType:
        """The required columns in full (structs are not pruned inside), checked against the state of this query."""
        names = self._schema.names if self._pruned is None else self.jvm.parse_struct(self._pruned).names
        newest = {field.name: field for field in self._pin.state.schema().fields}
        for name in names:
            held = self._schema[name]
            if name not in newest or newest[name].dataType != held.dataType:
                now = f"is now {newest[name].dataType.simpleString()}" if name in newest else "is gone"
                raise InvalidInput(
                    f"column {name!r} of {self._view.name!r} was {held.dataType.simpleString()} and {now}",
                    hint="create the DataFrame again: its columns are those of the moment it was made",
                )
        return StructType([self._schema[name] for name in names])

    class Java:
        implements = (
            "org.apache.spark.sql.connector.read.SupportsPushDownV2Filters",
            "org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns",
        )


class _PlannedScan(_Called):
    """A scan of Spark's own, with the plan's description, and one batch whoever asks."""

    def __init__(self, jvm: Jvm, inner: Any, plan: ReadPlan) -> None:
        super().__init__(jvm, f"weft scan {next(_numbers)}")
        self._inner = inner
        self._plan = plan
        self._batch = inner.toBatch()

    @_callback
    def description(self) -> str:
        return self._plan.description

    def toBatch(self) -> Any:  # noqa: N802
        return self._batch

    @_callback
    def readSchema(self) -> Any:  # noqa: N802
        return self._inner.readSchema()

    def reflectsFullyPushedDownFilters(self) -> bool:  # noqa: N802
        return False

    @_callback
    def getMetaData(self) -> Any:  # noqa: N802
        return self._inner.getMetaData()

    @_callback
    def columnarSupportMode(self) -> Any:  # noqa: N802
        return self.jvm.ColumnarSupportMode.PARTITION_DEFINED

    @_callback
    def supportedCustomMetrics(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.CustomMetric)

    @_callback
    def reportDriverMetrics(self) -> Any:  # noqa: N802
        return self.jvm.array(self.jvm.CustomTaskMetric)

    @_callback
    def toMicroBatchStream(self, _checkpoint: str) -> Any:  # noqa: N802
        raise InvalidInput("a view of a table is no stream", hint='spark.readStream.format("weft") reads changes')

    toContinuousStream = toMicroBatchStream  # noqa: N815

    class Java:
        implements = (
            "org.apache.spark.sql.connector.read.SupportsReportStatistics",
            "org.apache.spark.sql.internal.connector.SupportsMetadata",
        )


class TaskScan(_PlannedScan):
    """Spark's scan of a Python data source, with the plan's statistics."""

    def __init__(self, jvm: Jvm, inner: Any, plan: ReadPlan, share: float) -> None:
        super().__init__(jvm, inner, plan)
        self._size_bytes = None if plan.size_bytes is None else max(1, int(plan.size_bytes * share))

    @_callback
    def estimateStatistics(self) -> ScanStatistics:  # noqa: N802
        return ScanStatistics(self.jvm, self._size_bytes, self._plan.row_count)

    @_callback
    def estimateSizeInBytes(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._size_bytes)


class ParquetScan(_PlannedScan):
    """Spark's scan of Parquet files, which knows its statistics."""

    @_callback
    def description(self) -> str:
        known = self._inner.getMetaData()
        told = ", ".join(f"{name}: {known.apply(name)}" for name in ("PushedFilters", "ReadSchema"))
        return f"{self._plan.description}; ParquetScan {told}"

    @_callback
    def getMetaData(self) -> Any:  # noqa: N802
        # Where Spark was told of the files means nothing to whoever asks where they are.
        return self._inner.getMetaData().updated("Location", self._plan.description)

    @_callback
    def estimateStatistics(self) -> Any:  # noqa: N802
        return self._inner.estimateStatistics()

    @_callback
    def estimateSizeInBytes(self) -> Any:  # noqa: N802
        return self._inner.estimateStatistics().sizeInBytes()


class ScanStatistics(_Called):
    """What Spark chooses joins by. An unknown size counts as the session's default, which is never broadcast."""

    def __init__(self, jvm: Jvm, size_bytes: int | None, row_count: int | None) -> None:
        super().__init__(jvm, f"weft statistics {next(_numbers)}")
        self._size_bytes = size_bytes
        self._row_count = row_count

    @_callback
    def sizeInBytes(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._size_bytes)

    @_callback
    def numRows(self) -> Any:  # noqa: N802
        return self.jvm.optional_long(self._row_count)

    @_callback
    def columnStats(self) -> Any:  # noqa: N802
        return self.jvm.HashMap()

    class Java:
        implements = ("org.apache.spark.sql.connector.read.Statistics",)

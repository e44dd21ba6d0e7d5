"""The one place that knows the JVM classes of Spark behind the view: which, how they are called, and whether they fit.

Everything the rest of `relation*` wants from the JVM is a method of `Jvm`; Spark moving a class means fixing this
file. Found by reading Spark 4.3 and holding for it:

* A Python data source's scan (`PythonScan`) asks a Python worker for two byte strings: the pickled read function and
  the pickled partitions (`PythonDataSourceReadInfo`). Whoever sets them beforehand (`PythonDataSourceV2.setReadInfo`)
  saves that worker, 0.2 s a query. We are in a Python process with the planner at hand, so we do.
* `QueryPlanningTracker.get` is the `QueryExecution` under analysis or optimization on this JVM thread. Py4J's
  `ClientServer` runs a callback's own calls on the JVM thread that called back, which makes the tracker visible to us.
* `MetadataLogFileIndex`, the list of files that a streaming file sink has written, is made of one small file of JSON,
  and believes it.
* A temporary view whose schema mode is EVOLUTION is parsed and resolved anew, columns included, at every use.
"""

from __future__ import annotations

import json
import tempfile
import traceback
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from streams.read.relation.planner_interface import ParquetFile
from streams.spark.for_workers import pickled

__all__ = ["Jvm", "UnfitError"]

_SQL = "org.apache.spark.sql."
_PYTHON = _SQL + "execution.datasources.v2.python."
_PARQUET = _SQL + "execution.datasources."

# A trailing "$" is a Scala object: its only instance is meant.
_CLASSES = {
    "Attributes": _SQL + "catalyst.types.DataTypeUtils$",
    "CatalogTable": _SQL + "catalyst.catalog.CatalogTable",
    "CatalogTables": _SQL + "catalyst.catalog.CatalogTable$",
    "ClassUtils": "org.apache.spark.util.Utils",
    "Collections": "java.util.Collections",
    "ColumnarSupportMode": _SQL + "connector.read.Scan.ColumnarSupportMode",
    "Constraint": _SQL + "connector.catalog.constraints.Constraint",
    "CustomMetric": _SQL + "connector.metric.CustomMetric",
    "CustomTaskMetric": _SQL + "connector.metric.CustomTaskMetric",
    "DataSource": _PYTHON + "PythonDataSourceV2",
    "DataType": _SQL + "types.DataType",
    "Dataset": _SQL + "classic.Dataset$",
    "FileIndex": _SQL + "execution.streaming.runtime.MetadataLogFileIndex",
    "Filter": _SQL + "sources.Filter",
    "HashMap": "java.util.HashMap",
    "HashSet": "java.util.HashSet",
    "Option": "scala.Option",
    "IllegalArgument": "java.lang.IllegalArgumentException",
    "Modifier": "java.lang.reflect.Modifier",
    "OptionalLong": "java.util.OptionalLong",
    "Options": _SQL + "util.CaseInsensitiveStringMap",
    "ParquetScanBuilder": _PARQUET + "v2.parquet.ParquetScanBuilder",
    "Path": "org.apache.hadoop.fs.Path",
    "Predicate": _SQL + "connector.expressions.filter.Predicate",
    "PredicateUtils": _SQL + "internal.connector.PredicateUtils",
    "Proxy": "java.lang.reflect.Proxy",
    "PythonScan": _PYTHON + "PythonScan",
    "PythonTable": _PYTHON + "PythonTable",
    "PythonUtils": "org.apache.spark.api.python.PythonUtils",
    "ReadInfo": _PYTHON + "PythonDataSourceReadInfo",
    "Relation": _SQL + "execution.datasources.v2.DataSourceV2Relation",
    "RuntimeException": "java.lang.RuntimeException",
    "Sessions": _SQL + "classic.SparkSession$",
    "TableCapability": _SQL + "connector.catalog.TableCapability",
    "TempView": _SQL + "catalyst.catalog.TemporaryViewRelation",
    "Tracker": _SQL + "catalyst.QueryPlanningTracker",
    "Transform": _SQL + "connector.expressions.Transform",
    "Union": _SQL + "catalyst.plans.logical.Union",
    "UserDefinedSource": _PYTHON + "UserDefinedPythonDataSource",
    "WeakHashMap": "java.util.WeakHashMap",
}

_known_classes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


class UnfitError(Exception):
    """This session cannot carry a live view; the message says why."""


class Jvm:
    """A classic Spark session and the JVM classes the view needs. Cheap to make; holds no state of its own."""

    def __init__(self, spark: SparkSession, classes: dict[str, Any]) -> None:
        self.spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001
        self._context = spark.sparkContext
        self._gateway: Any = self._context._gateway  # noqa: SLF001
        self._classes = classes

    @classmethod
    def of(cls, spark: SparkSession, check: Callable[[Jvm], None]) -> Jvm:
        """Bind to `spark`; `check` says once a gateway whether it answers all that this Spark may ask.

        Raises:
            UnfitError: Spark Connect, threads that are not pinned, or a Spark whose classes are not those of 4.3.
        """
        if not hasattr(spark, "_jsparkSession"):
            raise UnfitError("this is a Spark Connect session, whose planner cannot be reached from Python")
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        if not isinstance(gateway, ClientServer):
            raise UnfitError("PYSPARK_PIN_THREAD=false separates Python threads from JVM threads")
        classes = _known_classes.get(gateway)
        if classes is None:
            try:
                classes = {name: _load(gateway.jvm, path) for name, path in _CLASSES.items()}
            except (AttributeError, TypeError, Py4JError) as error:
                raise UnfitError(f"Spark {spark.version} lacks a class this view builds on ({error})") from error
            check(cls(spark, classes))
            _known_classes[gateway] = classes
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # Lets a callback raise a JVM exception as itself instead of as the text of a Python traceback.
        gateway.python_parameters.propagate_java_exceptions = True
        return cls(spark, classes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._classes[name]
        except KeyError:
            raise AttributeError(name) from None

    # Values -----------------------------------------------------------------------------------------------------------

    def none(self) -> Any:
        return self.Option.empty()

    def some(self, value: Any) -> Any:
        return self.Option.apply(value)

    def seq(self, values: Iterable[Any]) -> Any:
        return self.PythonUtils.toSeq(list(values))

    def array(self, kind: Any, values: Sequence[Any] = ()) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array

    def options(self) -> Any:
        return self.Options.empty()

    def struct(self, schema: StructType) -> Any:
        return self.DataType.fromJson(schema.json())

    @staticmethod
    def parse_struct(struct: Any) -> StructType:
        return StructType.fromJson(json.loads(struct.json()))

    def columns(self, schema: StructType) -> Any:
        """`Column[]`, as the table would have that Spark makes for a Python data source."""
        return self.PythonTable(self.DataSource(), "", self.struct(schema)).columns()

    def optional_long(self, value: int | None) -> Any:
        return self.OptionalLong.empty() if value is None else self.OptionalLong.of(value)

    def method_names(self, interface: str) -> set[str]:
        """The instance methods of a JVM interface, inherited and default ones included."""
        methods = self.ClassUtils.classForName(interface, True, False).getMethods()
        return {method.getName() for method in methods if not self.Modifier.isStatic(method.getModifiers())}

    def is_callback(self, value: Any) -> bool:
        """Whether a JVM object is a Python object in disguise."""
        return value is not None and bool(self.Proxy.isProxyClass(value.getClass()))

    # Errors -----------------------------------------------------------------------------------------------------------

    def raise_in_spark(self, error: Exception) -> NoReturn:
        """Raise `error`, caught in a callback, so that Spark's caller gets its message and not a Py4J trace.

        It arrives as `pyspark.errors.IllegalArgumentException`: an AnalysisException is a checked exception in Java,
        and a Java proxy may not throw one that its interface does not declare.
        """
        if isinstance(error, Py4JJavaError):
            raise error
        message = f"{type(error).__name__}: {error}"  # as in the trace of a task that fails with it
        # A Spark error met while planning is named, not passed on: it may be a checked one.
        trace = self.RuntimeException("".join(traceback.format_exception(error)))
        raise Py4JJavaError(message, self.IllegalArgument(message, trace)) from error

    # Queries ----------------------------------------------------------------------------------------------------------

    def tracker(self) -> Any:
        """The query being planned on this thread (a JVM object equal to itself only), or None outside planning."""
        found = self.Tracker.get()
        return found.get() if found.isDefined() else None

    def weak_map(self) -> Any:
        """A thread-safe `Map` that forgets its keys with them."""
        return self.Collections.synchronizedMap(self.WeakHashMap())

    def relation(self, table: Any, struct: Any) -> Any:
        """A logical plan with new attributes over a `Table` callback."""
        output = self.Attributes.toAttributes(struct)
        return self.Relation(table, output, self.none(), self.none(), self.options(), self.none())

    def union(self, relations: Sequence[Any]) -> Any:
        """All rows of relations of the same columns."""
        return relations[0] if len(relations) == 1 else self.Union(self.seq(relations), False, False)

    def caches_plans(self) -> bool:
        """Whether anything is cached in this Spark: a query then finds it by having the same plan, part for part."""
        return not self._session.sharedState().cacheManager().isEmpty()

    def dataframe(self, plan: Any) -> DataFrame:
        return DataFrame(self.Dataset.ofRows(self._session, plan), self.spark)

    def create_view(self, name: str, function_name: str, function: Any) -> None:
        """The temporary view `name` as `SELECT * FROM function_name()`, resolved anew, columns too, at each use."""
        state = self._session.sessionState()
        state.tableFunctionRegistry().createOrReplaceTempFunction(function_name, function, "scala_udf")
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM `{function_name}`()")  # noqa: S608
        # SQL has no words for the schema mode of a temporary view, though Spark honours it.
        catalog = state.catalog()
        made = catalog.getRawTempView(name).get().tableMeta()
        fields = {made.productElementName(index): made.productElement(index) for index in range(made.productArity())}
        fields["properties"] = made.properties().updated(self.CatalogTables.VIEW_SCHEMA_MODE(), "EVOLUTION")
        evolving = self.CatalogTable(*fields.values())
        catalog.createTempView(name, self.TempView(evolving, self.none()), True)

    # Scans ------------------------------------------------------------------------------------------------------------

    def task_scan(self, function: Callable[..., Any], tasks: Sequence[Any], schema: StructType, filters: Any) -> Any:
        """Spark's scan of a Python data source with the answers of its planning worker filled in."""
        name = self._registered_source()
        source = self.DataSource()
        source.setShortName(name)
        source.setReadInfo(
            self.ReadInfo(bytearray(pickled((function, schema))), self.seq(bytearray(pickled(task)) for task in tasks))
        )
        source.source()  # resolved while the planning session is the active one
        return self.PythonScan(source, name, self.struct(schema), self.options(), filters)

    def parquet_index(self, files: Sequence[ParquetFile]) -> Any:
        """Spark's list of exactly these files, of which it asks no store anything: it takes their sizes from us.

        Spark would look at each path three times, and above 32 of them in a job of as many tasks. It does believe the
        log that its own streaming sink writes of its files, so that is what it is given.
        """
        with tempfile.TemporaryDirectory(prefix="weft-files-") as folder:
            log = Path(folder, "_spark_metadata")
            log.mkdir()
            entries = (
                json.dumps(
                    {
                        "path": quote(file.path, safe=":/"),
                        "size": file.size_bytes,
                        "isDir": False,
                        "modificationTime": 0,
                        "blockReplication": 1,
                        "blockSize": max(file.size_bytes, 1),
                        "action": "add",
                    }
                )
                for file in files
            )
            (log / "0").write_text("\n".join(("v1", *entries)), encoding="utf-8")
            options = self._read_options()
            options.put("recursiveFileLookup", "true")  # folders of paths are no columns
            path, parameters = self.Path(f"file://{folder}"), self.PythonUtils.toScalaMap(options)
            index = self.FileIndex(self._session, path, parameters, self.none())
        assert index.allFiles().size() == len(files), "Spark has read another list than was written"
        return index

    def parquet_scan(self, index: Any, struct: Any, pruned: Any, predicates: Sequence[Any]) -> Any:
        """Spark's vectorised scan of the files of a `parquet_index`, pruned as Spark asked (inside structs too)."""
        builder = self.ParquetScanBuilder(self._session, index, struct, struct, self.Options(self._read_options()))
        builder.pruneColumns(pruned)
        # These only skip row groups and pages: Spark evaluates the predicates again.
        getattr(builder, "pushedDataFilters_$eq")(builder.pushDataFilters(self.v1_filters(predicates)))
        return builder.build()

    def _read_options(self) -> Any:
        """What may not depend on the session.

        A file that is gone or damaged fails the query: to pass over it would be wrong. Files do not say that a Spark
        has written them, so the session's calendar for old files would be taken for their dates before 1582.
        """
        options = self.HashMap()
        options.put("ignoreMissingFiles", "false")
        options.put("ignoreCorruptFiles", "false")
        options.put("datetimeRebaseMode", "CORRECTED")
        return options

    def v1_filters(self, predicates: Sequence[Any]) -> Any:
        """`sources.Filter[]` of those predicates that have one."""
        return self.PredicateUtils.toV1(self.array(self.Predicate, predicates))

    def _registered_source(self) -> str:
        """The name of a Python data source that carries this context's environment for workers; never instantiated.

        Registered in the session that plans, which is not always the view's: a streaming query plans in a clone.
        """
        environment = f"{self._context._python_includes} {sorted(self._context.environment.items())}"  # noqa: SLF001
        name = f"weft_relation_tasks_{zlib.crc32(environment.encode()):08x}"  # addPyFile makes another one
        manager = self.Sessions.active().sessionState().dataSourceManager()
        if not manager.dataSourceExists(name):
            manager.registerDataSource(name, self.UserDefinedSource(_wrap_function(self._context, DataSource)))
        return name


def _load(jvm: Any, path: str) -> Any:
    found = jvm
    for part in path.split("."):
        found = getattr(found, part)
    if type(found).__name__ != "JavaClass":
        raise AttributeError(path)
    return getattr(found, "MODULE$") if path.endswith("$") else found

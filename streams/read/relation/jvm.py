"""All JVM classes of Spark that the live view uses: their names, how they are called, and whether this Spark has them.

Everything that the other modules of this package need from the JVM is a method of `Jvm`. If Spark moves a class, only
this module changes. It uses these properties of Spark 4.3, found by reading its source:

* The scan of a Python data source (`PythonScan`) asks a Python worker for two byte strings: the pickled function that
  reads and the pickled partitions (`PythonDataSourceReadInfo`). If `PythonDataSourceV2.setReadInfo` sets them
  beforehand, no worker is started, which saves 0.2 s per query. This process has the planner, so it sets them.
* `QueryPlanningTracker.get` is the tracker of the `QueryExecution` that is analysed or optimized on this JVM thread. A
  callback runs its calls on the JVM thread that called it (Py4J's `ClientServer`), so it can read the tracker.
* `MetadataLogFileIndex`, the list of files that a streaming file sink has written, is read from one small JSON file,
  and Spark does not check it against the store.
* A temporary view whose schema mode is EVOLUTION is parsed and resolved again at every use, columns included.
"""

from __future__ import annotations

import json
import tempfile
import traceback
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from weft.streams.read.relation.callback_connections import connections_of
from weft.streams.read.relation.columnar_tasks import columnar_tasks
from weft.streams.read.relation.planner_interface import ParquetFile
from weft.streams.spark.for_workers import pickle_value

__all__ = ["Jvm", "UnsupportedSessionError", "load_classes"]

_SQL = "org.apache.spark.sql."
_PYTHON = _SQL + "execution.datasources.v2.python."
_PARQUET = _SQL + "execution.datasources."

# A name that ends with "$" is a Scala object and stands for its only instance.
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
    "FieldReference": _SQL + "connector.expressions.FieldReference$",
    "FileIndex": _SQL + "execution.streaming.runtime.MetadataLogFileIndex",
    "Filter": _SQL + "sources.Filter",
    "HashMap": "java.util.HashMap",
    "HashSet": "java.util.HashSet",
    "NamedReference": _SQL + "connector.expressions.NamedReference",
    "ObjectMapper": "com.fasterxml.jackson.databind.ObjectMapper",
    "Option": "scala.Option",
    "InputPartition": _SQL + "connector.read.InputPartition",
    "IllegalArgument": "java.lang.IllegalArgumentException",
    "Modifier": "java.lang.reflect.Modifier",
    "OptionalLong": "java.util.OptionalLong",
    "Options": _SQL + "util.CaseInsensitiveStringMap",
    "ParquetScanBuilder": _PARQUET + "v2.parquet.ParquetScanBuilder",
    "PartitionedFile": _PARQUET + "PartitionedFile",
    "Path": "org.apache.hadoop.fs.Path",
    "Predicate": _SQL + "connector.expressions.filter.Predicate",
    "PredicateUtils": _SQL + "internal.connector.PredicateUtils",
    "Proxy": "java.lang.reflect.Proxy",
    "PythonScan": _PYTHON + "PythonScan",
    "PythonTable": _PYTHON + "PythonTable",
    "PythonUtils": "org.apache.spark.api.python.PythonUtils",
    "ReflectArray": "java.lang.reflect.Array",
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


class UnsupportedSessionError(Exception):
    """A live view is not possible in this Spark session; the message says why."""


class Jvm:
    """A classic Spark session, and the JVM classes that the view needs. Cheap to create; has no other state."""

    def __init__(self, spark: SparkSession, classes: dict[str, Any]) -> None:
        self.spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001 - the planner is in the JVM, and PySpark has no public way there
        self._context = spark.sparkContext
        self._gateway: Any = self._context._gateway  # noqa: SLF001 - as above
        self._classes = classes
        self.connections = connections_of(self._gateway)

    @classmethod
    def of(cls, spark: SparkSession, check: Callable[[Jvm], None]) -> Jvm:
        """Connect to the JVM of `spark`.

        Args:
            spark: The session.
            check: Called once per JVM; raises if Spark's interfaces have methods that the callbacks lack.

        Raises:
            UnsupportedSessionError: Spark Connect, threads that are not pinned, or a Spark whose classes are not those
                of 4.3.
        """
        if not hasattr(spark, "_jsparkSession"):
            raise UnsupportedSessionError(
                "this is a Spark Connect session, whose planner is not accessible from Python"
            )
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public way to the JVM
        if not isinstance(gateway, ClientServer):
            raise UnsupportedSessionError("PYSPARK_PIN_THREAD=false separates Python threads from JVM threads")
        classes = _known_classes.get(gateway)
        if classes is None:
            classes = load_classes(spark, _CLASSES, "a live view")
            check(cls(spark, classes))
            _known_classes[gateway] = classes
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # A JVM exception that a callback raises stays one, instead of becoming the text of a Python traceback.
        gateway.python_parameters.propagate_java_exceptions = True
        return cls(spark, classes)

    @property
    def classes(self) -> dict[str, Any]:
        """The JVM classes by name."""
        return self._classes

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
            if hasattr(value, "Java"):
                self.ReflectArray.set(array, index, value)  # Py4J itself cannot put a callback into an array
            else:
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
        """Return `Column[]` of a schema, as Spark creates it for a Python data source."""
        return self.PythonTable(self.DataSource(), "", self.struct(schema)).columns()

    def optional_long(self, value: int | None) -> Any:
        return self.OptionalLong.empty() if value is None else self.OptionalLong.of(value)

    def method_names(self, interface: str) -> set[str]:
        """Return the instance methods of a JVM interface, including inherited and default ones."""
        methods = self.ClassUtils.classForName(interface, True, False).getMethods()
        return {method.getName() for method in methods if not self.Modifier.isStatic(method.getModifiers())}

    def is_callback(self, value: Any) -> bool:
        """Whether a JVM object is a proxy of a Python object."""
        return value is not None and bool(self.Proxy.isProxyClass(value.getClass()))

    # Errors -----------------------------------------------------------------------------------------------------------

    def raise_in_spark(self, error: Exception) -> NoReturn:
        """Raise an error that a callback has caught, so that the user gets its message and not a trace of Py4J.

        The user gets a `pyspark.errors.IllegalArgumentException`. It cannot be an AnalysisException, because that is a
        checked exception in Java, and a Java proxy may only throw those that its interface declares.
        """
        if isinstance(error, Py4JJavaError):
            raise error
        message = f"{type(error).__name__}: {error}"  # the form that the trace of a failed task has
        # The cause is passed as text, because it may be a checked exception.
        trace = self.RuntimeException("".join(traceback.format_exception(error)))
        raise Py4JJavaError(message, self.IllegalArgument(message, trace)) from error

    # Queries ----------------------------------------------------------------------------------------------------------

    def tracker(self) -> Any:
        """Return the tracker of the query that is planned on this thread, a JVM object; None outside planning."""
        option = self.Tracker.get()
        return option.get() if option.isDefined() else None

    def weak_map(self) -> Any:
        """Create a thread-safe `Map` whose entries are removed when their keys are garbage-collected."""
        return self.Collections.synchronizedMap(self.WeakHashMap())

    def relation(self, table: Any, struct: Any) -> Any:
        """Create a logical plan over a `Table` callback, with new attributes."""
        output = self.Attributes.toAttributes(struct)
        return self.Relation(table, output, self.none(), self.none(), self.options(), self.none())

    def union(self, relations: Sequence[Any]) -> Any:
        """Combine relations with the same columns by UNION ALL."""
        return relations[0] if len(relations) == 1 else self.Union(self.seq(relations), False, False)

    def analyzed(self, frame: DataFrame) -> Any:
        """Return the analysed logical plan of a DataFrame."""
        return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to the plan

    def caches_plans(self) -> bool:
        """Whether the session has cached anything. Spark finds cached data only for a query with the same plan."""
        return not self._session.sharedState().cacheManager().isEmpty()

    def dataframe(self, plan: Any) -> DataFrame:
        return DataFrame(self.Dataset.ofRows(self._session, plan), self.spark)

    def create_view(self, name: str, function_name: str, function: Any) -> None:
        """Create the temporary view `name` as `SELECT * FROM function_name()`, which is resolved again at each use."""
        state = self._session.sessionState()
        state.tableFunctionRegistry().createOrReplaceTempFunction(function_name, function, "scala_udf")
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM `{function_name}`()")  # noqa: S608
        # SQL has no syntax for the schema mode of a temporary view, although Spark supports it.
        catalog = state.catalog()
        meta = catalog.getRawTempView(name).get().tableMeta()
        fields = {meta.productElementName(index): meta.productElement(index) for index in range(meta.productArity())}
        fields["properties"] = meta.properties().updated(self.CatalogTables.VIEW_SCHEMA_MODE(), "EVOLUTION")
        evolving = self.CatalogTable(*fields.values())
        catalog.createTempView(name, self.TempView(evolving, self.none()), True)

    # Scans ------------------------------------------------------------------------------------------------------------

    def task_scan(
        self, function: Callable[..., Any], tasks: Sequence[Any], schema: StructType, filters: Any
    ) -> tuple[Any, Any]:
        """Create Spark's scan of a Python data source, with the two byte strings that a planning worker would send.

        Returns:
            The scan, and its batch. Tasks return columns, or rows if the session has artifacts of its own, because its
            executors then do not load weft's classes.
        """
        name = self._registered_source()
        source = self.DataSource()
        source.setShortName(name)
        source.setReadInfo(
            self.ReadInfo(
                bytearray(pickle_value((function, schema))), self.seq(bytearray(pickle_value(task)) for task in tasks)
            )
        )
        source.source()  # resolve it now, while the session that plans the query is the active one
        scan = self.PythonScan(source, name, self.struct(schema), self.options(), filters)
        batch = scan.toBatch()
        isolated = self.Sessions.active().artifactManager().state() is not None
        return scan, batch if isolated else columnar_tasks(self._context, batch)

    def parquet_index(self, files: Sequence[ParquetFile]) -> Any:
        """Create Spark's index of these files without any request to the store.

        Usually Spark checks each path three times, and for more than 32 paths in a job with as many tasks. It does not
        check the log that its streaming file sink writes, so the list is passed in that form.
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
            options.put("recursiveFileLookup", "true")  # folders of the paths are not partition columns
            path, parameters = self.Path(f"file://{folder}"), self.PythonUtils.toScalaMap(options)
            index = self.FileIndex(self._session, path, parameters, self.none())
        assert index.allFiles().size() == len(files), "Spark has read the list that was written"
        return index

    def parquet_scan(self, index: Any, struct: Any, pruned: Any, predicates: Sequence[Any]) -> Any:
        """Create Spark's vectorised scan of the files of a `parquet_index`, with the columns and fields in `pruned`."""
        builder = self.ParquetScanBuilder(self._session, index, struct, struct, self.Options(self._read_options()))
        builder.pruneColumns(pruned)
        # These predicates only skip row groups and pages: Spark evaluates them again.
        getattr(builder, "pushedDataFilters_$eq")(builder.pushDataFilters(self.v1_filters(predicates)))
        return builder.build()

    def cut_partitions(self, partitions: Any, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> Any:
        """Cut Spark's partitions of files to ranges.

        A row group is read by the partition that contains the middle of its bytes.

        Args:
            partitions: `FilePartition[]` of Spark.
            ranges: (offset, length) of the parts to read, by file name; other files are read as a whole.
        """
        copies: list[Any] = []
        for partition in partitions:
            files = [piece for file in partition.files() for piece in self._pieces(file, ranges)]
            if files:
                copies.append(partition.copy(len(copies), self.array(self.PartitionedFile, files)))
        return self.array(self.InputPartition, copies)

    @staticmethod
    def _pieces(file: Any, ranges: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Any]:
        name = file.toPath().getName()
        if name not in ranges:
            yield file
            return
        begin = file.start()
        end = begin + file.length()
        values, path, locations = file.partitionValues(), file.filePath(), file.locations()
        rest = file.modificationTime(), file.fileSize(), file.otherConstantMetadataColumnValues()
        for offset, length in ranges[name]:
            first, last = max(begin, offset), min(end, offset + length)
            if first < last:
                yield file.copy(values, path, first, last - first, locations, *rest)

    def _read_options(self) -> Any:
        """Return options of the Parquet reader that must not depend on the settings of the session.

        A missing or damaged file must fail the query. Files of weft do not name Spark as their writer, so for dates
        before 1582 Spark would use the calendar that the session sets for old files.
        """
        options = self.HashMap()
        options.put("ignoreMissingFiles", "false")
        options.put("ignoreCorruptFiles", "false")
        options.put("datetimeRebaseMode", "CORRECTED")
        return options

    def v1_filters(self, predicates: Sequence[Any]) -> Any:
        """Convert predicates to `sources.Filter[]`; those that have no such form are left out."""
        return self.PredicateUtils.toV1(self.array(self.Predicate, predicates))

    def _registered_source(self) -> str:
        """Return the name of a Python data source for the workers of this context, and register it if needed.

        It is registered in the session that plans the query. That may not be the session of the view: a streaming query
        is planned in a clone of it. The source itself is never instantiated.
        """
        files = self._context._python_includes  # noqa: SLF001 - what addPyFile has added; no public list
        environment = f"{files} {sorted(self._context.environment.items())}"
        name = f"weft_relation_tasks_{zlib.crc32(environment.encode()):08x}"  # addPyFile changes the environment
        manager = self.Sessions.active().sessionState().dataSourceManager()
        if not manager.dataSourceExists(name):
            manager.registerDataSource(name, self.UserDefinedSource(_wrap_function(self._context, DataSource)))
        return name


def load_classes(spark: SparkSession, paths: Mapping[str, str], purpose: str) -> dict[str, Any]:
    """Load JVM classes, and return them by name.

    Args:
        spark: A classic session.
        paths: The full names of the classes, by name.
        purpose: Feature that needs the classes, for the error message.

    Raises:
        UnsupportedSessionError: This Spark does not have one of them.
    """
    jvm = spark.sparkContext._gateway.jvm  # type: ignore[union-attr]  # noqa: SLF001 - no public way to the JVM
    try:
        return {name: _load(jvm, path) for name, path in paths.items()}
    except (AttributeError, TypeError, Py4JError) as error:
        raise UnsupportedSessionError(f"Spark {spark.version} lacks a class that {purpose} needs: {error}") from error


def _load(jvm: Any, path: str) -> Any:
    java_object = jvm
    for part in path.split("."):
        java_object = getattr(java_object, part)
    if type(java_object).__name__ != "JavaClass":
        raise AttributeError(path)
    return getattr(java_object, "MODULE$") if path.endswith("$") else java_object

"""Access to the JVM classes of Spark that the catalog uses: their names, calls, and a check that this Spark has them.

If Spark changes a class, only this module and `weft.streams.read.relation.jvm`, which has the classes of scans, change.
It relies on these properties of Spark 4.3, which were found by reading its source and its classes:

* A session looks a catalog up in the map `catalogs` of its `DefaultCatalogManager` before it creates one from a
  setting. The map is private, so it is set by reflection. Each session, also a cloned one, has its own manager.
* If `loadTable` returns a `V1Table` over a `CatalogTable` of type VIEW, a query that names the table is resolved like a
  query over that view, with time travel and options, too. A view whose schema mode is EVOLUTION has the columns that
  its query has at each use. Its query may call a temporary table function if a property of the view lists the function.
* Commands such as DESCRIBE look a table up with the same method. Only the stack shows who calls.
* While a relation is resolved, `CurrentOrigin` has the text of the statement, and where the relation is in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import DataType, StructType

from weft.storage.errors import InvalidInput
from weft.streams.read.relation.jvm import Jvm, UnsupportedSessionError, load_classes
from weft.streams.read.relation.spark_scan import check_interfaces

_SQL = "org.apache.spark.sql."
_CATALOG = _SQL + "connector.catalog."
_ERRORS = _SQL + "catalyst.analysis."

# A name that ends with "$" is a Scala object and stands for its only instance.
_CLASSES: Final = {
    "ArrayList": "java.util.ArrayList",
    "Cast": _SQL + "catalyst.expressions.Cast",
    "CurrentOrigin": _SQL + "catalyst.trees.CurrentOrigin$",
    "DefaultCatalogManager": _CATALOG + "DefaultCatalogManager",
    "Expressions": _SQL + "connector.expressions.Expressions",
    "Identifier": _CATALOG + "Identifier",
    "JavaString": "java.lang.String",
    "MetadataColumn": _CATALOG + "MetadataColumn",
    "NamedReference": _SQL + "connector.expressions.NamedReference",
    "NamespaceAlreadyExists": _ERRORS + "NamespaceAlreadyExistsException",
    "NoSuchNamespace": _ERRORS + "NoSuchNamespaceException",
    "NoSuchTable": _ERRORS + "NoSuchTableException",
    "NonEmptyNamespace": _ERRORS + "NonEmptyNamespaceException",
    "PrintWriter": "java.io.PrintWriter",
    "ProcedureParameter": _CATALOG + "procedures.ProcedureParameter",
    "QueryContext": "org.apache.spark.QueryContext",
    "SparkRuntimeException": "org.apache.spark.SparkRuntimeException",
    "StringWriter": "java.io.StringWriter",
    "TableAlreadyExists": _ERRORS + "TableAlreadyExistsException",
    "TableCatalogCapability": _CATALOG + "TableCatalogCapability",
    "TableSummary": _CATALOG + "TableSummary",
    "UnsupportedOperation": "java.lang.UnsupportedOperationException",
    "V1Table": _CATALOG + "V1Table",
    "ViewBuilder": _CATALOG + "View.Builder",
}

_SESSION_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_FUNCTIONS_OF_VIEW: Final = "view.referredTempFunctionsNames"
# Names in stack traces of the JVM:
_COMMAND: Final = "lookupTableOrView"  # the method of the analyser that looks up the tables of commands
_FROM_QUERY: Final = "TableAsSelectExec"  # suffix of the classes that run CREATE and REPLACE TABLE AS SELECT
_REPLACE: Final = "v2.ReplaceTable"  # prefix of the classes that run REPLACE TABLE, with and without AS SELECT
_WRITE: Final = "writeToTable"  # the method of these classes that writes the rows, and drops the table if it fails

_classes_by_gateway: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a stream writer.

    Attributes:
        options: Options by name.
        output_mode: Append, Complete or Update.
        trigger: Interval between batches; None to start each batch as soon as the previous one ends.
        once: Whether the query ends when it has processed all data that the source has now.
    """

    options: Mapping[str, str]
    output_mode: str
    trigger: str | None
    once: bool


@dataclass(frozen=True, slots=True)
class ChangesRange:
    """The range of a CHANGES clause.

    Attributes:
        start: A version, or a time in microseconds since 1970; None for the beginning of the table.
        end: The same; None for the newest state.
        with_start: Whether the changes of ``start`` itself are part of the range.
        with_end: Whether the changes of ``end`` itself are part of the range.
    """

    start: str | int | None
    end: str | int | None
    with_start: bool
    with_end: bool


class CatalogJvm(Jvm):
    """A classic Spark session, with the JVM classes of live views and of the catalog."""

    @classmethod
    def connect(cls, spark: SparkSession) -> CatalogJvm:
        """Connect to the JVM of a session.

        Raises:
            UnsupportedSessionError: The session is one of Spark Connect, or its classes differ from Spark 4.3.
        """
        view_classes = Jvm.of(spark, check_interfaces).classes
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public way to the JVM
        classes = _classes_by_gateway.get(gateway)
        if classes is None:
            classes = view_classes | load_classes(spark, _CLASSES, "the catalog")
            _classes_by_gateway[gateway] = classes
        jvm = cls(spark, classes)
        jvm.check_catalogs()
        return jvm

    # Sessions ---------------------------------------------------------------------------------------------------------

    def check_catalogs(self) -> None:
        """Check that the session keeps its catalogs in the expected field.

        Raises:
            UnsupportedSessionError: The session has no such field.
        """
        try:
            self._catalogs()
        except (Py4JJavaError, AttributeError) as error:
            raise UnsupportedSessionError(
                f"Spark {self.spark.version} keeps its catalogs elsewhere than Spark 4.3"
            ) from error

    def register_catalog(self, name: str, catalog: Any) -> None:
        """Add a catalog to the session; it replaces a catalog of the same name."""
        self._catalogs().put(name, catalog)

    def has_catalog(self, name: str) -> bool:
        """Whether the session has used a catalog of this name."""
        return bool(self._catalogs().contains(name))

    def replace_session_catalog(self, name: str) -> None:
        """Replace Spark's own catalog, ``spark_catalog``, by another catalog of the session.

        Spark runs statements such as CREATE TABLE ... USING text without a catalog if their catalog is called
        spark_catalog. The replacement has another name, so it gets them.
        """
        self.spark.conf.set(_SESSION_CATALOG, name)
        self._catalogs().put("spark_catalog", self._catalogs().apply(name))

    def session_id(self) -> str:
        """The id of the session, unique in its application."""
        return str(self._session.sessionUUID())

    def has_source(self, name: str) -> bool:
        """Whether the session has a Python data source of this name."""
        return bool(self._session.sessionState().dataSourceManager().dataSourceExists(name))

    def register_function(self, name: str, function: Any) -> None:
        """Register a temporary table function in the session: a Scala function `Seq[Expression] => LogicalPlan`."""
        registry = self._session.sessionState().tableFunctionRegistry()
        registry.createOrReplaceTempFunction(name, function, "scala_udf")

    def _catalogs(self) -> Any:
        """The `mutable.Map[String, CatalogPlugin]` of the session."""
        return _private(self._session.sessionState().catalogManager(), "catalogs")

    def current_namespace(self) -> tuple[str, ...]:
        """Name of the session's current catalog and parts of its current namespace, as USE has set them."""
        manager = self._session.sessionState().catalogManager()
        return (str(manager.currentCatalog().name()), *manager.currentNamespace())

    def find_catalog(self, catalogs: Collection[str], names: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """Find the catalog of a name as Spark does: by its first part, or else the current catalog.

        Args:
            catalogs: Names of catalogs.
            names: The parts of a name in SQL.

        Returns:
            The catalog, and the name inside of it; None if the name is in none of these catalogs.
        """
        if len(names) > 1 and names[0] in catalogs:
            return names[0], names[1:]
        current, *namespace = self.current_namespace()
        if current not in catalogs:
            return None
        return current, (*namespace, *names) if len(names) == 1 else names

    # The statement that is running on this thread ---------------------------------------------------------------------

    def is_command(self) -> bool:
        """Whether the lookup on this thread is for a command such as DESCRIBE, and not for a query."""
        return self._stack_has(_COMMAND)

    def creates_from_query(self) -> bool:
        """Whether the statement on this thread creates a table and fills it with the rows of a query (AS SELECT)."""
        return self._stack_has(_FROM_QUERY)

    def writes_from_query(self) -> bool:
        """Whether the statement on this thread is writing the rows of a query to the table that it has created."""
        return self._stack_has(_FROM_QUERY) and self._stack_has(_WRITE)

    def replaces_table(self) -> bool:
        """Whether the statement on this thread is REPLACE TABLE, and has not yet created the new table."""
        return self._stack_has(_REPLACE) and not self._stack_has(_WRITE)

    def _stack_has(self, name: str) -> bool:
        # The stack trace is searched in the JVM, because Py4J takes 40 ms to transfer such a text.
        trace = self.StringWriter()
        self.RuntimeException("").printStackTrace(self.PrintWriter(trace))
        return bool(trace.getBuffer().indexOf(name) >= 0)

    def statement(self) -> tuple[str, str, str]:
        """The statement that is resolved on this thread, and its parts.

        Returns:
            The whole text; the part of it that names the relation; and the rest of the text, which begins with the
            options of the relation. In an INSERT the second part is everything before the query. All are empty for a
            DataFrame.
        """
        origin = self.CurrentOrigin.get()
        sql_text, start, stop = origin.sqlText(), origin.startIndex(), origin.stopIndex()
        text = str(sql_text.get()) if sql_text.isDefined() else ""
        if not (text and start.isDefined() and stop.isDefined()):
            return text, "", ""
        end = stop.get() + 1
        return text, text[start.get() : end], text[end:]

    def can_store(self, source: DataType, target: DataType) -> bool:
        """Whether an INSERT of Spark may store values of a type in a column of another type."""
        return bool(self.Cast.canANSIStoreAssign(self._data_type(source), self._data_type(target)))

    def _data_type(self, data_type: DataType) -> Any:
        return self.DataType.fromJson(data_type.json())

    # Values -----------------------------------------------------------------------------------------------------------

    def strings(self, values: Sequence[str]) -> Any:
        """Convert to `String[]`."""
        return self.array(self.JavaString, values)

    def identity(self, column: str) -> Any:
        """Build the `Transform` of a partition column."""
        return self.Expressions.identity(f"`{column}`")

    def string_arrays(self, values: Sequence[Sequence[str]]) -> Any:
        """Convert to `String[][]`."""
        arrays = self.ReflectArray.newInstance(self.strings(()).getClass(), len(values))
        for index, texts in enumerate(values):
            arrays[index] = self.strings(texts)
        return arrays

    def identifier(self, names: Sequence[str]) -> Any:
        """Convert the parts of a name to an `Identifier`."""
        return self.Identifier.of(self.strings(names[:-1]), names[-1])

    @staticmethod
    def literals(arguments: Any) -> list[str | None]:
        """Evaluate a `Seq[Expression]` of constants, as text; NULL becomes None.

        Raises:
            InvalidInput: An expression is not a constant.
        """
        texts = []
        for number, expression in enumerate(seq_values(arguments), 1):
            if not expression.foldable():
                raise InvalidInput(f"argument {number} is not a constant: {expression.sql()}", hint="give a value")
            value = expression.eval(None)
            texts.append(None if value is None else str(value.toString()) if hasattr(value, "toString") else str(value))
        return texts

    def point_in_time(self, travel: Any) -> str | int:
        """The version of a `TimeTravel`, or its time in microseconds since 1970."""
        return str(travel.version()) if travel.getClass().getSimpleName() == "AsOfVersion" else int(travel.micros())

    @staticmethod
    def changes_range(context: Any) -> ChangesRange:
        """The range of a `ChangelogContext`."""
        bounds = context.range()
        match str(bounds.getClass().getSimpleName()):
            case "VersionRange":
                start: str | int = str(bounds.startingVersion())
                end = bounds.endingVersion()
            case "TimestampRange":
                start, end = int(bounds.startingTimestamp()), bounds.endingTimestamp()
            case _:  # an unbounded range has none of these methods
                return ChangesRange(None, None, with_start=True, with_end=True)
        last = end.get() if end.isPresent() else None
        return ChangesRange(start, last, bool(bounds.startingBoundInclusive()), bool(bounds.endingBoundInclusive()))

    def read_options(self, values: Mapping[str, str]) -> Any:
        """Convert options of a read for Spark."""
        return self.Options(self.java_map(values))

    @staticmethod
    def streaming_table(frame: DataFrame) -> Any:
        """The `Table` of a streaming DataFrame of a data source."""
        return frame._jdf.queryExecution().analyzed().table()  # noqa: SLF001 - no public way to the plan

    def java_map(self, values: Mapping[str, str]) -> Any:
        """Convert to a `java.util.Map`."""
        converted = self.HashMap()
        for name, value in values.items():
            converted.put(name, value)
        return converted

    def view_as_table(self, catalog: Any, names: Sequence[str], schema: StructType, query: str, function: str) -> Any:
        """Build a `V1Table` that queries resolve like a view over ``query``.

        Args:
            catalog: The catalog.
            names: Parts of the name of the table.
            schema: Exactly the schema of the query; otherwise Spark fails, because the catalog cannot store a new one.
            query: Text of the view.
            function: The temporary table function that the query calls.
        """
        view = (
            self.ViewBuilder()
            .withSchema(self.struct(schema))
            .withQueryText(query)
            .withSchemaMode("EVOLUTION")
            .withProperties(self.java_map({_FUNCTIONS_OF_VIEW: f'["{function}"]'}))
            .build()
        )
        return self.V1Table(self.V1Table.toCatalogTable(catalog, self.identifier(names), view))

    def iterator(self, values: Sequence[Any]) -> Any:
        """Convert to a Java iterator."""
        converted = self.ArrayList()
        for value in values:
            converted.add(value)
        return converted.iterator()

    def parse_name(self, text: str) -> tuple[str, ...]:
        """Split a name in SQL into its parts.

        Raises:
            InvalidInput: The text is not a name.
        """
        try:
            return tuple(seq_values(self._session.sessionState().sqlParser().parseMultipartIdentifier(text)))
        except (Py4JJavaError, PySparkException) as error:
            raise InvalidInput(
                f"{text!r} is not a name", hint="separate its parts by dots; put other characters in backquotes"
            ) from error

    # Readers and stream writers ---------------------------------------------------------------------------------------

    def stream_settings(self, writer: DataStreamWriter) -> StreamSettings:
        """Read the settings of a stream writer from private fields of its JVM object.

        Raises:
            InvalidInput: The trigger does not run batches.
        """
        target = writer._jwrite  # noqa: SLF001 - there is no public form
        options = map_values(_private(target, "extraOptions").originalMap())
        trigger = _private(target, "trigger")
        output_mode = str(_private(target, "outputMode").toString())
        match str(trigger.getClass().getSimpleName()).rstrip("$"):
            case "ProcessingTimeTrigger":
                interval = f"{trigger.intervalMs()} ms" if trigger.intervalMs() else None
                return StreamSettings(options, output_mode, interval, once=False)
            case "AvailableNowTrigger" | "OneTimeTrigger":
                return StreamSettings(options, output_mode, None, once=True)
        raise InvalidInput(
            f"trigger {trigger.toString()} does not run batches",
            hint="use trigger(processingTime=...) or trigger(availableNow=True)",
        )

    @staticmethod
    def reader_options(reader: DataFrameReader | DataStreamReader) -> dict[str, str]:
        """The options of a reader. For streams they are in a private field of the JVM object."""
        inner = reader._jreader  # noqa: SLF001 - there is no public form
        if isinstance(reader, DataFrameReader):
            return map_values(inner.extraOptions().originalMap())
        return map_values(_private(inner, "extraOptions").originalMap())

    # Procedures -------------------------------------------------------------------------------------------------------

    def procedure_parameters(self, parameters: Sequence[tuple[str, str, str | None]]) -> Any:
        """Build `ProcedureParameter[]` from tuples of name, type, and default in SQL (None if it is required)."""
        built = []
        for name, kind, default in parameters:
            builder = getattr(self.ProcedureParameter, "in")(name, self.DataType.fromDDL(kind))
            built.append((builder if default is None else builder.defaultValue(default)).build())
        return self.array(self.ProcedureParameter, built)

    def internal_rows(self, frame: DataFrame) -> Any:
        """Collect a small DataFrame as `InternalRow[]`."""
        return frame._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001 - no public form has these

    def raise_user_error(self, error: Exception) -> NoReturn:
        """Raise an error in a form that Spark passes on unchanged; it would wrap an IllegalArgumentException."""
        message = self.java_map({"errorMessage": f"{type(error).__name__}: {error}"})
        exception = self.SparkRuntimeException(
            "USER_RAISED_EXCEPTION", self.PythonUtils.toScalaMap(message), None, self.array(self.QueryContext), ""
        )
        self.raise_java(exception)

    # Errors -----------------------------------------------------------------------------------------------------------

    def raise_java(self, exception: Any) -> NoReturn:
        """Raise a Java exception that Spark's interface declares."""
        raise Py4JJavaError(str(exception.getMessage()), exception)

    def no_such_table(self, names: Sequence[str]) -> NoReturn:
        self.raise_java(self.NoSuchTable(self.identifier(names)))

    def table_already_exists(self, names: Sequence[str]) -> NoReturn:
        self.raise_java(self.TableAlreadyExists(self.identifier(names)))

    def namespace_already_exists(self, names: Sequence[str]) -> NoReturn:
        self.raise_java(self.NamespaceAlreadyExists(self.strings(names)))

    def namespace_not_empty(self, names: Sequence[str]) -> NoReturn:
        self.raise_java(self.NonEmptyNamespace(self.strings(names)))

    def no_such_namespace(self, names: Sequence[str]) -> NoReturn:
        self.raise_java(self.NoSuchNamespace(self.strings(names)))


def _private(target: Any, name: str) -> Any:
    """Read a private field of a JVM object."""
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


def map_values(scala_map: Any) -> dict[str, str]:
    """Convert a Scala `Map` of texts to a dictionary."""
    values = {}
    entries = scala_map.iterator()
    while entries.hasNext():
        entry = entries.next()
        values[entry.productElement(0)] = entry.productElement(1)
    return values


def seq_values(values: Any) -> list[Any]:
    """Convert a Scala `Seq` to a list."""
    return [values.apply(index) for index in range(values.size())]

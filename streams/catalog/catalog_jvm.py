"""All uses of JVM classes of Spark by the catalog: their names, how they are called, and whether this Spark has them.

If Spark changes a class, only this module changes, and `weft.streams.read.relation.jvm`, which has those of the scans.
It uses these properties of Spark 4.3, found by reading its source and its classes:

* A session looks a catalog up in the map `catalogs` of its `DefaultCatalogManager` before it creates one from a
  setting. The map is private, so it is set by reflection. Each session has a manager, a clone of a session too.
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
_COMMAND: Final = "lookupTableOrView"  # the method of the analyser that looks up the tables of commands
_FROM_QUERY: Final = "TableAsSelectExec"  # end of the names of the classes that run CREATE and REPLACE TABLE AS SELECT
_REPLACE: Final = "v2.ReplaceTable"  # beginning of those that run REPLACE TABLE, with and without AS SELECT
_WRITING: Final = "writeToTable"  # their method that writes the rows, and drops the table if it fails

_known_classes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a user has set of a stream writer.

    Attributes:
        options: Options.
        output_mode: Append, Complete or Update.
        trigger: Interval between batches; None for the next batch as soon as one ends.
        once: Whether the query ends when it has processed what the source has.
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
        with_end: Whether those of ``end`` are.
    """

    start: str | int | None
    end: str | int | None
    with_start: bool
    with_end: bool


class CatalogJvm(Jvm):
    """A classic Spark session, and the JVM classes that the catalog needs besides those of live views."""

    @classmethod
    def connect(cls, spark: SparkSession) -> CatalogJvm:
        """Connect to the JVM of a session.

        Raises:
            UnsupportedSessionError: Spark Connect, or a Spark whose classes are not those of 4.3.
        """
        views = Jvm.of(spark, check_interfaces)
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - no public way to the JVM
        classes = _known_classes.get(gateway)
        if classes is None:
            classes = views.classes | load_classes(spark, _CLASSES, "the catalog")
            _known_classes[gateway] = classes
        made = cls(spark, classes)
        made.check_catalogs()
        return made

    # Sessions ---------------------------------------------------------------------------------------------------------

    def check_catalogs(self) -> None:
        """Check that the session keeps its catalogs where they are expected.

        Raises:
            UnsupportedSessionError: It does not.
        """
        try:
            self._catalogs()
        except (Py4JJavaError, AttributeError) as error:
            raise UnsupportedSessionError(
                f"Spark {self.spark.version} keeps its catalogs elsewhere than Spark 4.3"
            ) from error

    def register_catalog(self, name: str, catalog: Any) -> None:
        """Give a catalog a name in the session; it replaces one of that name."""
        self._catalogs().put(name, catalog)

    def has_catalog(self, name: str) -> bool:
        """Whether the session has a catalog of that name in use."""
        return bool(self._catalogs().contains(name))

    def replace_session_catalog(self, name: str) -> None:
        """Let a catalog stand for Spark's own one, ``spark_catalog``, which can then not be used any more.

        Spark has its own catalog for it as long as no setting names another one. Statements of the first kind, such as
        CREATE TABLE ... USING text, go past all catalogs if the catalog is called spark_catalog, and this one is not.
        """
        self.spark.conf.set(_SESSION_CATALOG, name)
        self._catalogs().put("spark_catalog", self._catalogs().apply(name))

    def session_id(self) -> str:
        """Identifies the session in its application."""
        return str(self._session.sessionUUID())

    def has_source(self, name: str) -> bool:
        """Whether the session has a Python data source of that name."""
        return bool(self._session.sessionState().dataSourceManager().dataSourceExists(name))

    def register_function(self, name: str, function: Any) -> None:
        """Register a temporary table function of the session: for Scala a function `Seq[Expression] => LogicalPlan`."""
        registry = self._session.sessionState().tableFunctionRegistry()
        registry.createOrReplaceTempFunction(name, function, "scala_udf")

    def _catalogs(self) -> Any:
        """The `mutable.Map[String, CatalogPlugin]` of the session."""
        return _private(self._session.sessionState().catalogManager(), "catalogs")

    def current_place(self) -> tuple[str, ...]:
        """Name of the session's current catalog, and its current namespace: what USE has set."""
        manager = self._session.sessionState().catalogManager()
        return (str(manager.currentCatalog().name()), *manager.currentNamespace())

    def find_catalog(self, known: Collection[str], names: tuple[str, ...]) -> tuple[str, tuple[str, ...]] | None:
        """The catalog of a name and the rest of the name, as Spark finds them: the name says it, or USE has set it.

        Args:
            known: Names of catalogs.
            names: The parts of a name in SQL.

        Returns:
            None if it is a name in another catalog.
        """
        if len(names) > 1 and names[0] in known:
            return names[0], names[1:]
        current, *namespace = self.current_place()
        if current not in known:
            return None
        return current, (*namespace, *names) if len(names) == 1 else names

    # Where a lookup comes from ----------------------------------------------------------------------------------------

    def is_command(self) -> bool:
        """Whether the lookup on this thread is that of a command such as DESCRIBE, and not of a query."""
        return self._stack_has(_COMMAND)

    def creates_from_query(self) -> bool:
        """Whether the table that is created on this thread then gets the rows of a query."""
        return self._stack_has(_FROM_QUERY)

    def writes_from_query(self) -> bool:
        """Whether the statement on this thread is writing the rows of a query to the table that it has created."""
        return self._stack_has(_FROM_QUERY) and self._stack_has(_WRITING)

    def replaces_table(self) -> bool:
        """Whether the statement on this thread is REPLACE TABLE, and has not yet created the new table."""
        return self._stack_has(_REPLACE) and not self._stack_has(_WRITING)

    def _stack_has(self, name: str) -> bool:
        # The text stays in the JVM: Py4J takes 40 ms for one of this length.
        written = self.StringWriter()
        self.RuntimeException("").printStackTrace(self.PrintWriter(written))
        return bool(written.getBuffer().indexOf(name) >= 0)

    def statement(self) -> tuple[str, str, str]:
        """The text of the statement that is resolved on this thread, its part that is the relation, and what follows.

        All are empty for a DataFrame. Options follow the relation. In an INSERT the part is all before the query.
        """
        origin = self.CurrentOrigin.get()
        found, start, stop = origin.sqlText(), origin.startIndex(), origin.stopIndex()
        text = str(found.get()) if found.isDefined() else ""
        if not (text and start.isDefined() and stop.isDefined()):
            return text, "", ""
        end = stop.get() + 1
        return text, text[start.get() : end], text[end:]

    def can_store(self, given: DataType, target: DataType) -> bool:
        """Whether Spark stores values of a type in a column of another type, as INSERT does."""
        return bool(self.Cast.canANSIStoreAssign(self._data_type(given), self._data_type(target)))

    def _data_type(self, given: DataType) -> Any:
        return self.DataType.fromJson(given.json())

    # Values -----------------------------------------------------------------------------------------------------------

    def strings(self, values: Sequence[str]) -> Any:
        """`String[]`."""
        return self.array(self.JavaString, values)

    def identity(self, column: str) -> Any:
        """The `Transform` of a partition column."""
        return self.Expressions.identity(f"`{column}`")

    def string_arrays(self, values: Sequence[Sequence[str]]) -> Any:
        """`String[][]`."""
        made = self.ReflectArray.newInstance(self.strings(()).getClass(), len(values))
        for index, each in enumerate(values):
            made[index] = self.strings(each)
        return made

    def identifier(self, names: Sequence[str]) -> Any:
        return self.Identifier.of(self.strings(names[:-1]), names[-1])

    @staticmethod
    def literals(arguments: Any) -> list[str | None]:
        """The values of a `Seq[Expression]` of constants, as text.

        Raises:
            InvalidInput: One is not a constant.
        """
        found = []
        for index in range(arguments.size()):
            each = arguments.apply(index)
            if not each.foldable():
                raise InvalidInput(f"argument {index + 1} is not a constant: {each.sql()}", hint="give a value")
            value = each.eval(None)
            found.append(None if value is None else str(value.toString()) if hasattr(value, "toString") else str(value))
        return found

    def point_in_time(self, travel: Any) -> str | int:
        """The version of a `TimeTravel`, or its time in microseconds since 1970."""
        return str(travel.version()) if travel.getClass().getSimpleName() == "AsOfVersion" else int(travel.micros())

    @staticmethod
    def changes_range(context: Any) -> ChangesRange:
        """The range of a `ChangelogContext`."""
        found = context.range()
        match str(found.getClass().getSimpleName()):
            case "VersionRange":
                start: str | int = str(found.startingVersion())
                end = found.endingVersion()
            case "TimestampRange":
                start, end = int(found.startingTimestamp()), found.endingTimestamp()
            case _:  # an unbounded range has no bounds to ask for
                return ChangesRange(None, None, with_start=True, with_end=True)
        last = end.get() if end.isPresent() else None
        return ChangesRange(start, last, bool(found.startingBoundInclusive()), bool(found.endingBoundInclusive()))

    def read_options(self, values: Mapping[str, str]) -> Any:
        """Options of a read."""
        return self.Options(self.java_map(values))

    @staticmethod
    def streaming_table(frame: DataFrame) -> Any:
        """The `Table` of a streaming DataFrame of a data source."""
        return frame._jdf.queryExecution().analyzed().table()  # noqa: SLF001 - no public way to the plan

    def java_map(self, values: Mapping[str, str]) -> Any:
        made = self.HashMap()
        for name, value in values.items():
            made.put(name, value)
        return made

    def view_as_table(self, catalog: Any, names: Sequence[str], schema: StructType, query: str, function: str) -> Any:
        """A table that queries expand to ``query``, which calls the temporary table function ``function``.

        Spark fails if ``schema`` is not exactly that of the query, because the catalog cannot store another one.
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
        """A Java iterator."""
        found = self.ArrayList()
        for value in values:
            found.add(value)
        return found.iterator()

    def parse_name(self, text: str) -> tuple[str, ...]:
        """The parts of a name in SQL.

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
        """What the user has set of a stream writer; PySpark keeps it in private fields of the JVM's object.

        Raises:
            InvalidInput: The trigger is not one of batches.
        """
        target = writer._jwrite  # noqa: SLF001 - there is no public form
        options = map_values(_private(target, "extraOptions").originalMap())
        trigger = _private(target, "trigger")
        output_mode = str(_private(target, "outputMode").toString())
        match str(trigger.getClass().getSimpleName()).rstrip("$"):
            case "ProcessingTimeTrigger":
                every = f"{trigger.intervalMs()} ms" if trigger.intervalMs() else None
                return StreamSettings(options, output_mode, every, once=False)
            case "AvailableNowTrigger" | "OneTimeTrigger":
                return StreamSettings(options, output_mode, None, once=True)
        raise InvalidInput(
            f"trigger {trigger.toString()} is not one of batches", hint="trigger(processingTime=...) or availableNow"
        )

    @staticmethod
    def reader_options(reader: DataFrameReader | DataStreamReader) -> dict[str, str]:
        """The options of a reader, which are in a field of the JVM's object that streams do not show."""
        inner = reader._jreader  # noqa: SLF001 - there is no public form
        if isinstance(reader, DataFrameReader):
            return map_values(inner.extraOptions().originalMap())
        return map_values(_private(inner, "extraOptions").originalMap())

    # Procedures -------------------------------------------------------------------------------------------------------

    def procedure_parameters(self, given: Sequence[tuple[str, str, str | None]]) -> Any:
        """`ProcedureParameter[]` of (name, type, default as SQL, or None if it is required)."""
        made = []
        for name, kind, default in given:
            builder = getattr(self.ProcedureParameter, "in")(name, self.DataType.fromDDL(kind))
            made.append((builder if default is None else builder.defaultValue(default)).build())
        return self.array(self.ProcedureParameter, made)

    def internal_rows(self, frame: DataFrame) -> Any:
        """`InternalRow[]` of a small DataFrame."""
        return frame._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001 - no public form has these

    def raise_user_error(self, error: Exception) -> NoReturn:
        """Raise an error that Spark passes on as it is, where it would wrap an IllegalArgumentException."""
        message = self.java_map({"errorMessage": f"{type(error).__name__}: {error}"})
        made = self.SparkRuntimeException(
            "USER_RAISED_EXCEPTION", self.PythonUtils.toScalaMap(message), None, self.array(self.QueryContext), ""
        )
        self.raise_java(made)

    # Errors -----------------------------------------------------------------------------------------------------------

    def raise_java(self, exception: Any) -> NoReturn:
        """Raise an exception of Java that the interface declares."""
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
    """The value of a private field of an object of the JVM."""
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(target)


def map_values(given: Any) -> dict[str, str]:
    """The entries of a Scala `Map` of texts."""
    found = {}
    entries = given.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[entry.productElement(0)] = entry.productElement(1)
    return found


def seq_values(values: Any) -> list[Any]:
    """The values of a Scala `Seq`."""
    return [values.apply(index) for index in range(values.size())]

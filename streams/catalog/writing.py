"""INSERT, writeTo and DELETE: a stream of a table as a table of Spark that can be written.

Spark is told that any schema is accepted, and `weft.streams.catalog.stream_writes` matches the columns. Otherwise Spark
would write NULL to columns that the statement does not name, where a group without columns has to stay as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from weft.storage.core.merge.events import OP_COLUMN
from weft.storage.core.predicate import And, Condition
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.stream_writes import (
    check_delete,
    check_statement,
    choose_stream,
    column_order,
    columns_of,
    delete_rows,
    is_by_position,
)
from weft.streams.catalog.table_entry import shown_columns
from weft.streams.read.relation.callbacks import PlainTable, WithoutMetrics
from weft.streams.read.relation.pushed_filters import parse_predicate
from weft.streams.spark.sql_text import sql_name
from weft.streams.write.sink_task import HINT
from weft.streams.write.write_batch import write_batch

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_context import CatalogContext

_SUPPLIED: Final = "_supplied"
_TRUE: Final = "ALWAYS_TRUE"
_QUERY_ID, _BATCH = "query_id", "batch"


def _ignored(rows: int) -> str:
    said, them, those = (
        ("1 row is", "it", "it is a delete") if rows == 1 else (f"{rows} rows are", "them", "they are deletes")
    )
    return f"{said} not stored: no column group of {them} has an ordering value, or {those} that the stream ignores"


def table_for_write(
    catalog: CatalogContext, names: Sequence[str], privileges: frozenset[str], options: Mapping[str, str]
) -> StreamTable:
    """The table to write to, for Spark a `Table`.

    Args:
        catalog: The catalog.
        names: The name in the statement: of a table, or of a stream of a table.
        privileges: What Spark wants to do: INSERT, DELETE, UPDATE.
        options: Options of the statement.

    Raises:
        InvalidInput: The statement is not supported, or does not say which stream it writes to.
        NotFound: The table has no such stream.
    """
    try:
        table, part = catalog.lake.resolve(names)
    except NotFound:
        catalog.jvm.no_such_table(names)
    text, head, rest = catalog.jvm.statement()
    shown = ".".join((catalog.name, *names))
    schema = catalog.lake.table(table).schema
    check_statement(text, shown, privileges, shown if part or len(schema.streams) == 1 else f"{shown}.<stream>")
    if options.get("as_of") is not None:
        raise InvalidInput(f"{shown}: a state of the past cannot be written", hint="leave the time out")
    stream = choose_stream(schema, ".".join((catalog.name, *table)), part)
    check_delete(text, rest, schema, stream, sql_name((catalog.name, *table)), sql_name((part,)) if part else "")
    by_position = is_by_position(text, head)
    return StreamTable(catalog, table, part, by_position=by_position, is_new=catalog.jvm.creates_from_query())


class StreamTable(
    PlainTable,
    WithoutMetrics,
    java=(
        "org.apache.spark.sql.connector.catalog.SupportsRead",
        "org.apache.spark.sql.connector.catalog.SupportsWrite",
        "org.apache.spark.sql.connector.catalog.SupportsDeleteV2",
    ),
):
    """A stream of a table: what INSERT and DELETE of one statement need."""

    jvm: CatalogJvm

    def __init__(
        self, catalog: CatalogContext, names: Sequence[str], part: str, *, by_position: bool, is_new: bool
    ) -> None:
        self._catalog = catalog
        self._table = catalog.lake.table(names)
        self._table_schema = self._table.schema
        table = ".".join((catalog.name, *names))
        self._stream = choose_stream(self._table_schema, table, part)
        self._by_position, self._is_new = by_position, is_new
        # With the defaults, which Spark puts where a statement says DEFAULT.
        events = self._table_schema.event_schema(columns_of(self._table_schema, self._stream))
        shown = shown_columns(from_arrow_schema(events), self._table_schema)
        hidden = [StructField(OP_COLUMN, StringType()), StructField(_SUPPLIED, ArrayType(StringType()))]
        name = f"{table}.{self._stream.name}"
        super().__init__(catalog.jvm, f"weft stream {name} {by_position}", name, StructType([*shown.fields, *hidden]))

    def capabilities(self) -> Any:
        found = self.jvm.HashSet()
        # Spark plans a scan for a DELETE, and does not run it.
        for each in ("BATCH_READ", "V1_BATCH_WRITE", "ACCEPT_ANY_SCHEMA"):
            found.add(self.jvm.TableCapability.valueOf(each))
        if self._is_new:  # REPLACE TABLE AS SELECT empties the table that it has just created
            found.add(self.jvm.TableCapability.TRUNCATE)
        return found

    # INSERT -----------------------------------------------------------------------------------------------------------

    def newWriteBuilder(self, info: Any) -> Any:  # noqa: N802
        return Append(self, dict(info.options().asCaseSensitiveMap()))

    def append(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """Append a frame to the stream, as one commit.

        Args:
            frame: Its columns are those of the stream, or some of them.
            options: ``query_id`` and ``batch`` make the append idempotent, as in `weft.write_batch`.

        Raises:
            TableError: See `weft.write_batch`.
        """
        target = column_order(self._table_schema, self._stream, frame.columns, by_position=self._by_position)
        kinds = {field.name: field.dataType for field in self._schema}
        key = self._table_schema.key
        columns = []
        # By position columns may have equal names, so each gets one of its own first.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(target))))
        for name, given in zip(target, numbered.schema, strict=True):
            if not self.jvm.can_store(given.dataType, kinds[name]):
                raise InvalidInput(
                    f"column {name!r} is {kinds[name].simpleString()}, not {given.dataType.simpleString()}",
                    hint=f"CAST it to {kinds[name].simpleString()} in the query",
                )
            column = sf.col(given.name)
            if given.dataType != kinds[name]:
                column = _key_cast(column, kinds[name], name) if name in key else column.cast(kinds[name])
            columns.append(column.alias(name))
        batch = _batch(options)
        try:
            commit = write_batch(
                numbered.select(*columns),
                self._table.uri,
                self._stream.name,
                batch=batch,
                storage_options=self._catalog.lake.storage_options,
            )
        except InvalidInput as error:
            # A statement has no folder for the rows that cannot be stored.
            hint = (error.hint or "").replace(HINT, "leave such rows out with WHERE")
            raise InvalidInput(error.message, hint=hint) from error
        if commit.rows_ignored:
            logging.getLogger("weft").warning("%s: %s", self._name, _ignored(commit.rows_ignored))

    # DELETE -----------------------------------------------------------------------------------------------------------

    def newScanBuilder(self, _options: Any) -> Any:  # noqa: N802
        return NoScan(self)

    def canDeleteWhere(self, predicates: Any) -> bool:  # noqa: N802
        self._condition(predicates)
        return True

    def deleteWhere(self, predicates: Any, _options: Any = None) -> None:  # noqa: N802
        delete_rows(self._table, self._stream, self._condition(predicates))

    def _condition(self, predicates: Any) -> Condition:
        """The condition of predicates on columns of the table.

        Raises:
            InvalidInput: One of them has no equivalent.
        """
        if all(predicate.name() == _TRUE for predicate in predicates):
            self.truncateTable()
        found = []
        names = self._table_schema.stream_columns(self._stream)
        schema = from_arrow_schema(pa.schema([self._table_schema.field(name) for name in names]))
        for predicate in predicates:
            parsed = parse_predicate(predicate, schema)
            if parsed is None or parsed.condition is None:
                raise InvalidInput(
                    f"DELETE of {self._name}: the condition {predicate.toString()} cannot be evaluated here",
                    hint="use comparisons, IN, IS NULL and LIKE 'prefix%' of columns that are not float, double or "
                    f"nested; or use INSERT with {OP_COLUMN} = 'delete'",
                )
            found.append(parsed.condition)
        return And(tuple(found))

    def truncateTable(self, _options: Any = None) -> bool:  # noqa: N802
        raise InvalidInput(
            f"DELETE of {self._name} without WHERE: all rows would be deleted",
            hint=f"WHERE {self._table_schema.key[0]} IS NOT NULL, if that is meant",
        )


class NoScan(
    WithoutMetrics, java=("org.apache.spark.sql.connector.read.ScanBuilder", "org.apache.spark.sql.connector.read.Scan")
):
    """The scan of a DELETE, which Spark plans and does not run."""

    jvm: CatalogJvm

    def __init__(self, target: StreamTable) -> None:
        super().__init__(target.jvm, f"weft delete {target.name()}")
        self._target = target

    def build(self) -> Any:
        return self

    def readSchema(self) -> Any:  # noqa: N802
        return self._target.schema()

    def toBatch(self) -> Any:  # noqa: N802
        raise InvalidInput(f"{self._target.name()} is a stream, and cannot be read", hint="read its table")

    def toMicroBatchStream(self, _checkpoint: Any) -> Any:  # noqa: N802
        return self.toBatch()

    toContinuousStream = toMicroBatchStream  # noqa: N815


class Append(
    WithoutMetrics,
    java=(
        "org.apache.spark.sql.connector.write.SupportsTruncate",
        "org.apache.spark.sql.connector.write.V1Write",
        "org.apache.spark.sql.sources.InsertableRelation",
    ),
):
    """One INSERT: Spark asks for a builder, a write and a relation, which are all this object."""

    jvm: CatalogJvm

    def __init__(self, target: StreamTable, options: Mapping[str, str]) -> None:
        super().__init__(target.jvm, f"weft append {target.name()}")
        self._target, self._options = target, options

    def build(self) -> Any:
        return self

    def truncate(self) -> Any:
        return self

    def toInsertableRelation(self) -> Any:  # noqa: N802
        return self

    def insert(self, data: Any, _overwrite: bool) -> None:  # noqa: FBT001
        self._target.append(DataFrame(data, self.jvm.spark), self._options)

    def toBatch(self) -> Any:  # noqa: N802
        raise InvalidInput(f"{self._target.name()} cannot be written in this way", hint="use INSERT INTO or writeTo")

    buildForBatch = buildForStreaming = toStreaming = toBatch  # noqa: N815


def _key_cast(column: Column, kind: DataType, name: str) -> Column:
    """A cast that fails for a value that it would change: Spark rounds, and drops a time of day."""
    cast = column.cast(kind)
    text = sf.concat(sf.lit(f"key column {name!r}: "), column.cast("string"), sf.lit(f" is no {kind.simpleString()}"))
    return sf.when(cast.eqNullSafe(column), cast).otherwise(sf.raise_error(text).cast(kind))


def _batch(options: Mapping[str, str]) -> tuple[str, int] | None:
    """The query id and the number of a batch in the options of a statement; None if there are none.

    Raises:
        InvalidInput: There is only one of the two, another option, or the number is not one.
    """
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - {_QUERY_ID, _BATCH})
    if unknown:
        raise InvalidInput(f"option {unknown[0]!r} is unknown", hint=f"options: {_QUERY_ID}, {_BATCH}")
    if not given:
        return None
    number = given.get(_BATCH, "")
    if _QUERY_ID not in given or not number.isdecimal():
        raise InvalidInput(
            f"options {_QUERY_ID} and {_BATCH}: a text that names the query, and a number, go together",
            hint=f"WITH ('{_QUERY_ID}' = 'nightly-load', '{_BATCH}' = '7')",
        )
    return given[_QUERY_ID], int(number)

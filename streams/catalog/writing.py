"""INSERT, writeTo and DELETE: the objects by which Spark writes to a stream of a table.

They accept any schema, and `weft.streams.catalog.stream_writes` matches the columns. Otherwise Spark would write NULL
to all columns that the statement does not name, but groups without such columns must not change.
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
    columns_of,
    delete_rows,
    is_by_position,
    match_columns,
)
from weft.streams.catalog.table_entry import describe_columns
from weft.streams.read.relation.callbacks import PlainTable, WithoutMetrics
from weft.streams.read.relation.pushed_filters import parse_predicate
from weft.streams.spark.sql_text import sql_name
from weft.streams.write.sink_task import HINT
from weft.streams.write.write_batch import write_batch

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_context import CatalogContext

_SUPPLIED: Final = "_supplied"
_ALWAYS_TRUE: Final = "ALWAYS_TRUE"
_QUERY_ID, _BATCH = "query_id", "batch"


def _ignored_rows_warning(count: int) -> str:
    rows_are, them, they_are_deletes = (
        ("1 row is", "it", "it is a delete") if count == 1 else (f"{count} rows are", "them", "they are deletes")
    )
    return (
        f"{rows_are} not stored: no column group of {them} has an ordering value, or {they_are_deletes} that the "
        "stream ignores"
    )


def table_for_write(
    catalog: CatalogContext, names: Sequence[str], privileges: frozenset[str], options: Mapping[str, str]
) -> StreamTable:
    """Build the `Table` to which Spark writes.

    Args:
        catalog: The catalog.
        names: The name in the statement: of a table, or of a stream of a table.
        privileges: Privileges that Spark requests: INSERT, DELETE, UPDATE.
        options: Options of the statement.

    Raises:
        InvalidInput: The statement is not supported, or does not name the stream to which it writes.
        NotFound: The table has no such stream.
    """
    try:
        table, part = catalog.lake.resolve(names)
    except NotFound:
        catalog.jvm.no_such_table(names)
    text, head, rest = catalog.jvm.statement()
    full_name = ".".join((catalog.name, *names))
    schema = catalog.lake.table(table).schema
    target = full_name if part or len(schema.streams) == 1 else f"{full_name}.<stream>"
    check_statement(text, full_name, privileges, target)
    if options.get("as_of") is not None:
        raise InvalidInput(f"{full_name}: an earlier state of a table cannot be written", hint="leave the time out")
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
    """A stream of a table as the target of one INSERT or DELETE."""

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
        # The columns have defaults, because Spark inserts them where a statement has DEFAULT.
        events = self._table_schema.event_schema(columns_of(self._table_schema, self._stream))
        columns = describe_columns(from_arrow_schema(events), self._table_schema)
        hidden = [StructField(OP_COLUMN, StringType()), StructField(_SUPPLIED, ArrayType(StringType()))]
        name = f"{table}.{self._stream.name}"
        super().__init__(catalog.jvm, f"weft stream {name} {by_position}", name, StructType([*columns.fields, *hidden]))

    def capabilities(self) -> Any:
        capabilities = self.jvm.HashSet()
        # BATCH_READ, because Spark plans a scan for a DELETE, although it does not run it.
        for name in ("BATCH_READ", "V1_BATCH_WRITE", "ACCEPT_ANY_SCHEMA"):
            capabilities.add(self.jvm.TableCapability.valueOf(name))
        if self._is_new:  # REPLACE TABLE AS SELECT empties the table that it has just created
            capabilities.add(self.jvm.TableCapability.TRUNCATE)
        return capabilities

    # INSERT -----------------------------------------------------------------------------------------------------------

    def newWriteBuilder(self, info: Any) -> Any:  # noqa: N802
        return Append(self, dict(info.options().asCaseSensitiveMap()))

    def append(self, frame: DataFrame, options: Mapping[str, str]) -> None:
        """Append a frame to the stream, as one commit.

        Args:
            frame: Rows with all or some columns of the stream.
            options: ``query_id`` and ``batch`` make the append idempotent, as in `weft.write_batch`.

        Raises:
            TableError: See `weft.write_batch`.
        """
        target_names = match_columns(self._table_schema, self._stream, frame.columns, by_position=self._by_position)
        target_types = {field.name: field.dataType for field in self._schema}
        key = self._table_schema.key
        columns = []
        # Columns that are matched by position may have equal names, so they get unique ones first.
        numbered = frame.toDF(*(f"c{number}" for number in range(len(target_names))))
        for name, source in zip(target_names, numbered.schema, strict=True):
            target_type = target_types[name]
            if not self.jvm.can_store(source.dataType, target_type):
                raise InvalidInput(
                    f"column {name!r} is {target_type.simpleString()}, not {source.dataType.simpleString()}",
                    hint=f"CAST it to {target_type.simpleString()} in the query",
                )
            column = sf.col(source.name)
            if source.dataType != target_type:
                column = _cast_key(column, target_type, name) if name in key else column.cast(target_type)
            columns.append(column.alias(name))
        batch = _parse_batch(options)
        try:
            commit = write_batch(
                numbered.select(*columns),
                self._table.uri,
                self._stream.name,
                batch=batch,
                storage_options=self._catalog.lake.storage_options,
            )
        except InvalidInput as error:
            # The original hint names a folder for dead letters, which a statement does not have.
            hint = (error.hint or "").replace(HINT, "leave such rows out with WHERE")
            raise InvalidInput(error.message, hint=hint) from error
        if commit.rows_ignored:
            logging.getLogger("weft").warning("%s: %s", self._name, _ignored_rows_warning(commit.rows_ignored))

    # DELETE -----------------------------------------------------------------------------------------------------------

    def newScanBuilder(self, _options: Any) -> Any:  # noqa: N802
        return NoScan(self)

    def canDeleteWhere(self, predicates: Any) -> bool:  # noqa: N802
        self._condition(predicates)
        return True

    def deleteWhere(self, predicates: Any, _options: Any = None) -> None:  # noqa: N802
        delete_rows(self._table, self._stream, self._condition(predicates))

    def _condition(self, predicates: Any) -> Condition:
        """Convert Spark's predicates on columns of the table to a condition.

        Raises:
            InvalidInput: A predicate cannot be converted, or there is no WHERE.
        """
        if all(predicate.name() == _ALWAYS_TRUE for predicate in predicates):
            self.truncateTable()
        conditions = []
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
            conditions.append(parsed.condition)
        return And(tuple(conditions))

    def truncateTable(self, _options: Any = None) -> bool:  # noqa: N802
        raise InvalidInput(
            f"DELETE of {self._name} without WHERE: all rows would be deleted",
            hint=f"to delete all rows, add WHERE {self._table_schema.key[0]} IS NOT NULL",
        )


class NoScan(
    WithoutMetrics, java=("org.apache.spark.sql.connector.read.ScanBuilder", "org.apache.spark.sql.connector.read.Scan")
):
    """The scan of a DELETE, which Spark plans but does not run."""

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
    """One INSERT. Spark asks for a builder, a write and a relation, which are all the same object."""

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


def _cast_key(column: Column, target: DataType, name: str) -> Column:
    """Cast a key column; fail for a value that the cast would change. Spark rounds numbers and drops a time of day."""
    cast = column.cast(target)
    text = sf.concat(
        sf.lit(f"key column {name!r}: "),
        column.cast("string"),
        sf.lit(f" is not a value of type {target.simpleString()}"),
    )
    return sf.when(cast.eqNullSafe(column), cast).otherwise(sf.raise_error(text).cast(target))


def _parse_batch(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Parse the query id and the batch number in the options of a statement; None without options.

    Raises:
        InvalidInput: Only one of the two options is set, another option is, or the batch is not a number.
    """
    values = {name.lower(): value for name, value in options.items()}
    unknown = sorted(values.keys() - {_QUERY_ID, _BATCH})
    if unknown:
        raise InvalidInput(f"option {unknown[0]!r} is unknown", hint=f"options: {_QUERY_ID}, {_BATCH}")
    if not values:
        return None
    number = values.get(_BATCH, "")
    if _QUERY_ID not in values or not number.isdecimal():
        raise InvalidInput(
            f"options {_QUERY_ID} and {_BATCH}: a text that names the query, and a number, go together",
            hint=f"write for example WITH ('{_QUERY_ID}' = 'nightly-load', '{_BATCH}' = '7')",
        )
    return values[_QUERY_ID], int(number)

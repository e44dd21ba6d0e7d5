"""``spark.read.format("weft")``: a table through Spark's plain Python data source.

It is for sessions in which `weft.streams.read.view` cannot create a view, such as Spark Connect. Spark does not tell
such a source which columns a query needs, so all are read. A DataFrame is not live: Spark keeps the plan of the first
query, so a loaded DataFrame, or an SQL view of it, always shows one fixed snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage import Snapshot, Table
from weft.storage.core.schema.state_columns import state_columns
from weft.storage.errors import InvalidInput
from weft.streams.read.catalog_table import merge_options, store_options, user_options
from weft.streams.read.change_stream import ChangeOptions, ChangeStreamReader, change_batch_reader, change_schema
from weft.streams.read.read_options import LOCATION_OPTIONS, ReadOptions, location_of
from weft.streams.read.relation.task_reader import TaskReader
from weft.streams.read.stream_mark import SOURCE, mark_streams
from weft.streams.spark.data_sources import register_source
from weft.streams.spark.for_workers import Source

_PARALLELISM = 16  # Spark does not tell a source how many tasks run in parallel; small file groups share a task anyway


def register(spark: SparkSession) -> None:
    """Register ``format("weft")`` in a session.

    Options: ``path`` (the table), ``storage_options`` (JSON, see `weft.streams.read.read_options.location_of`), those
    of `weft.streams.read.read_options.ReadOptions`, and for changes those of
    `weft.streams.read.change_stream.ChangeOptions`. In SQL: ``CREATE TEMPORARY VIEW v USING weft OPTIONS (path '...',
    ...)``, or ``CREATE TABLE``, see `weft.streams.read.catalog_table`.

    If weft is installed, Spark finds the format by itself (`pyspark_weft`). For streams without the option
    ``starting``, call this function or import weft after pyspark.
    """
    register_source(spark, WeftSource)
    mark_streams()


class WeftSource(Source):
    """The data source behind ``format("weft")``: snapshots, batches of changes and streams of changes."""

    _cut: str | None = None

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        options = user_options(self.options)
        changes = ChangeOptions.of(options)
        if changes is not None:
            return store_options(change_schema(_table(options), changes), self.options)
        snapshot = _read_options(options).snapshot(_table(options))
        # Spark pickles the source for planning: rows and columns must be those of one snapshot.
        self._cut = str(snapshot.cut)
        return store_options(from_arrow_schema(snapshot.schema), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        all_options = merge_options(schema, self.options)
        changes = ChangeOptions.of(all_options)
        if changes is not None:
            return change_batch_reader(_table(all_options), changes, schema)
        options, table = _read_options(all_options), _table(all_options)
        snapshot = options.snapshot(table) if self._cut is None else table.snapshot(self._cut)
        _check_columns(schema, snapshot)
        scan = snapshot.scan(
            schema.names,
            require=options.require,
            parallelism=_PARALLELISM,
            read_optimized=options.read_optimized,
        )
        return TaskReader(scan.without_tasks().read, scan.tasks, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = merge_options(schema, self.options)
        return ChangeStreamReader(location_of(options), ChangeOptions.of(options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        raise _no_target("weft.write_batch(df, uri, stream)")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        raise _no_target("weft.write_stream(df, uri, stream, checkpoint=...)")


def _read_options(options: Mapping[str, str]) -> ReadOptions:
    return ReadOptions.of({name: value for name, value in options.items() if name.lower() not in LOCATION_OPTIONS})


def _table(options: Mapping[str, str]) -> Table:
    location = location_of(options)
    return Table.open(location.uri, storage_options=location.storage_options)


def _check_columns(requested: StructType, snapshot: Snapshot) -> None:
    """Refuse a schema given by the user that does not fit the table.

    It may have fewer columns, in another order, and declare them nullable. It may name state columns
    (`weft.storage.core.schema.state_columns`); there is no other way to read those.
    """
    schema = snapshot.table_schema
    states = [column.field for column in state_columns(schema).values()]
    others = {name for reference in schema.references for name in reference.shown_names}
    # A missing referenced table is an error only if one of its columns is requested.
    columns = snapshot.schema if others.intersection(requested.names) else schema.arrow
    fields = {field.name: field for field in from_arrow_schema(pa.schema([*columns, *states]))}
    for field in requested:
        column = fields.get(field.name)
        if column is None:
            raise InvalidInput(
                f"the table has no column {field.name}", hint=f"columns: {', '.join([*schema.arrow.names, *others])}"
            )
        if field.dataType != column.dataType or (column.nullable and not field.nullable):
            null = "" if field.nullable else " NOT NULL"
            raise InvalidInput(
                f"column {field.name} is {column.dataType.simpleString()}, not {field.dataType.simpleString()}{null}",
                hint="leave out .schema(...), and cast the columns after loading",
            )


def _no_target(instead: str) -> InvalidInput:
    return InvalidInput(
        "format weft cannot write: only the writer of a lane can",
        hint=f"use {instead}; for CREATE TABLE and INSERT in SQL use a catalog of weft.register_catalog",
    )

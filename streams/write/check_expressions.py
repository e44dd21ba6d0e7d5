"""Checks the expressions of writers with Spark: `select`, `where`, and whether their types fit the table's columns.

Nothing is read, started or written: Spark only analyses the expressions over an empty DataFrame with the columns of the
source. Expressions are checked one by one, so that all wrong ones are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from weft.storage.core.merge.events import OP_COLUMN
from weft.storage.core.model import Stream
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.write.write_task import check_columns
from weft.streams import kafka
from weft.streams.kafka.kafka_source import columns as kafka_columns
from weft.streams.pipeline.file.check import key_of
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.spark.sql_text import quoted, spark_message
from weft.streams.write.decode_events import decode_events
from weft.streams.write.file_source import message_columns

_CONSTANT = "1"  # an expression that is always valid, to check a condition alone


def expression_problems(spark: SparkSession, writer: WriterSpec, schema: TableSchema | None) -> Iterator[InvalidInput]:
    """Yield all problems of the expressions of a writer.

    Args:
        spark: A session.
        writer: The writer.
        schema: Schema of the table; None if it is not known, then types are not compared.
    """
    where = f"writers.{writer.name}"
    try:
        rows = _rows(spark, writer)
        key = _key(writer, schema)
    except (PySparkException, InvalidInput) as error:
        yield InvalidInput(f"{where}.source: {_text(error)}", hint=getattr(error, "hint", ""))
        return
    if writer.message is not None and not isinstance(_type_of(rows, "value"), BinaryType | StringType):
        yield InvalidInput(
            f"{where}.source: messages need a column 'value' of type binary or string, and it has none",
            hint=f"remove schema, and select its columns: {', '.join(rows.columns)}",
        )
        return
    if writer.message is None:
        selected = writer.select or {name: quoted(name) for name in rows.columns}
    else:
        selected = writer.select or {name: quoted(name) for name in writer.message}
    section = "schema" if writer.select is None and writer.message is not None else "select"
    types: dict[str, pa.DataType] = {}
    for name, expression in selected.items():
        try:
            [field] = [item for item in _events(rows, writer, {name: expression}, None, key) if item.name == name]
            types[name] = to_arrow_type(field.dataType, timezone="UTC")
        except (PySparkException, InvalidInput) as error:
            yield _refusal(f"{where}.{section}.{name}", error)
    if writer.where is not None:
        try:
            _events(rows, writer, {"checked": _CONSTANT}, writer.where, key)
        except (PySparkException, InvalidInput) as error:
            yield _refusal(f"{where}.where", error)
    if schema is not None:
        try:
            stream = schema.stream(writer.stream)
        except NotFound:  # reported by `weft.streams.pipeline.file.check.writer_problems`
            return
        yield from column_problems(f"{where}.{section}", schema, stream, types)


def _rows(spark: SparkSession, writer: WriterSpec) -> DataFrame:
    """Create an empty DataFrame with the columns of the writer's source."""
    if writer.reader_format == kafka.FORMAT:
        headers = writer.reader_options.get("includeHeaders", "true") == "true"
        return spark.createDataFrame([], kafka_columns(include_headers=headers))
    if writer.file_format is not None:
        return spark.createDataFrame([], message_columns(writer.file_format))
    if writer.reader_schema is not None:
        return spark.createDataFrame([], writer.reader_schema)
    schema: StructType = spark.readStream.format(writer.reader_format).options(**writer.reader_options).load().schema
    return spark.createDataFrame([], schema)


def _type_of(rows: DataFrame, name: str) -> DataType | None:
    return next((field.dataType for field in rows.schema if field.name == name), None)


def _key(writer: WriterSpec, schema: TableSchema | None) -> Mapping[str, str] | None:
    if writer.tombstones != "delete" or schema is None:
        return writer.key
    try:
        return key_of(writer, schema)
    except InvalidInput:  # reported by `weft.streams.pipeline.file.check.writer_problems`
        return writer.key


def _events(
    rows: DataFrame, writer: WriterSpec, select: Mapping[str, str], where: str | None, key: Mapping[str, str] | None
) -> StructType:
    """Return the schema of the rows that the sink would get."""
    if writer.tombstones == "delete" and key is None:  # reported by `weft.streams.pipeline.file.check.writer_problems`
        writer = replace(writer, tombstones="ignore")
    try:
        return decode_events(rows, replace(writer, select=select, where=where), key).schema
    except Py4JJavaError as error:  # such as a StackOverflowError of Spark's parser
        reason = str(error.java_exception.getClass().getSimpleName())
        raise InvalidInput(f"Spark cannot read the expression: {reason}", hint="write it shorter") from None


def column_problems(
    where: str, schema: TableSchema, stream: Stream, types: Mapping[str, pa.DataType]
) -> Iterator[InvalidInput]:
    """Yield a problem for each column whose type does not fit the table.

    The check is the one of every batch: `weft.storage.write.write_task.check_columns`.

    Args:
        where: Prefix of the messages.
        schema: Schema of the table.
        stream: The stream that writes the columns.
        types: Types of columns; those that the stream does not write are left out.
    """
    # The check stops at the first problem, so each type is checked together with fitting types of the other columns.
    fitting = {name: schema.event_types[name] for name in schema.stream_columns(stream)}
    for name, column_type in types.items():
        if name not in fitting and name != OP_COLUMN:
            continue
        try:
            check_columns(pa.schema({**fitting, name: column_type}), schema, stream)
        except InvalidInput as error:
            yield InvalidInput(f"{where}.{name}: {error.message}", hint=error.hint)


def _refusal(where: str, error: PySparkException | InvalidInput) -> InvalidInput:
    hint = error.hint if isinstance(error, InvalidInput) else "write an SQL expression over the columns of the source"
    return InvalidInput(f"{where}: {_text(error)}", hint=hint)


def _text(error: PySparkException | InvalidInput) -> str:
    """Return the message of an error in one line, without the plan, and without the place, which the caller names."""
    if isinstance(error, InvalidInput):
        _, separator, rest = error.message.partition("Spark refuses ")
        return " ".join(f"Spark refuses {rest}".split()) if separator else error.message
    return " ".join(spark_message(error).split())

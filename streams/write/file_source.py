"""Files of a folder as messages, for backfills: JSON lines, CSV and Parquet, through Spark's file source.

Spark records in the checkpoint which files are in which batch, and the sink stores each batch once, so the rows of each
file are stored once. Files must be complete when they appear (move them into the folder), and must not change later. A
new file is read in the next batch, or, with ``weft run --once``, by the next run.

Each row becomes a message with the columns of a Kafka source, so `select`, `where` and dead letters work as for Kafka:

    value      the row as JSON text; for a JSON file the unchanged line
    topic      URL of the file
    offset     number of the row in a Parquet file, from 0; NULL for other formats, for which Spark does not know it
    timestamp  when the file was modified

A line of a CSV file that does not have the declared fields is *unreadable*: its dead letter has the line as value.
"""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import DataType, StringType, StructField, StructType

from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.spark.sql_text import quoted
from weft.streams.write.decode import UNREADABLE

NOT_THE_FIELDS: Final = "the line does not have the declared fields and types"
_LINE: Final = "__weft_line"
# With microseconds; Spark's default format has milliseconds.
_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def message_columns(file_format: str) -> str:
    """Return the columns of `read_files` as DDL."""
    unreadable = f", {UNREADABLE} string" if file_format == "csv" else ""
    return f"topic string, offset bigint, timestamp timestamp, value string{unreadable}"


def read_files(spark: SparkSession, writer: WriterSpec) -> DataFrame:
    """Create a streaming DataFrame of the rows of files, as messages.

    Args:
        spark: The session.
        writer: A writer with a source of files.

    Raises:
        InvalidInput: An option is wrong, the folder does not exist, or a type is not one of Spark.
    """
    assert writer.message is not None, "checked with the pipeline file"
    reader = spark.readStream.format(writer.reader_format).options(**writer.reader_options)
    if writer.file_format != "json":
        fields = StructType([StructField(name, DataType.fromDDL(kind)) for name, kind in writer.message.items()])
        if writer.file_format == "csv":
            fields = fields.add(_LINE, StringType())
            # enforceSchema=false compares a header with the declared fields; by default Spark only skips it. RFC 4180
            # escapes a quote within quotes by another quote; Spark's default is a backslash.
            defaults = {"enforceSchema": "false", "escape": '"'}
            names = {name.lower() for name in writer.reader_options}
            reader = reader.options(**{name: value for name, value in defaults.items() if name.lower() not in names})
            reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=_LINE)
        reader = reader.schema(fields)
    try:
        rows = reader.load()
    except PySparkException as error:
        raise InvalidInput(
            f"writers.{writer.name}.source: {str(error).partition(chr(10))[0]}", hint="check path and options"
        ) from None
    number = F.col("_metadata.row_index") if writer.file_format == "parquet" else F.lit(None)
    columns = [
        F.col("_metadata.file_path").alias("topic"),
        number.cast("bigint").alias("offset"),
        F.col("_metadata.file_modification_time").alias("timestamp"),
    ]
    if writer.file_format == "json":
        # Empty lines are not rows.
        return rows.where(F.trim("value") != "").select(*columns, "value")
    text = F.to_json(F.struct(*(F.col(quoted(name)) for name in writer.message)), _JSON)
    if writer.file_format == "parquet":
        return rows.select(*columns, text.alias("value"))
    bad = F.col(_LINE).isNotNull()
    value = F.when(bad, F.col(_LINE)).otherwise(text)
    return rows.select(*columns, value.alias("value"), F.when(bad, NOT_THE_FIELDS).alias(UNREADABLE))

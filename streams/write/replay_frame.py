"""Dead letters as DataFrames: their messages, for a replay, and their fields, for conditions in SQL."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from weft.storage import Table
from weft.storage.errors import InvalidInput
from weft.storage.store.object_store import ObjectStore
from weft.storage.write.write_task import WriteTicket
from weft.streams.kafka.fetch import HEADERS, SCHEMA
from weft.streams.letters.letter_files import Letter, read_letters, stored_bytes
from weft.streams.letters.plans import Plan, Span, in_spans
from weft.streams.pipeline.file.check import check_deletes, exact_fields, key_of
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.spark.for_workers import for_workers
from weft.streams.spark.sql_text import spark_message
from weft.streams.write.dead_letter import DeadLetters
from weft.streams.write.decode_events import decode_events
from weft.streams.write.left_out import partial_columns
from weft.streams.write.replay import Choose, Run, replayable
from weft.streams.write.sink import check_columns, run_tasks
from weft.streams.write.sink_task import TaskReport

_NAMES: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
MESSAGES: Final = pa.schema([*(SCHEMA.field(name) for name in _NAMES), HEADERS])
"""Columns of the messages of letters, as a Kafka source has them."""
_FIELDS: Final = pa.schema(
    [
        pa.field("reason", pa.string()),
        *(MESSAGES.field(name) for name in ("topic", "partition", "offset", "timestamp")),
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("schema_id", pa.int32()),
        pa.field("written_at", pa.timestamp("us", tz="UTC")),
        pa.field("query_id", pa.string()),
        pa.field("batch", pa.int64()),
        pa.field("task", pa.int32()),
        pa.field("letter", pa.string()),
        pa.field("__weft_number", pa.int64()),
    ]
)
_ROWS: Final = 1_000  # letters that are in memory as Python objects at the same time


def spark_run(spark: SparkSession, table: Table, writer: WriterSpec, store: ObjectStore) -> Run:
    """Return the function that writes the letters of a plan with Spark, through the pipeline of a writer.

    Args:
        spark: The session.
        table: The table.
        writer: The writer; it decodes messages.
        store: The folder of dead letters.

    Raises:
        InvalidInput: The writer does not decode messages, or an expression or a type of it is wrong.
    """
    if writer.message is None:
        raise InvalidInput(
            f"writers.{writer.name}: its dead letters contain rows of the source, which cannot be replayed",
            hint="correct the rows in their source; only letters of a writer with a schema can be replayed",
        )
    key = writer.key
    schema = table.schema
    stream = schema.stream(writer.stream)
    if writer.tombstones == "delete":
        check_deletes(writer, stream, schema)
        key = key_of(writer, schema)
    partial, exact = partial_columns(schema, stream), exact_fields(writer, schema)

    def decoded(letters: Mapping[str, Sequence[Span]]) -> DataFrame:
        return decode_events(messages_frame(spark, store, letters), writer, key, partial=partial, exact=exact)

    check_columns(decoded({}), table, writer.stream)  # so that no plan is made if the check fails

    def run(plan: Plan, ticket: WriteTicket, letters: DeadLetters) -> Sequence[TaskReport]:
        return run_tasks(decoded(plan.letters), ticket, letters)

    return run


def messages_frame(spark: SparkSession, store: ObjectStore, letters: Mapping[str, Sequence[Span]]) -> DataFrame:
    """Return the messages of letters, with the columns `MESSAGES`, in the order of files and lines; tasks read them.

    Args:
        spark: The session.
        store: The folder.
        letters: Lines by file. Files that do not exist have no letters.
    """
    files = [(file, json.dumps([list(span) for span in spans])) for file, spans in letters.items()]
    return spark.createDataFrame(files, "file string, spans string").mapInArrow(
        for_workers(_message_reader(store)), from_arrow_schema(MESSAGES)
    )


def _message_reader(store: ObjectStore) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file, spans in zip(batch["file"].to_pylist(), _spans(batch["spans"]), strict=True):
                letters = (letter for letter in read_letters(store, file) if in_spans(spans, letter.line))
                for part in _chunks(letters):
                    yield pa.RecordBatch.from_pylist([message_of(letter) for letter in part], schema=MESSAGES)

    return read


def _spans(texts: pa.Array) -> list[list[Span]]:
    """Parse the line ranges of letters from JSON."""
    return [[(first, last) for first, last in json.loads(text)] for text in texts.to_pylist()]


def _chunks(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    every = iter(letters)
    while part := list(itertools.islice(every, _ROWS)):
        yield part


def message_of(letter: Letter) -> dict[str, Any]:
    """Convert a letter to a row of `MESSAGES`."""
    content = letter.content
    headers = content.get("headers")
    return {
        **{name: content.get(name) for name in ("topic", "partition", "offset")},
        "timestamp": _time(content.get("timestamp_ms")),
        "key": letter.data("key"),
        "value": letter.data("value"),
        "headers": None
        if headers is None
        else [{"key": header["key"], "value": stored_bytes(header["value"], header["encoding"])} for header in headers],
    }


def _time(time_ms: int | None) -> dt.datetime | None:
    return None if time_ms is None else dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=time_ms)


def choose_where(spark: SparkSession, where: str) -> Choose:
    """Return a function that chooses the letters that can be replayed and for which an SQL condition is true."""
    return lambda survey: letters_where(spark, replayable(survey), where)


def letters_where(spark: SparkSession, letters: Iterable[Letter], where: str) -> Iterator[Letter]:
    """Yield the letters for which an SQL condition is true.

    Args:
        spark: The session.
        letters: The letters; at most a thousand are in memory at the same time.
        where: The condition, over ``reason``, ``topic``, ``partition``, ``offset``, ``timestamp``, ``key`` and
            ``value`` (texts; base64 if they are not UTF-8), ``headers`` (a map of texts), ``schema_id``,
            ``written_at``, ``query_id``, ``batch``, ``task`` and ``letter`` (its name).

    Raises:
        InvalidInput: Spark refuses the condition, or it fails for a letter.
    """
    check_condition(spark, where)
    for part in _chunks(letters):
        rows = [{**_fields(letter), "__weft_number": number} for number, letter in enumerate(part)]
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_FIELDS))
        try:
            matches = frame.where(F.expr(where)).select("__weft_number").collect()
        except PySparkException as error:
            raise _refusal(where, error) from None
        yield from (part[number] for number in sorted(row[0] for row in matches))


def check_condition(spark: SparkSession, where: str) -> None:
    """Check a condition for `letters_where`.

    Raises:
        InvalidInput: Spark refuses it.
    """
    try:
        _ = spark.createDataFrame(_FIELDS.empty_table()).where(F.expr(where)).schema
    except PySparkException as error:
        raise _refusal(where, error) from None


def _refusal(where: str, error: PySparkException) -> InvalidInput:
    names = ", ".join(name for name in _FIELDS.names if not name.startswith("__"))
    return InvalidInput(
        f"--where: Spark refuses the condition {where!r}: {spark_message(error)}",
        hint=f"write an SQL condition over: {names}",
    )


def _fields(letter: Letter) -> dict[str, Any]:
    content, headers = letter.content, letter.content.get("headers")
    return {
        **{name: content.get(name) for name in ("reason", "topic", "partition", "offset", "key", "value", "schema_id")},
        **{name: content.get(name) for name in ("query_id", "batch", "task")},
        "timestamp": _time(content.get("timestamp_ms")),
        "written_at": _time(content.get("written_at_ms")),
        "headers": None if headers is None else [(header["key"], header["value"]) for header in headers],
        "letter": letter.name,
    }

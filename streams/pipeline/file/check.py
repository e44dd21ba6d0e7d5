"""Checks the writers and sections of a pipeline file against the schema of its table. Errors name the field."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from weft.storage.config.config_file import errors_at
from weft.storage.core.model import Stream
from weft.storage.core.plan.watermarks import check_lateness
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.publish.publication import columns_to_publish
from weft.storage.services.inspect.references import ReferenceReport
from weft.streams.pipeline.file.file_problems import WrongFile
from weft.streams.pipeline.file.model import Pipeline, PublishSection, WriterSpec

KAFKA: Final = "_kafka"
"""Name of the struct with which `select` and `where` see topic, partition, offset, timestamp, key and headers."""
KEY: Final = "_key"
"""Name of the struct with the decoded Kafka key, if its fields are declared."""

_RETENTION_TOLERANCE: Final = dt.timedelta(hours=1)
"""A referenced table may keep its snapshots for this much less, because services of two tables do not clean at the same
moment."""
_RESERVED_COLUMNS: Final = ("_op", "_supplied")  # a select may have these besides the columns of the stream


def check_writers(pipeline: Pipeline, schema: TableSchema) -> None:
    """Check that each writer's stream exists in the table and that its `select` gives columns of this stream.

    Raises:
        WrongFile: A stream does not exist, or a column is missing or unknown; the message names every such field.
    """
    problems = [problem for writer in pipeline.writers.values() for problem in writer_problems(writer, schema)]
    if problems:
        raise WrongFile(pipeline.path, problems)


def writer_problems(writer: WriterSpec, schema: TableSchema) -> Iterator[InvalidInput]:
    """Problems of a writer; `check_writers` raises them."""
    streams: dict[str, Stream] = {stream.name: stream for stream in schema.streams}
    stream = streams.get(writer.stream)
    if stream is None:
        yield InvalidInput(
            f"writers.{writer.name}.stream: the table has no stream {writer.stream!r}",
            hint=f"choose one of {', '.join(streams)}; the default is the name of the writer",
        )
        return
    yield from _select_problems(writer, stream, schema)
    yield from refusal("", _check_updates, writer, stream, schema)
    where = f"writers.{writer.name}."
    if writer.tombstones == "delete":
        yield from refusal(where, check_deletes, writer, stream, schema)
    if writer.lateness is not None:
        yield from refusal(where, check_lateness, writer.lateness, schema, stream)


def ttl_problems(pipeline: Pipeline, schema: TableSchema) -> Iterator[InvalidInput]:
    """Settings that do not fit the time to live of the table. They are warnings: the pipeline runs all the same."""
    if schema.ttl is None:
        if pipeline.ttl is not None:
            yield InvalidInput(
                "ttl: the table has no time to live, so the service has nothing to do",
                hint="set one with weft alter set-ttl URI (a new table: in table.config.ttl), or remove the section",
            )
        return
    if pipeline.ttl is None:
        yield InvalidInput(
            "table.uri: the table has a time to live, and no service of the file applies it",
            hint="add ttl: true, unless weft services or weft apply-ttl does it",
        )
    times = {"rows": schema.ttl.rows_ms, "deletes": schema.ttl.deletes_ms}
    for writer in pipeline.writers.values():
        if not isinstance(writer.lateness, dt.timedelta):
            continue
        for what, kept_ms in times.items():
            if kept_ms is not None and writer.lateness > dt.timedelta(milliseconds=kept_ms):
                yield InvalidInput(
                    f"writers.{writer.name}.lateness: {writer.lateness} is longer than the table's ttl.{what}, "
                    f"{dt.timedelta(milliseconds=kept_ms)}: an event may arrive after its row or delete was removed",
                    hint=f"make ttl.{what} longer (weft alter set-ttl URI), or the lateness shorter",
                )


def publish_problems(section: PublishSection | None, schema: TableSchema | None) -> Iterator[InvalidInput]:
    """Problems of the section ``publish``.

    Args:
        section: The section; None if the file has none.
        schema: Schema of the table; None if it is not known.
    """
    if section is None:
        return
    if not section.targets:
        yield InvalidInput("publish: names no format", hint="add iceberg: {table: NAMESPACE.TABLE}, or delta: true")
    for name, target in (("iceberg", section.iceberg), ("delta", section.delta)):
        if target is not None and schema is not None:
            try:
                columns_to_publish(schema, target.columns)
            except (InvalidInput, NotFound) as error:
                yield InvalidInput(f"publish.{name}.columns: {error.message}", hint=error.hint)
            if schema.overlays and target.columns is None:
                yield InvalidInput(
                    f"publish.{name}: the table may have overlays, and columns with newer values in an overlay cannot "
                    "be published",
                    hint="weft alter set-overlays URI false, or list columns of groups without overlays",
                )


def reference_problems(pipeline: Pipeline, reports: Sequence[ReferenceReport]) -> Iterator[InvalidInput]:
    """Problems of references, and referenced tables that keep their snapshots for a shorter time than the file says."""
    for report in reports:
        if report.problem:
            yield InvalidInput(f"table.config.{report.problem}", hint=report.hint)
        elif pipeline.clean is not None and report.kept_since_ms is not None:
            missing = dt.timedelta(seconds=pipeline.clean.retain) - (
                dt.datetime.now(dt.UTC) - dt.datetime.fromtimestamp(report.kept_since_ms / 1000, dt.UTC)
            )
            if missing > _RETENTION_TOLERANCE:
                since = dt.datetime.fromtimestamp(report.kept_since_ms / 1000, dt.UTC)
                yield InvalidInput(
                    f"clean.retain: {report.table} keeps its snapshots only since {since:%Y-%m-%d %H:%M:%S} UTC: older "
                    f"snapshots of the table cannot show reference {report.name!r}",
                    hint="clean the referenced table with the same retain or a longer one; savepoints and pins keep "
                    "what they need in all tables",
                )


def refusal(where: str, check: Callable[..., object], *arguments: object) -> Iterator[InvalidInput]:
    """The error of a check, if it refuses its arguments. ``where`` is put before its message."""
    try:
        with errors_at(where):
            check(*arguments)
    except InvalidInput as error:
        yield error


def _select_problems(writer: WriterSpec, stream: Stream, schema: TableSchema) -> Iterator[InvalidInput]:
    where = f"writers.{writer.name}.{'schema' if writer.select is None else 'select'}"
    selected = writer.message if writer.select is None else writer.select
    if selected is None:
        return  # all columns of the source: the sink checks them once Spark knows them
    columns = schema.stream_columns(stream)
    for name in selected:
        if name not in columns and name not in _RESERVED_COLUMNS:
            yield InvalidInput(
                f"{where}.{name}: stream {writer.stream!r} has no such column",
                hint=f"choose one of its columns: {', '.join((*columns, '_op'))}",
            )
    for key in schema.key:
        if key not in selected:
            yield InvalidInput(f"{where}: key column {key!r} is missing", hint=f"add {key}: <expression>")
    for group in (schema.group_by_name[name] for name in stream.groups):
        expected = [name for name in group.columns if name not in schema.added or name in selected]
        absent = [name for name in expected if name not in selected]
        if absent and len(absent) < len(expected):
            yield InvalidInput(
                f"{where}: group {group.name!r} is incomplete: {', '.join(absent)} is missing",
                hint="select all columns of a group or none; NULL is an expression too",
            )


def _check_updates(writer: WriterSpec, stream: Stream, schema: TableSchema) -> None:
    """Check that updates of Debezium do not go to aggregates, which would count a row again with each update."""
    if not writer.message_format.startswith("debezium"):
        return
    columns = writer.message if writer.select is None else writer.select
    if "_debezium" in (writer.where or "") or (columns and "_op" in columns):
        return  # the user decides which events count
    for group in (schema.group_by_name[name] for name in stream.groups):
        if group.merge == "aggregate" and columns and set(group.columns) & set(columns):
            raise InvalidInput(
                f"writers.{writer.name}: each update of a row would be added to the aggregates of group {group.name!r}",
                hint="choose events, for example where: _debezium.op IN ('c', 'r'); or give the group another "
                "mode (guide: deploy/docs/modelling.md#merge-modes)",
            )


def check_deletes(writer: WriterSpec, stream: Stream, schema: TableSchema) -> None:
    """Check that tombstones can become deletes, for which their key and their ordering value must be known.

    Raises:
        InvalidInput: One of them is not known, or the stream ignores deletes.
    """
    if stream.on_delete == "ignore":
        raise InvalidInput(
            f"tombstones: stream {stream.name!r} ignores deletes (on_delete: ignore)", hint="remove tombstones"
        )
    key_of(writer, schema)
    columns = writer.message if writer.select is None else writer.select
    groups = [schema.group_by_name[name] for name in stream.groups]
    written = [group for group in groups if columns and set(group.columns) & set(columns)]
    if not all(group.ordering for group in written):
        return  # a delete in commit order needs no ordering value
    ordering = [name for group in written for name in group.ordering]
    expressions = {} if writer.select is None else writer.select
    if not any(KAFKA in expressions.get(name, "") or KEY in expressions.get(name, "") for name in ordering):
        name = ordering[0]
        raise InvalidInput(
            f"tombstones: a delete needs a value for {' or '.join(ordering)}, and the message of a tombstone has none",
            hint=f"take one from Kafka, in select: {name}: coalesce({expressions.get(name, name)}, {KAFKA}.timestamp); "
            f"an integer: unix_millis({KAFKA}.timestamp), or {KAFKA}.offset",
        )


def key_of(writer: WriterSpec, schema: TableSchema) -> Mapping[str, str] | None:
    """Fields of the Kafka key for `weft.streams.write.decode.decode_messages`; None if the key is not decoded.

    A writer that turns tombstones into deletes and declares no ``key`` uses the fields of the message that are the
    table's key columns. A key column may also be an expression over ``_kafka``.

    Raises:
        InvalidInput: A key column is an expression over fields of the message, so its name in the Kafka key is not
            known; or it uses no field of the declared ``key``, so a tombstone would not name a row.
    """
    if writer.tombstones != "delete":
        return writer.key
    message, fields = writer.message or {}, {}
    for column in schema.key:
        expression = column if writer.select is None else writer.select.get(column, column)
        if writer.key is not None:
            used = {KEY, KAFKA, *(name for name in writer.key if name in message)}
            if not any(re.search(rf"\b{re.escape(name)}\b", expression) for name in used):
                first = next(iter(writer.key))
                raise InvalidInput(
                    f"tombstones: {column} uses no field of the Kafka key, so a message without a value has none",
                    hint=f"use one in select: {column}: coalesce({expression}, {KEY}.{first})",
                )
            continue
        name = expression.strip().strip("`")
        if name in message:
            fields[name] = message[name]
        elif KAFKA not in expression:
            raise InvalidInput(
                f"tombstones: cannot tell which field of the Kafka key is {column}: {expression!r} is not a field of "
                "the message",
                hint=f"declare the fields of the Kafka key, key: {{id: bigint}}, and use them in select: "
                f"{column}: coalesce({expression}, {KEY}.id)",
            )
    return writer.key or fields or None


def exact_fields(writer: WriterSpec, schema: TableSchema) -> frozenset[str]:
    """Fields of the message that the key columns of the table use. Decoding must not round their values."""
    select = writer.select or {}
    keys = " ".join(select.get(column, column) for column in schema.key)
    return frozenset(
        name for name in writer.message or {} if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", keys, re.IGNORECASE)
    )

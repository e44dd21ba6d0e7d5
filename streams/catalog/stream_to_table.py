"""``df.writeStream.toTable("weft.shop.orders_wide.payments")`` calls `weft.write_stream` for a stream of a table.

Spark's own `toTable` needs a writer in the JVM for each task. So this module replaces the method in PySpark for names
in catalogs of weft. It takes the options, trigger, name and output mode from Spark's stream writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from weft.storage.errors import InvalidInput
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.registered_lakes import registered_lakes
from weft.streams.catalog.stream_writes import choose_stream
from weft.streams.pipeline.file.model import OnError
from weft.streams.spark.patch_method import patch_method
from weft.streams.write.sink import write_stream

_MARK: Final = "weft_streams"
_CHECKPOINT: Final = "checkpointlocation"
_NAME: Final = "queryname"
_LATENESS, _DEAD_LETTER, _ON_ERROR = "lateness", "dead_letter", "on_error"
_OPTIONS: Final = {
    _CHECKPOINT: "checkpointLocation",
    _NAME: "queryName",
    **{name: name for name in (_LATENESS, _DEAD_LETTER, _ON_ERROR)},
}


def route_streams() -> None:
    """Patch `toTable` to start a query of weft for names in its catalogs. A second call does nothing."""
    patch_method(DataStreamWriter, "toTable", _MARK, _route)


def _route(
    plain: Callable[..., StreamingQuery],
    writer: DataStreamWriter,
    /,
    tableName: str,  # noqa: N803 - Spark's name
    *arguments: Any,
    **options: Any,
) -> StreamingQuery:
    spark = writer._spark  # noqa: SLF001 - PySpark has no public form
    lakes = registered_lakes(spark)
    if lakes:
        jvm = CatalogJvm.connect(spark)
        first, *names = jvm.parse_name(tableName)
        if first in lakes and names:
            return _start(jvm, writer, lakes[first], first, tuple(names), arguments, options)
    return plain(writer, tableName, *arguments, **options)


def _start(
    jvm: CatalogJvm,
    writer: DataStreamWriter,
    lake: Lake,
    catalog: str,
    names: tuple[str, ...],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> StreamingQuery:
    """Start the query of a call of `toTable`.

    Args:
        jvm: The session.
        writer: The stream writer.
        lake: The folder of tables.
        catalog: Name of the catalog.
        names: The name inside of the catalog.
        arguments: Positional arguments after the name.
        options: Keyword arguments.

    Raises:
        InvalidInput: An option is unknown or missing, or the output mode is not append.
        TableError: See `weft.write_stream`.
    """
    named = dict(zip(("format", "outputMode", "partitionBy", "queryName"), arguments, strict=False)) | options
    for argument in ("format", "partitionBy"):
        if named.pop(argument, None) is not None:
            raise InvalidInput(f"toTable: {argument} is not for tables of weft", hint=f"leave {argument} out")
    settings = jvm.stream_settings(writer)
    mode = str(named.pop("outputMode", None) or settings.output_mode)
    if mode.lower() != "append":
        raise InvalidInput(f"toTable: output mode {mode} is not supported", hint="use append: each row is an event")
    values = {key.lower(): str(value) for key, value in {**settings.options, **named}.items() if value is not None}
    for option in values:
        if option not in _OPTIONS:
            hint = f"options: {', '.join(_OPTIONS.values())}"
            raise InvalidInput(f"toTable: option {option!r} is unknown", hint=hint)
    table, part = lake.resolve(names)
    stream = choose_stream(lake.table(table).schema, ".".join((catalog, *table)), part)
    if _CHECKPOINT not in values:
        raise InvalidInput(
            "toTable: option checkpointLocation is missing",
            hint="give a folder that is kept when the query ends; each query needs its own",
        )
    return write_stream(
        writer._df,  # noqa: SLF001 - PySpark has no public form
        lake.location(table),
        stream.name,
        checkpoint=values[_CHECKPOINT],
        trigger=settings.trigger,
        once=settings.once,
        query_name=values.get(_NAME),
        lateness=values.get(_LATENESS),
        dead_letter=values.get(_DEAD_LETTER),
        on_error=cast("OnError", values.get(_ON_ERROR, "dead_letter")),  # checked by write_stream
        storage_options=lake.storage_options,
    )

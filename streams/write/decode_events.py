"""Decodes messages with the settings of a pipeline's writer: for its query, for replays, and for checks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from pyspark.sql import DataFrame

from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.spark.sql_text import quoted
from weft.streams.write.decode import decode_messages


def decode_events(
    rows: DataFrame,
    writer: WriterSpec,
    key: Mapping[str, str] | None,
    *,
    partial: AbstractSet[str] = frozenset(),
    exact: AbstractSet[str] = frozenset(),
) -> DataFrame:
    """Decode messages with the settings of a writer, with the column `weft.streams.write.dead_letter.SOURCE`.

    If the writer has no message schema, the rows of the source are events already, and there is no such column.

    Args:
        rows: The rows of the source.
        writer: The writer.
        key: Fields of the Kafka key, from `weft.streams.pipeline.file.check.key_of`.
        partial: From `weft.streams.write.left_out.partial_columns`, for a format other than JSON.
        exact: From `weft.streams.pipeline.file.check.exact_fields`.

    Raises:
        InvalidInput: See `decode_messages`.
    """
    if writer.message is None:
        if writer.where is not None:
            rows = rows.where(writer.where)
        if writer.select is not None:
            rows = rows.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in writer.select.items()))
        return rows
    return decode_messages(
        rows,
        writer.message,
        message_format=writer.message_format,
        format_options=writer.format_options,
        key_format=writer.key_format,
        registry=writer.registry,
        select=writer.select,
        where=writer.where,
        keep_source=True,
        tombstones=writer.tombstones,
        key=key,
        partial=partial,
        exact=exact,
    )

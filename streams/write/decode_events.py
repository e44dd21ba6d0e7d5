"""Decodes messages as a writer of a pipeline does: for its query, for replays of dead letters, and to check it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from pyspark.sql import DataFrame

from streams.pipeline.model import WriterSpec
from streams.write.decode import decode_messages


def decode_events(
    rows: DataFrame,
    writer: WriterSpec,
    key: Mapping[str, str] | None,
    *,
    select: Mapping[str, str] | None = None,
    where: str | None = None,
    partial: AbstractSet[str] = frozenset(),
) -> DataFrame:
    """Decode messages as a writer of a pipeline does, with the column `streams.write.dead_letter.SOURCE`.

    Args:
        rows: The messages.
        writer: The writer; it has a message schema.
        key: Fields of the Kafka key, from `streams.pipeline.check.key_of`.
        select: Instead of ``select`` and ``where`` of the writer, if given.
        where: The condition then.
        partial: From `streams.write.left_out.partial_columns`, for a format other than JSON.

    Raises:
        InvalidInput: See `decode_messages`.
    """
    assert writer.message is not None, "the caller has checked this"
    return decode_messages(
        rows,
        writer.message,
        message_format=writer.message_format,
        format_options=writer.format_options,
        key_format=writer.key_format,
        registry=writer.registry,
        select=writer.select if select is None else select,
        where=writer.where if select is None else where,
        keep_source=True,
        tombstones=writer.tombstones,
        key=key,
        partial=partial,
    )

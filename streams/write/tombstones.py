"""Tombstones: messages without a value. How a writer handles them, and how the Kafka key names the row to delete.

In a compacted topic a null value deletes its key. Debezium also sends a tombstone after every delete event, only so
that the topic removes the key. There are three ways to handle tombstones; the first is the default:

    ignore        the message is skipped, and counted
    delete        the message is decoded from its key, and deletes that row
    dead_letter   the message counts as undecodable

With ``delete`` the message has the fields of its key, all other fields are NULL, and ``_op`` is ``delete``. `select`
and `where` are applied as to any other message, with two differences. `where` drops a tombstone only if the condition
is false, not if it is NULL because fields are missing, so that no delete is lost by accident. And an ordering column
needs an expression that has a value for tombstones, for example ``coalesce(ts, _kafka.timestamp)``.

Unless the key has another format, it is a JSON object, a single value (a JSON value, or any text for a string), or
either of them in the envelope ``{"schema": ..., "payload": ...}`` of Kafka Connect. It identifies a row, so it is not
changed: a text keeps its spaces, and a number with more digits than its type is not a valid key.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from weft.streams.formats.json_reader import read_json
from weft.streams.formats.message_format import MessageFormat

__all__ = ["DECODED_KEY", "KEY_REASON", "NO_KEY", "add_key"]

DECODED_KEY: Final = "__weft__key"
KEY_REASON: Final = "__weft_key_reason"
NO_KEY: Final = "the message has no value (a tombstone), and its key does not name a row to delete"


def add_key(rows: DataFrame, raw: Column, key: StructType, key_format: MessageFormat | None) -> DataFrame:
    """Add the columns `DECODED_KEY`, NULL if the key cannot be decoded, and `KEY_REASON`, the reason for that.

    Args:
        rows: Rows of a source.
        raw: The key of a row; NULL if it is not needed.
        key: Fields of the key.
        key_format: Format of the key. None for the JSON forms above, with which `KEY_REASON` is always NULL.
    """
    if key_format is None:

        def read(parsed: Column) -> Column:
            return F.struct(parsed["value"].alias(DECODED_KEY), F.lit(None).cast("string").alias(KEY_REASON))

        return rows.select("*", F.inline(F.transform(F.array(read_json(raw, key, is_key=True)), read)))

    def decode(parsed: Column) -> Column:
        reason = F.when(raw.isNotNull(), key_format.reason(parsed, raw, key)).cast("string")
        key_value = F.when(raw.isNotNull() & reason.isNull(), key_format.message(parsed))
        return F.struct(key_value.alias(DECODED_KEY), reason.alias(KEY_REASON))

    return rows.select("*", F.inline(F.transform(F.array(key_format.parse(raw, key)), decode)))

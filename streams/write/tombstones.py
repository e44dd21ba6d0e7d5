"""Tombstones: messages without a value. How a writer handles them, and how the Kafka key names the row to delete.

In a compacted topic a null value deletes its key. Debezium also sends one after every delete event, only so that the
topic removes the key. There are three ways to handle them; the first is the default:

    ignore        the message is skipped, and counted
    delete        the message is decoded from its key, and deletes that row
    dead_letter   the message counts as undecodable

With ``delete`` the message has the fields of its key, all other fields are NULL, and ``_op`` is ``delete``. `select`
and `where` are applied as to any other message, with two differences. `where` drops a tombstone only if the condition
is false, not if it is unknown because fields are missing, so that no delete is lost by accident. And an ordering column
needs an expression that has a value for tombstones, for example ``coalesce(ts, _kafka.timestamp)``.

A key is a JSON object, a single value (a JSON value, or any text for a string), or either of them in the envelope
``{"schema": ..., "payload": ...}`` of Kafka Connect.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import DataType, StringType, StructField, StructType

from streams.formats.json_value import CORRUPT, ROOT, first_value, is_one_value, parse

__all__ = ["NO_KEY", "decode_key"]

NO_KEY: Final = "the message has no value (a tombstone), and its key does not name a row to delete"

_ENVELOPE: Final = ("schema", "payload")


def decode_key(raw: Column, fields: StructType) -> Column:
    """The Kafka key as a struct of ``fields``; NULL if it does not have this form.

    Args:
        raw: The key of the message, binary or text.
        fields: At least one. If there is exactly one, the key may also be its value instead of a JSON object.
    """
    given = raw.cast("string")
    text = F.when(F.is_valid_utf8(given), F.trim(given))
    if not set(_ENVELOPE) & set(fields.names):
        envelope = _parse(text, StructType([StructField(name, StringType()) for name in _ENVELOPE]))
        inner = F.when(text.startswith("{") & envelope["schema"].isNotNull(), envelope["payload"])
        text = F.coalesce(inner, text)
    decoded = F.when(text.startswith("{"), _parse(text, fields))
    if len(fields) > 1:
        return decoded
    [only] = fields
    value = _parse(text, only.dataType)
    if isinstance(only.dataType, StringType):
        value = F.when(text.startswith('"'), value).otherwise(text)
    return decoded.otherwise(F.when(value.isNotNull(), F.struct(value.alias(only.name))))


def _parse(text: Column, kind: DataType) -> Column:
    """A JSON value; NULL where the text is not exactly one, or not of that type."""
    parsed = parse(text, kind)
    return F.when(parsed[CORRUPT].isNull() & is_one_value(parsed[ROOT]), first_value(parsed[ROOT]))

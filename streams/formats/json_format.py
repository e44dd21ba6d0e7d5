"""JSON: the value is the UTF-8 text of exactly one JSON object.

Spark's JSON reader converts the values: fields that are not declared are ignored, declared fields that are missing are
NULL (names are case-sensitive), decimals are rounded to the declared scale, numbers are accepted for strings but not
the reverse, and a number for a timestamp is in seconds.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import MapType, StringType, StructField, StructType

from streams.formats.json_value import CORRUPT, ROOT, first_value, is_one_value, parse
from streams.formats.message_format import MessageFormat

NOT_UTF8: Final = "the value is not UTF-8"
NOT_AN_OBJECT: Final = "the value is not one JSON object"
WRONG_TYPE: Final = "a field of the value does not have its declared type"
"""Where a part of a field, such as an element of an array, does not have its type."""

_MEMBERS: Final = MapType(StringType(), StringType())


class JsonFormat(MessageFormat):
    """One JSON object per message. A value with anything after the object is undecodable."""

    def parse(self, value: Column, fields: StructType) -> Column:
        return parse(value.cast("string"), fields)

    def message(self, parsed: Column) -> Column:
        return first_value(parsed[ROOT])

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return (
            F.when(~F.is_valid_utf8(value.cast("string")), NOT_UTF8)
            .when(first_value(parsed[ROOT]).isNull() | ~is_one_value(parsed[ROOT]), NOT_AN_OBJECT)
            .when(parsed[CORRUPT].isNotNull(), _wrong_field(first_value(parsed[ROOT]), value, fields))
        )


def wrong_type(field: StructField) -> str:
    """The reason for a message in which this field does not have its declared type."""
    return f"field {field.name!r} is not of type {field.dataType.simpleString()}"


def _wrong_field(message: Column, value: Column, fields: StructType) -> Column:
    """Which declared field does not have its type: the first one that has a value in the text but not in the message.

    Parses the text once more, so it is only for messages that have such a field.
    """

    def among(given: Column) -> Column:
        wrong = [F.when(message[f.name].isNull() & given[f.name].isNotNull(), F.lit(wrong_type(f))) for f in fields]
        return F.coalesce(*wrong, F.lit(WRONG_TYPE))

    given = F.from_json(value.cast("string"), _MEMBERS, {"allowSingleQuotes": "false"})
    return F.get(F.transform(F.array(given), among), F.lit(0))  # not copied into the test of each field

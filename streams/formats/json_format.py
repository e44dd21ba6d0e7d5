"""JSON: the value is the UTF-8 text of exactly one JSON object.

Spark's JSON reader converts the values: fields that are not declared are ignored, declared fields that are missing are
NULL (names are case-sensitive), decimals are rounded to the declared scale, numbers are accepted for strings but not
the reverse, and a number for a timestamp is in seconds.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from streams.formats.json_value import CORRUPT, ROOT, first_value, is_one_value, parse
from streams.formats.message_format import MessageFormat

NOT_UTF8: Final = "the value is not UTF-8"
NOT_AN_OBJECT: Final = "the value is not one JSON object"
WRONG_TYPE: Final = "a field of the value does not have its declared type"


class JsonFormat(MessageFormat):
    """One JSON object per message. A value with anything after the object is undecodable."""

    def parse(self, value: Column, fields: StructType) -> Column:
        return parse(value.cast("string"), fields)

    def message(self, parsed: Column) -> Column:
        return first_value(parsed[ROOT])

    def reason(self, parsed: Column, value: Column) -> Column:
        return (
            F.when(~F.is_valid_utf8(value.cast("string")), NOT_UTF8)
            .when(first_value(parsed[ROOT]).isNull() | ~is_one_value(parsed[ROOT]), NOT_AN_OBJECT)
            .when(parsed[CORRUPT].isNotNull(), WRONG_TYPE)
        )

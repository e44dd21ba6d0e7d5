"""Texts that must be exactly one JSON value: Spark's JSON reader takes the first value of a text and ignores the rest.

The text is parsed once, as the first of two members of an object:

    {ROOT: {"v": TEXT, ROOT: null}}

`ROOT` is a random name of this process, which no text contains. The inner object is read as a map, which keeps all its
members. A text is one value if the map has two members and the second one is `ROOT`:

- The object that opens before the text is the map, unless the text closed it and the outer object got the member
  ``ROOT: null``; then the map is NULL.
- The map has the member `ROOT`, so its object was still open behind the text, outside of any string of the text.
- There are two members, so the text did not add one (``1, "x": 2``).

What is a JSON value is up to Spark's reader, which follows RFC 8259 with these exceptions. It takes ``NaN``, ``+INF``
and ``Infinity`` with and without a sign for numbers. It refuses more than 998 arrays and objects within each other,
numbers of more than 1,000 characters and names of more than 50,000. Of members with the same name the last one counts.
"""

from __future__ import annotations

import secrets
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

__all__ = ["CORRUPT", "ROOT", "first_value", "is_one_value", "parse"]

ROOT: Final = secrets.token_urlsafe(9)  # short: the wrapper is parsed with every message
CORRUPT: Final = "__weft_corrupt"
_OPTIONS: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}


def parse(text: Column, kind: DataType) -> Column:
    """Parse a text.

    Args:
        text: String column.
        kind: Type of the value. Spark makes every field of a nested type nullable.

    Returns:
        Struct of `ROOT`, which `first_value` and `is_one_value` take, and of `CORRUPT`, string: not NULL if the text
        is not JSON, or if the value or a part of it is not of the type. NULL where ``text`` is NULL.
    """
    wrapped = F.concat(F.lit(f'{{"{ROOT}":{{"v":'), text, F.lit(f',"{ROOT}":null}}}}'))
    envelope = StructType([StructField(ROOT, MapType(StringType(), kind)), StructField(CORRUPT, StringType())])
    return F.from_json(wrapped, envelope, _OPTIONS)


def first_value(members: Column) -> Column:
    """The value with which a text begins, from the field `ROOT` of `parse`.

    Returns:
        NULL if there is no value, if it is null, or if it does not have the type at all. If only a part of it does not
        have the type, that part is NULL, and `CORRUPT` is not NULL.
    """
    return F.get(F.map_values(members), F.lit(0))


def is_one_value(members: Column) -> Column:
    """Whether the text has nothing after its first value; from the field `ROOT` of `parse`.

    Returns:
        Boolean; NULL or false if the text is not JSON.
    """
    names = F.map_keys(members)
    return (F.size(names) == 2) & (F.get(names, F.lit(1)) == ROOT)

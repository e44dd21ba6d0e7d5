"""Texts that must be exactly one JSON value: Spark's JSON reader takes the first value of a text and ignores the rest.

The text is parsed once, wrapped as the first member of an object that has a second member behind it:

    {ROOT: {"value": TEXT, END: null}}

`ROOT` and `END` contain a random number of this process, so no text contains them. The inner object is read as a map,
which keeps all its members. A text is one value if the map has two members and the second one is `END`:

- The field `ROOT` occurs once, so its map is the object that opens before the text.
- The member `END` occurs once, so that object was still open behind the text, and nothing of the text was a part of
  another object or string that contains `END`.
- There are two members, so the text did not add one (``1, "x": 2``), and did not close the object and open another.

What is a JSON value is up to Spark's reader, which follows RFC 8259 with these exceptions. It takes ``NaN``, ``-INF``,
``+INF`` and ``Infinity`` with and without a sign for numbers. It refuses more than 998 arrays and objects within each
other, numbers of more than 1,000 characters and names of more than 50,000. Of members with the same name the last one
counts.
"""

from __future__ import annotations

import secrets
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import DataType, MapType, StringType, StructField, StructType

__all__ = ["CORRUPT", "ROOT", "first_value", "is_one_value", "parse"]

_SECRET: Final = secrets.token_hex(16)
ROOT: Final = f"__weft_root_{_SECRET}"
END: Final = f"__weft_end_{_SECRET}"
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
    wrapped = F.concat(F.lit(f'{{"{ROOT}":{{"value":'), text, F.lit(f',"{END}":null}}}}'))
    envelope = StructType([StructField(ROOT, MapType(StringType(), kind)), StructField(CORRUPT, StringType())])
    return F.from_json(wrapped, envelope, _OPTIONS)


def first_value(members: Column) -> Column:
    """The value with which a text begins, from the field `ROOT` of `parse`.

    Returns:
        NULL if there is none, if it is null, and if nothing of it is of the type. If only a part of it is not of the
        type, that part is NULL, and `CORRUPT` is not.
    """
    return F.get(F.map_values(members), F.lit(0))


def is_one_value(members: Column) -> Column:
    """Whether the text goes on to its end with nothing but the first value; from the field `ROOT` of `parse`.

    Returns:
        Boolean; NULL or false if the text is not JSON.
    """
    names = F.map_keys(members)
    return (F.size(names) == 2) & (F.get(names, F.lit(1)) == END)

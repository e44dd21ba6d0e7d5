"""A table with a column of every type that Iceberg and Delta have, too, and rows for it."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tests.storage.support.shop import append
from weft import Table

EVERY_TYPE: dict[str, Any] = {
    "key": ["day", "id"],
    "partition_by": ["day"],
    "buckets": 1,
    "columns": {
        "day": "string",
        "id": "smallint",
        "tiny": "tinyint",
        "whole": "int",
        "real": "float",
        "double": "double",
        "small_price": "decimal(9,2)",
        "price": "decimal(18,4)",
        "large_price": "decimal(38,10)",
        "flag": "boolean",
        "text": "string",
        "bytes": "binary",
        "date": "date",
        "instant": "timestamp",
        "local": "timestamp_ntz",
    },
    "groups": {
        "values": {
            "columns": [
                "tiny",
                "whole",
                "real",
                "double",
                "small_price",
                "price",
                "large_price",
                "flag",
                "text",
                "bytes",
                "date",
                "instant",
                "local",
            ],
            "ordering": ["whole"],
        }
    },
    "streams": {"values": {"groups": ["values"]}},
}

MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, dt.UTC)


def _nothing(_number: int, _day: str) -> dict[str, Any]:
    return {}


def append_every_type(
    table: Table, days: Sequence[str], others: Callable[[int, str], Mapping[str, Any]] = _nothing
) -> None:
    """Per day a file with a row of values and a row of nulls; every value of column ``double`` is NaN.

    Args:
        table: A table with the columns of `EVERY_TYPE`, and perhaps more.
        days: The partitions.
        others: Values of further columns, or instead of the usual ones, for the number of a day and the day.
    """
    schema = pa.schema([field.remove_metadata() for field in table.snapshot().schema])
    for number, day in enumerate(days):
        value: dict[str, Any] = {
            "day": day,
            "id": 2 * number,
            "tiny": -number,
            "whole": number,
            "real": 1.5 * number,
            "double": float("nan"),
            "small_price": decimal.Decimal(f"-{number}.25"),
            "price": decimal.Decimal(f"{number}.1234"),
            "large_price": decimal.Decimal(f"{number}.0123456789"),
            "flag": number % 2 == 0,
            "text": day,
            "bytes": b"\xff" * 30,
            "date": MOMENT.date(),
            "instant": MOMENT,
            "local": MOMENT.replace(tzinfo=None),
            **others(number, day),
        }
        empty = dict.fromkeys(schema.names) | {"day": day, "id": 2 * number + 1, "whole": number}
        append(table, pa.Table.from_pylist([value, empty], schema=schema), "values")
        table.compact()

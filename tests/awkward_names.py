"""Names of columns that some door may read as something else, and a table that has all of them.

A name is a text: nobody may split it at its dots, take its quotes as quotes, or know it from somewhere else. (`${a}` is
not among them: Spark replaces it in the text of a statement before anybody reads that.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

AWKWARD_NAMES: Final = (
    *("a.b", "a.b.c", ".", "..", "a.*", "*", "a`b", "``", "a'b", 'a"b', "a\\b", "a\nb", "a\tb"),
    *(" ", " before", "after ", "two words", "a,b", "a;b", "a(b)", "a=b", "{a}", "a:b", "a/b", "a%b", "%s"),
    *("?", ":x", "$a", "a#1", "<b>", "-- a", "/*a*/", "1", "1a", "1.5", "-"),
    *("select", "from", "values", "table", "order", "group", "default", "null", "true", "timestamp", "interval"),
    *("value", "count", "key", "element", "rows", "c0", "_c0", "col1", "__index_level_0__"),
    *(
        "_metadata",
        "_file",
        "_pos",
        "_change_type",
        "_commit_version",
        "_row_id",
        "_under",
        "__under",
        "_present_other",
    ),
    *("é", "e\u0301x", "ß", "\u0131", "ς", "日本", "😀", "\x00", "\u200b", "\ufeff"),
    *("x" * 255, "y" * 1_000),
)
KEY: Final = "the.`key`"
TIME: Final = "t.`s`"


def awkward_table(columns: Sequence[str] = AWKWARD_NAMES) -> dict[str, Any]:
    """A configuration: key `KEY`, one group of text columns with these names, ordered by `TIME`."""
    return {
        "key": [KEY],
        "buckets": 2,
        "columns": {KEY: "bigint", **dict.fromkeys(columns, "string"), TIME: "bigint"},
        "groups": {"g": {"columns": [*columns, TIME], "ordering": [TIME]}},
        "streams": {"s": {"groups": ["g"]}},
    }


def awkward_rows(*keys: int, columns: Sequence[str] = AWKWARD_NAMES) -> pa.Table:
    """A row for each key; the text of column number c in row k is ``c-k``."""
    texts = {name: [f"{number}-{key}" for key in keys] for number, name in enumerate(columns)}
    kinds = [(KEY, pa.int64()), *((name, pa.string()) for name in columns), (TIME, pa.int64())]
    return pa.table({KEY: list(keys), **texts, TIME: list(keys)}, schema=pa.schema(kinds))

"""Streams of changes by name: `spark.readStream.table("weft.shop.orders_wide")`, `SELECT ... FROM STREAM ...`.

The stream is that of ``spark.readStream.format("weft")``, with its options; it begins at ``earliest`` if no option says
where.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.streaming.readwriter import DataStreamReader

from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake, Names
from weft.streams.read.change_stream import ChangeOptions
from weft.streams.read.relation.callbacks import PlainTable
from weft.streams.read.stream_mark import MARK, SOURCE
from weft.streams.read.table_source import register
from weft.streams.spark.patch_method import patch_method

STREAM_OPTIONS: Final = (MARK, "starting", "max_commits_per_trigger", "columns", "before")
_MARKED: Final = "weft_tables"
_STREAM: Final = "STREAM"

assert set(STREAM_OPTIONS[1:]) <= set(ChangeOptions.model_fields)


def reads_stream(options: Mapping[str, str], relation: str) -> bool:
    """Whether a use of a table is a stream.

    Args:
        options: Its options.
        relation: Its text in the statement; empty if there is none.
    """
    known = {name.lower() for name in options}
    return MARK in known or "starting" in known or relation.lstrip().upper().startswith(_STREAM)


def stream_table(jvm: CatalogJvm, name: str, lake: Lake, names: Names, options: Mapping[str, str]) -> ChangeStreamTable:
    """A table that Spark reads as a stream.

    Raises:
        InvalidInput: An option is unknown or invalid.
    """
    if not jvm.has_source(SOURCE):
        register(jvm.spark)
    given = {key: value for key, value in options.items() if key.lower() != MARK}
    given |= {"path": lake.location(names)}
    if lake.storage_options:
        given["storage_options"] = json.dumps(dict(lake.storage_options))
    frame = jvm.spark.readStream.format(SOURCE).options(**given).load()
    return ChangeStreamTable(jvm, name, jvm.streaming_table(frame), given | {MARK: "true"})


def mark_tables() -> None:
    """Make `readStream.table` say that it is a stream; Spark does not tell the catalog. A second call does nothing."""
    patch_method(DataStreamReader, "table", _MARKED, _mark)


def _mark(plain: Callable[..., Any], reader: DataStreamReader, tableName: str) -> Any:  # noqa: N803 - Spark's name
    return plain(reader.option(MARK, value=True), tableName)


class ChangeStreamTable(PlainTable, java=("org.apache.spark.sql.connector.catalog.SupportsRead",)):
    """Spark's table of the Python data source, with the options that find the table."""

    def __init__(self, jvm: CatalogJvm, name: str, inner: Any, options: Mapping[str, str]) -> None:
        """Use `stream_table`."""
        super().__init__(jvm, f"weft stream {name}", name, jvm.parse_struct(inner.schema()))
        self._session = jvm
        self._inner = inner
        self._options = dict(options)

    def newScanBuilder(self, _options: Any) -> Any:  # noqa: N802
        return self._inner.newScanBuilder(self._session.read_options(self._options))

    def capabilities(self) -> Any:
        return self._inner.capabilities()

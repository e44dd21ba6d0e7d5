"""Streams of changes by name: `spark.readStream.table("weft.shop.orders_wide")`, `SELECT ... FROM STREAM ...`.

The stream and its options are those of ``spark.readStream.format("weft")``. Without the option ``starting`` it begins
at ``earliest``.
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
_PATCH: Final = "weft_tables"
_STREAM: Final = "STREAM"

assert set(STREAM_OPTIONS[1:]) <= set(ChangeOptions.model_fields)


def reads_stream(options: Mapping[str, str], relation: str) -> bool:
    """Whether a query reads a table as a stream.

    Args:
        options: Options of the read.
        relation: Text of the relation in the statement; empty for a DataFrame.
    """
    names = {name.lower() for name in options}
    return MARK in names or "starting" in names or relation.lstrip().upper().startswith(_STREAM)


def stream_table(jvm: CatalogJvm, name: str, lake: Lake, names: Names, options: Mapping[str, str]) -> ChangeStreamTable:
    """Build a table that Spark reads as a stream.

    Raises:
        InvalidInput: An option is unknown or invalid.
    """
    if not jvm.has_source(SOURCE):
        register(jvm.spark)
    source_options = {key: value for key, value in options.items() if key.lower() != MARK}
    source_options |= {"path": lake.location(names)}
    if lake.storage_options:
        source_options["storage_options"] = json.dumps(dict(lake.storage_options))
    frame = jvm.spark.readStream.format(SOURCE).options(**source_options).load()
    return ChangeStreamTable(jvm, name, jvm.streaming_table(frame), source_options | {MARK: "true"})


def mark_tables() -> None:
    """Patch `readStream.table` to add the option `MARK`. A second call does nothing.

    Otherwise the catalog could not see that Spark reads the table as a stream.
    """
    patch_method(DataStreamReader, "table", _PATCH, _mark)


def _mark(plain: Callable[..., Any], reader: DataStreamReader, tableName: str) -> Any:  # noqa: N803 - Spark's name
    return plain(reader.option(MARK, value=True), tableName)


class ChangeStreamTable(PlainTable, java=("org.apache.spark.sql.connector.catalog.SupportsRead",)):
    """The table of the Python data source in Spark, with the options that locate the table of weft."""

    def __init__(self, jvm: CatalogJvm, name: str, inner: Any, options: Mapping[str, str]) -> None:
        """Store the arguments; use `stream_table` to build one."""
        super().__init__(jvm, f"weft stream {name}", name, jvm.parse_struct(inner.schema()))
        self._session = jvm
        self._inner = inner
        self._options = dict(options)

    def newScanBuilder(self, _options: Any) -> Any:  # noqa: N802
        return self._inner.newScanBuilder(self._session.read_options(self._options))

    def capabilities(self) -> Any:
        return self._inner.capabilities()

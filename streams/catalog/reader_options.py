"""Refuses unknown options of ``spark.read.option(...).table("weft.shop.orders_wide")``, and of ``spark.readStream``.

Spark passes on only options that the catalog knows, and drops the others, so a misspelt option would change nothing
without a word. A statement has its text (`weft.streams.catalog.statement_options`); for a DataFrame this module looks
at the reader in PySpark, before Spark does.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from weft.storage.errors import NotFound
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.statement_options import check_names
from weft.streams.read.stream_mark import MARK

_MARK: Final = "weft_options"

_lakes: weakref.WeakKeyDictionary[Any, dict[str, Lake]] = weakref.WeakKeyDictionary()
"""The catalogs of each application, by its Spark context."""


def check_readers(spark: SparkSession, name: str, lake: Lake, known: Collection[str]) -> None:
    """Make readers refuse unknown options for the tables of a catalog; a catalog of that name is replaced.

    Args:
        spark: A session of the application.
        name: Name of the catalog.
        lake: Its tables.
        known: Names of the options that there are.
    """
    _lakes.setdefault(spark.sparkContext, {})[name] = lake
    for kind in (DataFrameReader, DataStreamReader):
        plain = kind.table
        if not hasattr(plain, _MARK):
            setattr(kind, "table", _checked(plain, known))  # noqa: B010 - mypy knows no method to assign to


def _checked(plain: Any, known: Collection[str]) -> Any:
    @functools.wraps(plain)
    def checked(self: DataFrameReader | DataStreamReader, tableName: str) -> Any:  # noqa: N803 - Spark's name
        _check(self, tableName, known)
        return plain(self, tableName)

    setattr(checked, _MARK, True)
    return checked


def _check(reader: DataFrameReader | DataStreamReader, table: str, known: Collection[str]) -> None:
    """Check the options of a reader.

    Raises:
        InvalidInput: One is unknown, and the table is one of a catalog.
    """
    spark = reader._spark  # noqa: SLF001 - PySpark has no public form
    lakes = _lakes.get(spark.sparkContext, {})
    if not lakes:
        return
    given = [name for option in CatalogJvm.reader_options(reader) if (name := option.lower()) != MARK]
    if set(given) <= set(known):
        return
    jvm = CatalogJvm.connect(spark)
    first, *names = jvm.parse_name(table)
    if first not in lakes or not names:
        current, *namespace = jvm.current_place()
        first, names = current, [*namespace, first] if not names else [first, *names]
    if first in lakes and _has(lakes[first], names):
        check_names(given, known)


def _has(lake: Lake, names: list[str]) -> bool:
    try:
        lake.resolve(names)
    except NotFound:
        return False
    return True

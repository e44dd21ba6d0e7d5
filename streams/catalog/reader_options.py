"""Refuses unknown options of ``spark.read.option(...).table("weft.shop.orders_wide")``, and of ``spark.readStream``.

Spark passes on only options that the catalog knows, and drops the others, so a misspelt option would change nothing
without a word. A statement has its text (`weft.streams.catalog.statement_options`); for a DataFrame this module looks
at the reader in PySpark, before Spark does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from weft.storage.errors import NotFound
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake, Names
from weft.streams.catalog.registered_lakes import registered_lakes
from weft.streams.catalog.statement_options import check_names
from weft.streams.read.stream_mark import MARK
from weft.streams.spark.patch_method import patch_method

_MARK: Final = "weft_options"


def check_readers(known: Collection[str]) -> None:
    """Make readers refuse unknown options for the tables of catalogs; a second call does nothing.

    Args:
        known: Names of the options that there are.
    """

    def check(plain: Any, reader: DataFrameReader | DataStreamReader, tableName: str) -> Any:  # noqa: N803 - Spark's name
        _check(reader, tableName, known)
        return plain(reader, tableName)

    for kind in (DataFrameReader, DataStreamReader):
        patch_method(kind, "table", _MARK, check)


def _check(reader: DataFrameReader | DataStreamReader, table: str, known: Collection[str]) -> None:
    """Check the options of a reader.

    Raises:
        InvalidInput: One is unknown, and the table is one of a catalog.
    """
    spark = reader._spark  # noqa: SLF001 - PySpark has no public form
    lakes = registered_lakes(spark)
    if not lakes:
        return
    given = [name for option in CatalogJvm.reader_options(reader) if (name := option.lower()) != MARK]
    if set(given) <= set(known):
        return
    jvm = CatalogJvm.connect(spark)
    place = jvm.find_catalog(lakes, jvm.parse_name(table))
    if place is not None and _has(lakes[place[0]], place[1]):
        check_names(given, known)


def _has(lake: Lake, names: Names) -> bool:
    try:
        lake.resolve(names)
    except NotFound:
        return False
    return True

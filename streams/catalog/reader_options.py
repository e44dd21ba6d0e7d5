"""Refuses unknown options of ``spark.read.option(...).table("weft.shop.orders_wide")``, and of ``spark.readStream``.

Spark passes on only options that the catalog knows, and drops the others, so a misspelt option would be ignored without
an error. The options of a statement are read from its text (`weft.streams.catalog.statement_options`). For a DataFrame,
this module checks the options of PySpark's reader before Spark uses them.
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


def check_readers(allowed: Collection[str]) -> None:
    """Make readers refuse unknown options for tables of catalogs. A second call does nothing.

    Args:
        allowed: Names of all options.
    """

    def check(plain: Any, reader: DataFrameReader | DataStreamReader, tableName: str) -> Any:  # noqa: N803 - Spark's name
        _check(reader, tableName, allowed)
        return plain(reader, tableName)

    for kind in (DataFrameReader, DataStreamReader):
        patch_method(kind, "table", _MARK, check)


def _check(reader: DataFrameReader | DataStreamReader, table: str, allowed: Collection[str]) -> None:
    """Check the options of a reader.

    Raises:
        InvalidInput: An option is unknown, and the table is in a catalog of weft.
    """
    spark = reader._spark  # noqa: SLF001 - PySpark has no public form
    lakes = registered_lakes(spark)
    if not lakes:
        return
    names = [name for option in CatalogJvm.reader_options(reader) if (name := option.lower()) != MARK]
    if set(names) <= set(allowed):
        return
    jvm = CatalogJvm.connect(spark)
    location = jvm.find_catalog(lakes, jvm.parse_name(table))
    if location is not None and _has_table(lakes[location[0]], location[1]):
        check_names(names, allowed)


def _has_table(lake: Lake, names: Names) -> bool:
    try:
        lake.resolve(names)
    except NotFound:
        return False
    return True

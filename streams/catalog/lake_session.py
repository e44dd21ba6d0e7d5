"""``weft sql`` over a folder of tables: they are a catalog, which is the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from weft.streams.catalog.lake import Lake
from weft.streams.catalog.register import register_catalog
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.read.sql_query import SqlSession, spark_errors
from weft.streams.spark.session import temporary_session

CATALOG: Final = "weft"
"""Name of the catalog, which queries need not give: ``shop.orders`` is ``weft.shop.orders``."""

_HINT: Final = "SHOW NAMESPACES and SHOW TABLES IN a namespace list the tables"


def is_lake(location: TableLocation) -> bool:
    """Whether a location can be a catalog: a folder that exists and is not a table itself, or an empty prefix.

    The first table of a catalog can be created in a folder without tables.

    Raises:
        StoreUnavailable: The store does not list its folders.
    """
    return Lake(location.uri, location.storage_options).exists()


def note_on_empty(location: TableLocation) -> str | None:
    """What to tell the user of a catalog with nothing in it: the location may be mistyped. None for others."""
    if not Lake(location.uri, location.storage_options).is_empty():
        return None
    return f"there is nothing at {location.uri} yet: CREATE TABLE makes the first table"


@contextmanager
def lake_session(settings: CommandSettings) -> Iterator[SqlSession]:
    """Start Spark with the tables of a folder as the current catalog, and stop it at the end of the block.

    Raises:
        NotFound: Java is not installed.
        InvalidInput: Spark refuses its settings.
    """
    location = settings.table
    lake = Lake(location.uri, location.storage_options)
    with temporary_session("weft sql", settings.spark) as spark:
        with spark_errors(_HINT):
            register_catalog(spark, CATALOG, location.uri, storage_options=location.storage_options)
            spark.sql(f"USE {CATALOG}")
        # Tables in namespaces of namespaces are found by queries, but not listed.
        yield SqlSession(spark, _HINT, lambda: [".".join(names) for names in lake.all_tables(depth=1)])

"""``weft sql`` over a folder of tables, which is the current catalog of the session."""

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
"""Name of the catalog. Queries may leave it out: ``shop.orders`` is ``weft.shop.orders``."""

_HINT: Final = "list the tables with SHOW NAMESPACES and SHOW TABLES IN a namespace"


def is_lake(location: TableLocation) -> bool:
    """Whether a location can be a catalog: a folder that exists and is not a table itself, or an empty prefix.

    The first table of a catalog can be created in a folder without tables.

    Raises:
        StoreUnavailable: The store does not list its folders.
    """
    return Lake(location.uri, location.storage_options).exists()


def note_on_empty(location: TableLocation) -> str | None:
    """Return a note for an empty catalog, because its location may be mistyped; None for other catalogs."""
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
        # Completion offers only tables of the first two levels; queries find deeper ones, too.
        yield SqlSession(spark, _HINT, lambda: [".".join(names) for names in lake.all_tables(depth=1)])

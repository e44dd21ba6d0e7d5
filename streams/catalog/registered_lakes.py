"""The folders that are registered as catalogs. All sessions of an application share them."""

from __future__ import annotations

import weakref
from typing import Any, Final

from pyspark.sql import SparkSession

from weft.streams.catalog.lake import Lake

_lakes: Final[weakref.WeakKeyDictionary[Any, dict[str, Lake]]] = weakref.WeakKeyDictionary()
"""Folders by Spark context, and then by the name of the catalog."""


def registered_lakes(spark: SparkSession) -> dict[str, Lake]:
    """Return the lakes of an application by the names of their catalogs, as a dictionary that callers may change.

    Args:
        spark: A session of the application.
    """
    return _lakes.setdefault(spark.sparkContext, {})

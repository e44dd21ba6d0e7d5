"""The catalogs of each application, which its sessions share."""

from __future__ import annotations

import weakref
from typing import Any, Final

from pyspark.sql import SparkSession

from weft.streams.catalog.lake import Lake

_lakes: Final[weakref.WeakKeyDictionary[Any, dict[str, Lake]]] = weakref.WeakKeyDictionary()
"""By the Spark context."""


def registered_lakes(spark: SparkSession) -> dict[str, Lake]:
    """The lakes of the application of a session, by the names of their catalogs. The dictionary can be changed."""
    return _lakes.setdefault(spark.sparkContext, {})

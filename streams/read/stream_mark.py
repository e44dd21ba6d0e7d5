"""Adds a hidden option to ``spark.readStream.format("weft")``, which tells the source that it is read as a stream.

Spark asks a Python source for its columns before it says whether the read is a stream, and a stream of changes has more
columns than a batch. Importing weft after pyspark adds the option, and so does `weft.register`. Without it the user
has to give the option ``starting``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.readwriter import DataStreamReader

from weft.streams.spark.patch_method import patch_method

SOURCE: Final = "weft"
MARK: Final = "weft_streams"


def mark_streams() -> None:
    """Make every stream of this process that reads from `SOURCE` pass the option; a second call does nothing."""
    patch_method(DataStreamReader, "format", MARK, _mark)


def _mark(plain: Callable[..., DataStreamReader], reader: DataStreamReader, source: str) -> DataStreamReader:
    chosen = plain(reader, source)
    return chosen.option(MARK, value=True) if source.lower() == SOURCE else chosen

"""Lets ``spark.readStream.format("weft")`` say that it is a stream: an option that no user has to give.

Nothing else tells a Python source so before it has to name its columns, and those of a stream are more than those of a
batch. Importing weft after pyspark does it, and so does `streams.register`; elsewhere the option ``starting`` says it.
"""

from __future__ import annotations

import functools
from typing import Final

from pyspark.sql.streaming.readwriter import DataStreamReader

SOURCE: Final = "weft"
MARK: Final = "weft_streams"


def mark_streams() -> None:
    """Mark every stream of this process that is read from the source `SOURCE`; a second time does nothing."""
    plain = DataStreamReader.format
    if hasattr(plain, MARK):
        return

    @functools.wraps(plain)
    def marked(self: DataStreamReader, source: str) -> DataStreamReader:
        reader = plain(self, source)
        return reader.option(MARK, value=True) if source.lower() == SOURCE else reader

    setattr(marked, MARK, True)
    DataStreamReader.format = marked  # type: ignore[method-assign]

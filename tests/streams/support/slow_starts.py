"""Streaming queries over a Python source on a machine that is too busy for Spark's time limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException

from tests.streams.write.sink.rig import STARTS, TOO_BUSY

T = TypeVar("T")


def start_in_time(run: Callable[[], T]) -> T:
    """Call a function that starts a query and waits for it; again if Spark's process that plans was too slow.

    The process is the first thing that a query needs, so nothing is read and nothing is in the checkpoint then.
    """
    for starts_left in reversed(range(STARTS)):
        try:
            return run()
        except StreamingQueryException as error:
            if TOO_BUSY not in str(error) or not starts_left:
                raise
    raise AssertionError("the last start returns or raises")

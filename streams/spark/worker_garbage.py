"""Shortens tasks in Python workers that are used again: the garbage collector no longer visits their modules.

Spark's daemon collects garbage after each task of a worker. With the modules of pandas, pyarrow and weft that visits
100,000 objects each time, which takes 50 ms and blocks the worker.
"""

from __future__ import annotations

import gc
import sys

_starts = 0


def function_started() -> None:
    """Exclude existing objects from garbage collections when the second function starts in a Python worker of Spark.

    The first function has imported the modules. This is done only once, so it can retain no more than the garbage of
    one task. Other processes that run functions of workers (`weft.streams.spark.planning_threads`) are not changed.
    """
    global _starts  # noqa: PLW0603 - a worker runs one function after the other
    _starts += 1
    if _starts == 2 and _is_worker():
        gc.freeze()


def _is_worker() -> bool:
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return program is not None and program.name == "pyspark.daemon"

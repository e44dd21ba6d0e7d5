"""Tasks end sooner in Python workers that are used again: their modules are no longer searched for garbage.

Spark's daemon collects garbage after each task of a worker. With the modules of pandas, pyarrow and weft there are
100,000 objects to search each time, which takes 50 ms, and the worker can do nothing else meanwhile.
"""

from __future__ import annotations

import gc
import sys

_starts = 0


def function_started() -> None:
    """Exclude existing objects from garbage collections, once the second function starts in a Python worker of Spark.

    The first one has imported what functions need. It is done once, so that it can keep no more than the garbage of one
    task. Other processes run functions of workers, too (`weft.streams.spark.planning_threads`): nothing changes there.
    """
    global _starts  # noqa: PLW0603 - a worker runs one function after the other
    _starts += 1
    if _starts == 2 and _is_worker():
        gc.freeze()


def _is_worker() -> bool:
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return program is not None and program.name == "pyspark.daemon"

"""Lets tasks of views return columns instead of rows: `ColumnarTasks.java`, see `weft.streams.spark.java_classes`.

Spark reads the rows of a Python data source one by one. It reads Arrow batches as columns only through an interface
that a class on the executors must implement. The JVM then needs half as much time for 20 M rows
(`tests/benchmarks/aggregates.py`, ``--only handover``).
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

from pyspark import SparkContext

from weft.streams.spark.java_classes import CannotCompile, new_object

__all__ = ["columnar_tasks"]

_warned: Final[weakref.WeakSet[SparkContext]] = weakref.WeakSet()


def columnar_tasks(context: SparkContext, batch: Any) -> Any:
    """Wrap a batch of Spark's scan of a Python data source in a JVM object `ColumnarTasks`, which is read as columns.

    If the Java source does not compile with this version of Spark, a warning is logged and ``batch`` is returned. It is
    read row by row, which is slower, with the same result.
    """
    try:
        return new_object(context, __package__, "ColumnarTasks", batch)
    except CannotCompile as error:
        if context not in _warned:
            _warned.add(context)
            logging.getLogger("weft").warning("views read rows from tasks one by one, which is slower: %s", error)
        return batch

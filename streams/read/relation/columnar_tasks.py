"""Hands columns over from tasks of views: `ColumnarTasks.java`, see `weft.streams.spark.java_classes`.

Spark reads rows of a Python data source one by one, and asks for Arrow batches as columns only through an interface
that must be a class on executors. Handing 20 M rows over takes half of the JVM's time that way
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
    """A batch of Spark's scan of a Python data source, read as columns: a JVM object of the class `ColumnarTasks`.

    With a Spark whose classes are not those that the source uses, it logs a warning, and each call returns ``batch``,
    which is read row by row: that is slower, and the answers are the same.
    """
    try:
        return new_object(context, __package__, "ColumnarTasks", batch)
    except CannotCompile as error:
        if context not in _warned:
            _warned.add(context)
            logging.getLogger("weft").warning("views read rows from tasks one by one, which is slower: %s", error)
        return batch

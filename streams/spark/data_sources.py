"""Registers the Python data sources of weft, so that the driver's Python plans queries and executors read.

By default Spark runs the same Python (``PYSPARK_PYTHON``) for both. With a packed environment that is a path such as
``./environment/bin/python``, which exists on executors only. Moreover, in Spark 4.3 the process that plans a streaming
source looks for files of ``addPyFile`` in a folder ``streaming_job`` that is never created, so it cannot import them.
Therefore the driver's own Python plans; it has weft, because it runs this module.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.udf import _wrap_function

from weft.streams.spark.for_workers import Source, source_for_workers
from weft.streams.spark.settings import TASK_PYTHON

_USER_DEFINED: Final = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"


def register_source(spark: SparkSession, source: type[Source], *, python: str = sys.executable) -> None:
    """Register a data source for ``spark.read`` and ``spark.readStream`` in this session.

    Tasks of the session keep their Python: the setting `TASK_PYTHON` records it, unless it is already set.

    Args:
        spark: The session.
        source: The data source.
        python: Path of the Python that plans the source: this one, or
            `weft.streams.spark.planning_threads.PlanningThreads.python`.
    """
    wrapped = source_for_workers(source)
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the server plans
        spark.dataSource.register(wrapped)
        return
    context: Any = spark.sparkContext
    if spark.conf.get(TASK_PYTHON, None) is None:
        spark.conf.set(TASK_PYTHON, context.pythonExec)
    function = _wrap_function(_Planning(context, python), wrapped)  # type: ignore[arg-type]
    jvm: Any = context._jvm  # noqa: SLF001 - as Spark's own `register` does
    java_source = getattr(jvm, _USER_DEFINED)(function)
    # Spark checks in the thread's active session whether the name is used, and would raise DATA_SOURCE_ALREADY_EXISTS
    # for a source that another session registered: make this session the active one meanwhile.
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as above
    try:
        spark._jsparkSession.dataSource().registerPython(source.name(), java_source)  # noqa: SLF001 - as above
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


class _Planning:
    """A Spark context in which another Python runs the planning functions."""

    def __init__(self, context: Any, python: str) -> None:
        self._context = context
        self.pythonExec = python

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

"""Notices that a job of Spark waits because the cluster provides no executor for the application.

Spark itself only logs "Initial job has not accepted any resources", and the query waits in its batch without limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession

from weft.streams.spark.settings import is_local

PATIENCE_SECONDS: Final = 15.0
"""A cluster starts executors within seconds. Spark logs its own warning after the same time (its
``spark.starvation.timeout``)."""

HINT: Final = (
    "the cluster has no free cores or memory (see spark.cores.max of the other applications, and "
    "spark.executor.memory), or its executors cannot connect to the driver (spark.driver.host)"
)


class ExecutorWatch:
    """Checks whether a session has executors. With a local master it reports nothing."""

    def __init__(self, spark: SparkSession, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember the session; `starved_seconds` checks.

        Args:
            spark: A classic session.
            clock: Returns monotonic seconds; replaced by tests.
        """
        context: Any = spark.sparkContext
        self._context, self._clock = context, clock
        self._local = is_local(context.master)
        self._since: float | None = None
        self.name = f"an executor of {context.master}"

    def starved_seconds(self) -> float | None:
        """Return the seconds that a job has waited for an executor; None if that is less than `PATIENCE_SECONDS`."""
        if self._local or not self._starves():
            self._since = None
            return None
        now = self._clock()
        if self._since is None:
            self._since = now
        seconds = now - self._since
        return seconds if seconds >= PATIENCE_SECONDS else None

    def _starves(self) -> bool:
        # Without a running job no executor is needed: dynamic allocation releases idle ones.
        if not self._context.statusTracker().getActiveJobsIds():
            return False
        return int(self._context._jsc.sc().getExecutorIds().size()) == 0  # noqa: SLF001 - not in Python's interface

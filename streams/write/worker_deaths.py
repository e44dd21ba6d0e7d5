"""Runs the Spark job of a batch again after a Python worker has died, and then isolates the message that killed it.

Spark repeats a task on a cluster, but not in a local session, and eventually fails the job. Without this module the
same batch would be tried again until the supervisor gives up on the writer: one message would stop a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark import SparkContext

from weft.streams.formats.isolated_decoder import ISOLATE
from weft.streams.spark.java_causes import java_causes

T = TypeVar("T")

MAX_DEATHS: Final = 2
"""Number of jobs that lose a worker before messages are decoded in separate processes. A single worker may have been
killed for lack of memory."""
_DIED: Final = "Python worker exited unexpectedly"
"""Beginning of the message of Spark's exception, which has neither a specific class nor an error condition."""
_log: Final = logging.getLogger("weft")


def run_despite_deaths(context: SparkContext, job: Callable[[], T]) -> T:
    """Run a job that decodes messages; a message that kills its worker becomes undecodable.

    Args:
        context: The context of the job.
        job: Runs the job. A second run replaces the results of the first.

    Raises:
        Exception: The error of the job, unless workers died; or if they die for another reason than a message.
    """
    for _ in range(MAX_DEATHS):
        try:
            return job()
        except Exception as error:
            if not any(cause.message.startswith(_DIED) for cause in java_causes(error)):
                raise
            _log.warning("a Python worker of Spark has died; its batch is tried again")
    _log.warning("workers have died %d times: messages are decoded in separate processes", MAX_DEATHS)
    context.setLocalProperty(ISOLATE, "true")
    try:
        return job()
    finally:
        context.setLocalProperty(ISOLATE, None)  # type: ignore[arg-type]  # removes it

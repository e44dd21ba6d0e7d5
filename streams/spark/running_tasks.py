"""The progress of the jobs of a Spark session."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from weft.storage.services.steps.progress import Stage


def running_tasks(spark: SparkSession, work: str) -> Stage | None:
    """Count the tasks of the running stages; None if no stage runs. May be called from any thread.

    Args:
        spark: The session.
        work: Description of the work, for `Stage`.
    """
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except (Py4JError, OSError, AssertionError, AttributeError):  # the session is ending
        return None
    known_stages = [stage for stage in stages if stage is not None]
    if not known_stages:
        return None
    finished_tasks = sum(stage.numCompletedTasks for stage in known_stages)
    return Stage(work, finished_tasks, sum(stage.numTasks for stage in known_stages), "tasks")

"""Compaction on a Spark cluster: tasks merge file groups, one each or several small ones; the driver publishes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from storage import Table
from storage.engine import CompactionResult, CompactionTask, SliceFile
from streams.spark.for_workers import for_workers, pickled
from streams.spark.task_errors import worker_hints


def _run(task: bytes) -> list[SliceFile]:
    made: CompactionTask = pickle.loads(task)  # noqa: S301 - written by our own driver
    return made.run()


def compact(
    spark: SparkSession, uri: str | Path, *, storage_options: Mapping[str, Any] | None = None
) -> CompactionResult:
    """Compact all file groups of a table that have logs, with Spark tasks.

    Needs a session with a Spark context (not Spark Connect). Errors as in `storage.Table.compact`.
    """
    context = spark.sparkContext

    def execute(tasks: Sequence[CompactionTask]) -> list[list[SliceFile]]:
        # As bytes, because Spark would unpickle the tasks before `_run` is called, and errors would have no hint.
        with worker_hints():
            return context.parallelize([pickled(task) for task in tasks], len(tasks)).map(for_workers(_run)).collect()

    return Table.open(uri, storage_options=storage_options).compact(execute=execute)

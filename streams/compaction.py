"""Compaction on a Spark cluster: one task per file group, or per run of small ones, the protocol on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from storage import Table
from storage.core.file_refs import SliceFile
from storage.services.compaction import CompactionResult, CompactionTask


def compact(
    spark: SparkSession, uri: str | Path, *, storage_options: Mapping[str, Any] | None = None
) -> CompactionResult:
    """Fold all logs of a table into new slices, distributed over its tasks.

    Needs a session with a Spark context (not Spark Connect). Errors as in `storage.Table.compact`.
    """
    context = spark.sparkContext

    def execute(tasks: Sequence[CompactionTask]) -> list[list[SliceFile]]:
        return context.parallelize(tasks, len(tasks)).map(CompactionTask.run).collect()

    return Table.open(uri, storage_options=storage_options).compact(execute=execute)

"""Services of a table on a Spark cluster: tasks merge file groups or check files, and the driver publishes.

They need a session with a Spark context (not Spark Connect), and return the same results as the methods of
`weft.Table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from weft.storage import DuePolicy, Table, verify_table
from weft.storage.services.compaction.compaction import CompactionResult
from weft.storage.services.due_work import Only, every_group
from weft.storage.services.fold.fold import FoldResult
from weft.storage.services.steps.progress import OnStage, unobserved
from weft.storage.services.verify.findings import VerifyReport
from weft.streams.spark.run_tasks import spark_executor


def compact(
    spark: SparkSession,
    uri: str | Path,
    policy: DuePolicy | None = None,
    *,
    only: Only = every_group,
    storage_options: Mapping[str, Any] | None = None,
) -> CompactionResult:
    """Compact file groups of a table with Spark tasks; small file groups share a task.

    Args:
        spark: Session with a Spark context.
        uri: Location of the table.
        policy: Decides which file groups are due; None compacts all file groups that have logs.
        only: Selects some of these file groups.
        storage_options: Options of the table's store.

    Raises:
        CorruptData, SnapshotExpired, Conflict: As in `weft.Table.compact`.
        StoreUnavailable, CommitUnknown: The store does not answer, although Spark repeated the tasks, and weft repeated
            the commit for a minute. File groups that were published stay compacted; call this again for the others.
        InvalidInput: The executors cannot run weft.
    """
    table = Table.open(uri, storage_options=storage_options)
    return table.compact(only, policy=policy, execute=spark_executor(spark, f"weft compact {table.uri}"))


def fold(
    spark: SparkSession,
    uri: str | Path,
    policy: DuePolicy | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> FoldResult:
    """Fold the log files of a table with Spark tasks, one for each new file.

    Args:
        spark: Session with a Spark context.
        uri: Location of the table.
        policy: Do nothing unless file groups are due for a fold.
        storage_options: Options of the table's store.

    Raises:
        CorruptData, SnapshotExpired, Conflict: As in `weft.Table.fold`.
        StoreUnavailable, CommitUnknown: As in `compact`.
        InvalidInput: The executors cannot run weft.
    """
    table = Table.open(uri, storage_options=storage_options)
    return table.fold(policy=policy, execute=spark_executor(spark, f"weft fold {table.uri}"))


def verify(
    spark: SparkSession,
    uri: str | Path,
    *,
    deep: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: OnStage = unobserved,
) -> VerifyReport:
    """Verify a table. Spark tasks read the contents of files, the driver reads entries. See `weft.verify_table`.

    Args:
        spark: Session with a Spark context.
        uri: Location of the table.
        deep: Also read the contents of files; otherwise the driver compares their sizes, and no tasks are run.
        storage_options: Options of the table's store.
        progress: Called during the work.

    Raises:
        NotFound: The location has neither a table nor parts of one.
        StoreUnavailable: The store does not answer.
        InvalidInput: The executors cannot run weft.
    """
    execute = spark_executor(spark, f"weft verify {uri}")
    return verify_table(uri, storage_options=storage_options, deep=deep, progress=progress, execute=execute)

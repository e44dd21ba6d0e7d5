"""Determines whether a streaming DataFrame keeps state between batches, and checks where Spark would store that state.

Aggregations, deduplication, joins of two streams and limits are stateful. Spark's tasks write their state below the
folder of the checkpoint: on a cluster every executor must reach that folder, and the state must still exist when the
query is started again. The table does not contain it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

from weft.storage.errors import InvalidInput
from weft.streams.spark.settings import is_local
from weft.streams.write.query_checkpoint import folder_scheme

_STATEFUL: Final = re.compile(
    r"Aggregate|Deduplicate|DeduplicateWithinWatermark|Distinct|Except|GlobalLimit|Intersect|\w*WithState\w*"
)
"""Names of nodes of Spark's analysed plan that keep state if they are over a stream."""


def stateful_operator(df: DataFrame) -> str | None:
    """Return the name of a stateful operator in Spark's analysed plan of a streaming DataFrame; None without any."""
    plan: Any = df._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to the plan
    return next(_stateful_nodes(plan), None)


def _stateful_nodes(node: Any) -> Iterator[str]:
    if not node.isStreaming():
        return
    children = [node.children().apply(place) for place in range(node.children().size())]
    name = str(node.nodeName())
    if _STATEFUL.fullmatch(name) or (name == "Join" and all(child.isStreaming() for child in children)):
        yield name
    for child in children:
        yield from _stateful_nodes(child)


def check_state(df: DataFrame, checkpoint: str, *, anew: bool) -> None:
    """Check that a stateful DataFrame finds its state again after a restart; others pass.

    Args:
        df: The DataFrame.
        checkpoint: Folder of the query's checkpoint.
        anew: Whether the query leaves its checkpoint, and begins with a new one (`weft.streams.write.resume`).

    Raises:
        InvalidInput: The checkpoint is on a local disk and executors are on other machines; or the state is in the
            checkpoint that the query leaves.
    """
    operator = stateful_operator(df)
    if operator is None:
        return
    if anew:
        raise InvalidInput(
            f"the DataFrame keeps state ({operator}), which is in the old checkpoint and not in the table",
            hint="restore that checkpoint; or, if the state may begin empty, start a new query with a new "
            "checkpoint, explicit starting offsets, and takeover=True",
        )
    spark, context = df.sparkSession, df.sparkSession.sparkContext
    assert context.master is not None, "a running session has a master"
    refuse_local_state(operator, context.master, checkpoint, folder_scheme(spark, checkpoint))


def refuse_local_state(operator: str, master: str, checkpoint: str, scheme: str) -> None:
    """Refuse a local folder for the state of a cluster. A path with ``file:`` is accepted: it may be a mounted share.

    Args:
        operator: Name of the stateful operator.
        master: Spark's master.
        checkpoint: Folder of the checkpoint, as the caller named it.
        scheme: Scheme of Hadoop's file system for the folder.

    Raises:
        InvalidInput: The folder is on a local disk, and tasks run on other machines.
    """
    if scheme == "file" and not checkpoint.startswith("file:") and not is_local(master):
        raise InvalidInput(
            f"the DataFrame keeps state ({operator}), which executors store below checkpoint {checkpoint}: on a local "
            f"disk each machine of {master} would have another part of it",
            hint="give a checkpoint on a store that the driver and all executors reach, such as s3a:// or hdfs:// (for "
            "a mounted share use a path that starts with file:)",
        )

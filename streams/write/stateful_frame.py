"""Finds out whether a streaming frame keeps state between batches, and checks where that state would be stored.

Aggregations, deduplication, joins of two streams and limits are stateful. Spark stores their state below the folder of
the checkpoint, and tasks write it: on a cluster every executor must reach that folder, and the state must still be
there when the query is started again. The table does not have it.
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
    """Name of a stateful operator of a streaming frame, as Spark's analysed plan calls it; None if there is none."""
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
    """Check that a stateful frame finds its state again; does nothing for other frames.

    Args:
        df: The frame.
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
            f"the frame keeps state ({operator}), which is in the old checkpoint and not in the table",
            hint="bring that checkpoint back; or, if the state may begin empty, start a new query with a new "
            "checkpoint, explicit starting offsets, and takeover=True",
        )
    spark, context = df.sparkSession, df.sparkSession.sparkContext
    assert context.master is not None, "a running session has a master"
    refuse_local_state(operator, context.master, checkpoint, folder_scheme(spark, checkpoint))


def refuse_local_state(operator: str, master: str, checkpoint: str, scheme: str) -> None:
    """Refuse a local folder for the state of a cluster. One that is given with ``file:`` may be on a mounted share.

    Args:
        operator: Name of the stateful operator.
        master: Spark's master.
        checkpoint: Folder of the checkpoint, as given.
        scheme: Of the file system that Hadoop finds for it.

    Raises:
        InvalidInput: The folder is on a local disk, and tasks run on other machines.
    """
    if scheme == "file" and not checkpoint.startswith("file:") and not is_local(master):
        raise InvalidInput(
            f"the frame keeps state ({operator}), which executors store below checkpoint {checkpoint}: on a local disk "
            f"each machine of {master} would have another part of it",
            hint="give a checkpoint on a store that the driver and all executors reach, such as s3a:// or hdfs:// (for "
            "a mounted share a path that starts with file:)",
        )

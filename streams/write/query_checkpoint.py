"""Reads Spark's checkpoint of a query: where it is, its id, its last batches, and end offsets of batches.

It never writes. It reads through the JVM, because the folder may be on a file system that only Hadoop can access.

    metadata            {"id": ...}           the query, the same after every restart
    offsets/<batch>     the batch was planned; its end offsets in the sources
    commits/<batch>     the batch has finished: the sink has taken its rows without an error

Spark writes the files in this order, each before it continues, and plans a batch after the previous one has finished.
So a checkpoint has all three kinds of files, the first two, or the first one, and at most one batch is planned and not
finished. Any other checkpoint is incomplete: files of it were deleted, or only some were copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.spark.settings import in_cluster_mode, is_local

__all__ = [
    "Checkpoint",
    "check_place",
    "folder_scheme",
    "read_checkpoint",
    "read_offsets",
    "refuse_local_disk",
    "sibling_folders",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a query in its checkpoint.

    Attributes:
        folder: The folder, as the caller named it.
        query_id: Id of the query; "" if it has not begun.
        last: Number of its last finished batch; None before the first.
        planned: Number of its last planned batch; None before the first.
    """

    folder: str
    query_id: str
    last: int | None
    planned: int | None

    @property
    def damaged(self) -> bool:
        """Whether files are missing. Spark would refuse the checkpoint, or use the numbers of earlier batches again."""
        if not self.query_id:
            return self.last is not None or self.planned is not None
        return self.last is not None and (self.planned is None or self.planned < self.last)


def read_checkpoint(spark: SparkSession, folder: str) -> Checkpoint:
    """Read a checkpoint folder. If it does not exist, the query has not begun."""
    text = _read_text(spark, f"{folder}/metadata")
    query_id = "" if text is None else str(json.loads(text)["id"])
    last_committed, last_planned = (_newest_batch(spark, f"{folder}/{log}") for log in ("commits", "offsets"))
    return Checkpoint(folder, query_id, last_committed, last_planned)


def _newest_batch(spark: SparkSession, folder: str) -> int | None:
    return max((int(name) for name in _names(spark, folder) if name.isdecimal()), default=None)


def read_offsets(spark: SparkSession, folder: str, batch_id: int) -> dict[str, Any]:
    """Read the end offsets of a batch: ``{"offsets": [...]}`` with an item per source, null if it has no offset.

    Empty if the file is not in the form that this version of Spark writes.
    """
    text = _read_text(spark, f"{folder}/offsets/{batch_id}") or ""
    version, *lines = text.splitlines() or [""]
    if version != "v1":
        return {}
    return {"offsets": [None if line == "-" else json.loads(line) for line in lines[1:]]}


def check_place(spark: SparkSession, folder: str) -> None:
    """Check that a restarted query will find the folder of its checkpoint.

    The driver writes a checkpoint, through Hadoop. Executors write only the state of stateful operators into it
    (`weft.streams.write.stateful_frame`). So a local disk works if the driver always starts on the same machine, which
    it does not in spark-submit's cluster mode. A path without a scheme may be in HDFS: Hadoop's ``fs.defaultFS``
    decides.

    Raises:
        InvalidInput: The driver runs in cluster mode, and the folder is on its local disk.
    """
    context: Any = spark.sparkContext
    if not is_local(context.master) and in_cluster_mode(dict(context.getConf().getAll())):
        refuse_local_disk(folder, folder_scheme(spark, folder))


def folder_scheme(spark: SparkSession, folder: str) -> str:
    """Return the URL scheme of Hadoop's file system for a folder; ``file`` for a local disk."""
    files, _ = _open(spark, folder)
    return str(files.getUri().getScheme())


def refuse_local_disk(folder: str, scheme: str) -> None:
    """Refuse a folder on a local disk. A path that starts with ``file:`` is accepted: it may be on a mounted share.

    Args:
        folder: Folder of the checkpoint, as in the pipeline file.
        scheme: Scheme of the Hadoop file system for the folder.

    Raises:
        InvalidInput: The folder is on a local disk.
    """
    if scheme == "file" and not folder.startswith("file:"):
        raise InvalidInput(
            f"checkpoint {folder} is on the driver's local disk; in cluster mode the next driver has another disk",
            hint="set resume: table, which continues from the commits of the table; or put the checkpoint on a shared "
            "store (for a mounted share use a path that starts with file:)",
        )


def sibling_folders(spark: SparkSession, folder: str, mark: str) -> list[str]:
    """Return the folders beside ``folder`` whose names start with its name followed by ``mark``."""
    base = folder.rstrip("/").rpartition("/")[2]
    parent = folder.rstrip("/").removesuffix(base)
    return [parent + name for name in _names(spark, parent or ".") if name.startswith(base + mark)]


def _read_text(spark: SparkSession, path: str) -> str | None:
    """Read a small file; None if it does not exist."""
    files, place = _open(spark, path)
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - see `_open`
        text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return text


def _names(spark: SparkSession, path: str) -> list[str]:
    """List the names in a folder; empty if the folder does not exist."""
    files, place = _open(spark, path)
    if not files.exists(place):
        return []
    return [status.getPath().getName() for status in files.listStatus(place)]


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path, and its object for the path."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no public way to Hadoop's file systems
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), place  # noqa: SLF001 - as above

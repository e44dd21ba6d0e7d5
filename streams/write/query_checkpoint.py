"""Reads Spark's checkpoint of a query: its id, its last finished batch, and end offsets of batches.

Nothing here writes. The folder may be where only Hadoop can read, so it is read through the JVM.

    metadata            {"id": ...}           the query, the same after every restart
    offsets/<batch>     planned: where the batch ends in its sources
    commits/<batch>     finished: its rows were handed over, and the sink did not fail
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["Checkpoint", "read_checkpoint", "read_offsets", "sibling_folders"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A query, as its checkpoint describes it.

    Attributes:
        folder: The folder, as given.
        query_id: "" for a query that has not begun.
        last: Its last finished batch; None before the first.
    """

    folder: str
    query_id: str
    last: int | None


def read_checkpoint(spark: SparkSession, folder: str) -> Checkpoint:
    """The query whose checkpoint a folder is; one that has not begun if there is no such folder."""
    text = _read_text(spark, f"{folder}/metadata")
    finished = [int(name) for name in _names(spark, f"{folder}/commits") if name.isdecimal()]
    return Checkpoint(folder, "" if text is None else str(json.loads(text)["id"]), max(finished, default=None))


def read_offsets(spark: SparkSession, folder: str, batch_id: int) -> dict[str, Any]:
    """Where a batch ends in its sources: ``{"offsets": [one a source, null for none]}``.

    Empty if Spark has changed the form of its checkpoint.
    """
    text = _read_text(spark, f"{folder}/offsets/{batch_id}") or ""
    version, *lines = text.splitlines() or [""]
    if version != "v1":
        return {}
    return {"offsets": [None if line == "-" else json.loads(line) for line in lines[1:]]}


def sibling_folders(spark: SparkSession, folder: str, mark: str) -> list[str]:
    """Folders beside ``folder`` whose names start with its name followed by ``mark``."""
    base = folder.rstrip("/").rpartition("/")[2]
    parent = folder.rstrip("/").removesuffix(base)
    return [parent + name for name in _names(spark, parent or ".") if name.startswith(base + mark)]


def _read_text(spark: SparkSession, path: str) -> str | None:
    """A small file, None if there is none."""
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
    """Names in a folder; none if there is no such folder."""
    files, place = _open(spark, path)
    if not files.exists(place):
        return []
    return [status.getPath().getName() for status in files.listStatus(place)]


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system of a path, and the path in its words."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no public way to Hadoop's file systems
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), place  # noqa: SLF001 - as above

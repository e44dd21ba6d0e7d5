"""Checks whether Spark's own readers can read the files of a table.

weft accesses its store through fsspec with the given options. Spark's readers access it through Hadoop, which may not
know the kind of store, or may lack its jar, endpoint or credentials. If Hadoop does not find a file, tasks read it
through fsspec, which is slower and gives the same result.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from streams.read.relation.planner_interface import ParquetFile

_LOCAL: Final = "file"
"""URL scheme of local files, for which no check is needed: every process must have access to a local table anyway."""


class HadoopAccess:
    """Checks once whether Hadoop finds a file of a table; all files of a table are in the same store."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._found: bool | None = None

    def __call__(self, file: ParquetFile) -> bool:
        """Whether Spark finds this file. File names are unique, so the same size means the same file."""
        if urlsplit(file.path).scheme == _LOCAL:
            return True
        if self._found is None:
            self._found = self._ask(file)
        return self._found

    def _ask(self, file: ParquetFile) -> bool:
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - no public way to Hadoop's file systems
        session: Any = self._spark._jsparkSession  # noqa: SLF001 - the same
        try:
            path = jvm.org.apache.hadoop.fs.Path(file.path)
            status = path.getFileSystem(session.sessionState().newHadoopConf()).getFileStatus(path)
            return int(status.getLen()) == file.size_bytes
        except Py4JError:  # no such file system, no jar, no credentials, no such file
            return False

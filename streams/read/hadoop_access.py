"""Finds the URL by which Spark's own readers find the files of a table, if they can read them.

weft accesses its store through fsspec with the given options. Spark's readers access it through Hadoop, which may not
know the kind of store, or may lack its jar, endpoint or credentials. If Hadoop does not find a file, tasks read it
through fsspec, which is slower and gives the same result.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from weft.streams.read.relation.planner_interface import ParquetFile

_LOCAL: Final = "file"
"""URL scheme of local files, for which no check is needed: every process must have access to a local table anyway."""
_HADOOP_SCHEMES: Final = {"s3": ("s3", "s3a")}
"""Hadoop's schemes for a kind of store, in the order in which they are tried, if they differ from weft's. ``s3`` exists
on EMR, or if ``fs.s3.impl`` is set."""
_HASTE: Final = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.establish.timeout": "15s",  # the shortest that S3A takes
}
"""Settings of the request alone. With the defaults a store that does not answer delays the first query by minutes."""


class HadoopAccess:
    """Checks once whether Hadoop finds a file of a table; all files of a table are in the same store."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._asked = False
        self._scheme: str | None = None

    def __call__(self, file: ParquetFile) -> ParquetFile | None:
        """The file under the URL by which Spark finds it; None if Spark does not find it."""
        scheme, _, rest = file.path.partition(":")
        if scheme == _LOCAL:
            return file
        if not self._asked:
            names = _HADOOP_SCHEMES.get(scheme, (scheme,))
            schemes = (name for name in names if self._ask(file._replace(path=f"{name}:{rest}")))
            self._scheme, self._asked = next(schemes, None), True
        return None if self._scheme is None else file._replace(path=f"{self._scheme}:{rest}")

    def _ask(self, file: ParquetFile) -> bool:
        """Whether Hadoop finds this file. File names are unique, so the same size means the same file."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - no public way to Hadoop's file systems
        session: Any = self._spark._jsparkSession  # noqa: SLF001 - the same
        try:
            path, settings = jvm.org.apache.hadoop.fs.Path(file.path), session.sessionState().newHadoopConf()
            for name, value in _HASTE.items():
                settings.set(name, value)
            # Not the file system that Hadoop keeps for all of this process: the settings are not for that one.
            files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), settings)
            try:
                return int(files.getFileStatus(path).getLen()) == file.size_bytes
            finally:
                files.close()
        except Py4JError:  # no such file system, no jar, no credentials, no such file
            return False

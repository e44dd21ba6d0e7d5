"""Helpers of the sink's tests: a source to fill, running a query to its end, and the resulting rows and files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from weft import Table
from weft.streams.write.sink import write_stream

WAIT_SECONDS = 300
"""Time limit of a query. The first query of a process takes 15 s of an idle machine of two processors, which start
Spark's Python workers and compile; on a busy machine that is minutes."""
TEST_SECONDS = 3 * WAIT_SECONDS
"""Time limit of a test."""

TOO_BUSY: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start. A very busy machine needs more; then the query starts again."""
STARTS: Final = 10

COLUMNS = "id bigint, status string, seq bigint"


class Feed:
    """A folder of JSON files as a streaming source: a file is a partition, `maxFilesPerTrigger` files are a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        folder.mkdir()
        self._spark, self._folder, self._count = spark, folder, 0

    def put(self, *rows: dict[str, Any]) -> None:
        self._count += 1
        hidden = self._folder / f"_{self._count}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark reads the files in the order of their times.
        os.utime(hidden, (time.time() - 1000 + self._count,) * 2)
        hidden.rename(self._folder / f"{self._count}.json")

    def read(self, per_batch: int = 1, columns: str = COLUMNS) -> DataFrame:
        reader = self._spark.readStream.schema(columns).option("maxFilesPerTrigger", per_batch)
        return reader.json(str(self._folder))


def event(key: int | None, seq: int | None = 1, status: str = "new") -> dict[str, Any]:
    return {"id": key, "status": status, "seq": seq}


def run(df: DataFrame, table: Table, tmp_path: Path, stream: str = "orders", **given: Any) -> StreamingQuery:
    """Run a query over the existing input to its end; raises its error.

    It starts again if Spark's process that plans a Kafka source was too slow, before anything is read. With ``resume``
    the caller does, from a new point.
    """
    given = {"checkpoint": str(tmp_path / "checkpoint"), "once": True, **given}
    for starts_left in reversed(range(1 if "resume" in given else STARTS)):
        query = write_stream(df, table.uri, stream, **given)
        try:
            assert query.awaitTermination(WAIT_SECONDS), "the query has not ended in time"
        except StreamingQueryException as error:
            if TOO_BUSY not in str(error) or not starts_left:
                raise
        else:
            return query
        finally:
            query.stop()
    raise AssertionError("the last start returns or raises")


def rows(table: Table) -> list[tuple[Any, ...]]:
    found = table.snapshot().to_arrow(["id", "status", "seq"]).to_pylist()
    return sorted(tuple(row.values()) for row in found)


def log_files(tmp_path: Path) -> set[str]:
    """Names of the complete log files; those that are being written begin with a dot."""
    return {path.name for path in (tmp_path / "table/log").rglob("[!.]*.arrow")}

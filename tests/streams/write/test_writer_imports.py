"""Modules that a writer must not import, because each costs every writer startup time and memory."""

from __future__ import annotations

import subprocess
import sys

NOT_NEEDED = (
    "aiobotocore",
    "boto3",
    "duckdb",
    "fsspec.implementations.http",
    "polars",
    "prometheus_client",
    "pyspark.ml",
    "pyspark.pandas",
    "rich",
    "s3fs",
    "weft.streams.cli",
    "weft.streams.demo",
    "weft.streams.read",
    "typer",
)
IMPORTED = """
import sys
import weft.streams.write.writer_job, weft.streams.pipeline.file.pipeline, weft.streams.pipeline.run.lag
import weft.streams.pipeline.file.check
import weft.streams.kafka, weft.streams.kafka.cluster, weft.streams.spark.session, weft.streams.spark.planning_threads
import weft.streams.write.sink, weft.streams.write.resume, weft.streams.write.query_checkpoint
import weft.streams.write.decode
print("\\n".join(sys.modules))
"""


def test_a_writer_imports_only_needed_modules() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "weft.streams.write.sink" in modules
    extra = sorted(name for name in modules if name.startswith(tuple(f"{prefix}." for prefix in NOT_NEEDED)))
    assert not extra
    assert not set(modules) & set(NOT_NEEDED)

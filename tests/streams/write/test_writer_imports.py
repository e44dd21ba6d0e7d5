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
    "streams.cli",
    "streams.demo",
    "streams.read",
    "typer",
)
IMPORTED = """
import sys
import streams.write.writer_job, streams.pipeline.file.pipeline, streams.pipeline.run.lag, streams.pipeline.file.check
import streams.kafka, streams.kafka.cluster, streams.spark.session, streams.spark.planning_threads
import streams.write.sink, streams.write.resume, streams.write.query_checkpoint, streams.write.decode
print("\\n".join(sys.modules))
"""


def test_a_writer_imports_only_needed_modules() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert "streams.write.sink" in modules
    extra = sorted(name for name in modules if name.startswith(tuple(f"{prefix}." for prefix in NOT_NEEDED)))
    assert not extra
    assert not set(modules) & set(NOT_NEEDED)

"""The checks of Arrow at each value: weft turns them off in the JVM of any session with a view."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from storage import Table
from streams.read.view import create_view

spark = (
    SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
)
config = {"columns": {"k": "bigint", "v": "bigint"}, "key": ["k"], "buckets": 1,
          "groups": {"g": {"columns": ["v"], "ordering": ["v"]}}, "streams": {"s": {"groups": ["g"]}}}
table = Table.create(sys.argv[1], config)
with table.writer("s") as writer:
    writer.append(pa.table({"k": [1, 2], "v": [10, 20]}))
create_view(spark, sys.argv[1], "wide", push_aggregates=False)
print("sum", spark.sql("SELECT sum(v) FROM wide").first()[0])
print("checks", spark._jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED,
      spark._jvm.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "environment", "checks"),
    [
        ("-Dmine=1", {}, "False False"),
        ("-Darrow.enable_unsafe_memory_access=false", {}, "True False"),
        ("-Darrow.enable_null_check_for_get=true", {}, "False True"),
        ("-Dmine=1", {"ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "false"}, "True False"),
    ],
)
def test_a_view_turns_the_checks_off_unless_the_user_has_chosen(
    tmp_path: Path, options: str, environment: dict[str, str], checks: str
) -> None:
    script = tmp_path / "read.py"
    script.write_text(SCRIPT)
    here = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "table"), options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": here, "PYSPARK_PYTHON": sys.executable, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["sum 30", f"checks {checks}"]

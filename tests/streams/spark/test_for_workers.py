"""Workers without weft fail with a hint, whatever they run."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.streams.catalog.test_discovery import CONFIG, START_SECONDS, append
from weft import Table
from weft.streams.kafka.kafka_source import KafkaStreamReader
from weft.streams.kafka.options import parse_options
from weft.streams.read.table_source import WeftSource
from weft.streams.spark.for_workers import for_workers

NEEDED = (
    *("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata"),
    *("numpy.libs", "pyarrow.libs", "pandas.libs"),
)
"""Packages that a Spark worker needs for Arrow."""

JOBS = """
import sys
from pyspark.sql import SparkSession
import weft.streams
import weft.streams.kafka
from weft.streams.demo.embedded_broker import EmbeddedBroker
uri, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
weft.register(spark)
weft.streams.kafka.register(spark)
rows = spark.sql("SELECT 9L AS id, 'x' AS a, 9L AS at")
rows.write.json(f"{folder}/feed")
feed = spark.readStream.schema("id bigint, a string, at bigint").json(f"{folder}/feed")

def view():
    weft.create_view(spark, uri, "v")
    spark.table("v").collect()

def stream():
    query = weft.write_stream(feed, uri, "sa", checkpoint=f"{folder}/checkpoint", once=True)
    query.awaitTermination(300)

def kafka(reader):
    # The driver plans with its own Python, so that only tasks need weft; without a message there is no task.
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t", "startingOffsets": "earliest"}
    return reader.format("weft_kafka").options(**options).load()

def kafka_stream():
    query = kafka(spark.readStream).writeStream.format("noop").option("checkpointLocation", f"{folder}/kafka")
    query.trigger(availableNow=True).start().awaitTermination(300)

jobs = {
    "view": view,
    "snapshot": lambda: weft.snapshot(spark, uri).collect(),
    "format": lambda: spark.read.format("weft").load(uri).collect(),
    "kafka": lambda: kafka(spark.read).collect(),
    "kafka_stream": kafka_stream,
    "write_batch": lambda: weft.write_batch(rows, uri, "sa"),
    "write_stream": stream,
    "compact": lambda: weft.compact(spark, uri),
    "fold": lambda: weft.fold(spark, uri),
    "verify": lambda: weft.verify(spark, uri),
}
with EmbeddedBroker() as broker:
    broker.create_topics({"t": 1})
    producer = broker.producer()
    producer.produce("t", b"{}")
    producer.flush(60)
    for name, job in jobs.items():
        for _ in range(10):
            try:
                job()
                text = None
            except Exception as error:
                text = str(error)
            # A busy machine: `tests.streams.support.slow_starts`.
            if text is None or "Python worker failed to connect back" not in text:
                break
        if text is None:
            print("RAN", name)
        else:
            good = "cannot import weft: No module named" in text
            good &= "hint: install weft where the executors run" in text
            print("TOLD" if good else f"BARE {text[-2000:]}", name)
"""


@pytest.fixture
def without_weft(tmp_path: Path) -> Path:
    """A Python with the packages of Spark's workers, but without weft."""
    packages = tmp_path / "packages"
    packages.mkdir()
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parents[1]
    for name in NEEDED:
        for found in (site / name, site / f"{name}.py"):
            if found.exists():
                (packages / found.name).symlink_to(found)
    python = tmp_path / "python"
    # Spark sets PYTHONPATH for its workers, and they start in the working directory of the driver.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" -S -P "$@"\n')
    python.chmod(0o755)
    return python


def test_readers_without_weft_fail_with_a_hint(tmp_path: Path, without_weft: Path) -> None:
    # A worker with weft plans, and one without weft reads.
    table = Table.create(tmp_path / "table", CONFIG)
    source = WeftSource({"path": table.uri})
    changes = WeftSource({"path": table.uri, "starting": "earliest"})
    asked = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
    kafka = KafkaStreamReader(parse_options(asked, default_starting="latest"))
    for reader in (source.reader(source.schema()), changes.streamReader(changes.schema()), kafka):
        sent = tmp_path / type(reader).__name__
        sent.write_bytes(cloudpickle.dumps(reader))
        code = f"import pickle; pickle.load(open({str(sent)!r}, 'rb'))"
        done = subprocess.run([without_weft, "-c", code], capture_output=True, text=True, check=False, timeout=300)
        assert "hint: install weft where the executors run" in done.stderr, done.stderr
        again = pickle.loads(cloudpickle.dumps(reader))
        assert type(again) is type(reader)
        assert again.__dict__.keys() == reader.__dict__.keys()


@pytest.mark.spark
@pytest.mark.timeout(START_SECONDS + 60)
def test_a_worker_without_weft_fails_with_a_hint(tmp_path: Path, without_weft: Path) -> None:
    for module, there in (("weft", 1), ("pyspark, pyarrow, pandas", 0)):
        done = subprocess.run([without_weft, "-c", f"import {module}"], capture_output=True, check=False, timeout=300)
        assert done.returncode == there, done.stderr
    table = Table.create(tmp_path / "table", CONFIG)
    append(table, 1, 2)
    done = subprocess.run(
        [sys.executable, "-c", JOBS, table.uri, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": str(without_weft), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = [
        "view",
        "snapshot",
        "format",
        "kafka",
        "kafka_stream",
        "write_batch",
        "write_stream",
        "compact",
        "fold",
        "verify",
    ]
    assert done.stdout.splitlines() == [f"TOLD {name}" for name in names]
    assert sorted(table.snapshot().to_arrow(["id"])["id"].to_pylist()) == [1, 2]
    assert [name for name in table.state().lanes if name.startswith("sa-batch")] == ["sa-batches-1"]


def frozen_objects(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "objects": [gc.get_freeze_count()]})


def test_modules_of_a_worker_that_is_used_again_are_not_searched_for_garbage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "WEFT_TEST_POOL", str(tmp_path))  # workers that start here
    task = for_workers(frozen_objects)
    frame = spark.range(1, numPartitions=1).mapInArrow(task, "pid long, objects long")
    seen = [frame.collect()[0] for _ in range(4)]
    assert len({row.pid for row in seen}) == 1, "one task at a time needs one worker"
    first, *later = (row.objects for row in seen)
    assert first == 0, "what later functions need is not imported yet"
    assert min(later) > 10_000
    task(iter([]))
    list(task(iter([])))
    assert gc.get_freeze_count() == 0, "this process is not a worker"

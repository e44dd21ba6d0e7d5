"""A pipeline on a real standalone cluster, whose executors have only what is sent to them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.stores.places import Place
from tests.streams.cluster.standalone import Cluster, until
from tests.streams.support.pipelines import CONFIG
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.run import open_table, service_job, writer_job
from weft.streams.pipeline.run.supervisor import ENDED, JobStatus, RestartPolicy, Supervisor

LIMIT_SECONDS = 420.0
ROOT = Path(__file__).parents[3]
ONCE = RestartPolicy(max_failures=1, waits_out=False)

pytestmark = [pytest.mark.spark, pytest.mark.extended, pytest.mark.timeout(900)]


def pipeline_file(
    folder: Path, broker: EmbeddedBroker, topic: str, spark: dict[str, Any], table: Place | None = None
) -> Path:
    """The file of a pipeline with one writer. Its table is beside the file unless a place is given."""
    source = {"type": "kafka", "topic": topic, "starting_offsets": "earliest"}
    place = table or Place("./wide")
    writer = {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}, "trigger": "500 ms"}
    whole = {
        "table": {"config": CONFIG, "uri": place.uri, "storage_options": dict(place.options)},
        "kafka": {"bootstrap.servers": broker.bootstrap_servers},
        "spark": spark,
        "writers": {"sa": writer},
        "compaction": False,
    }
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


def produce(broker: EmbeddedBroker, topic: str, ids: range) -> None:
    producer = broker.producer()
    for number in ids:
        producer.produce(topic, b'{"id": %d, "a": "x", "at": %d}' % (number, number), partition=number % 2)
    assert producer.flush(60) == 0


def seen(supervisor: Supervisor, wanted: Callable[[JobStatus], bool]) -> JobStatus:
    """Wait for a status of the writer that satisfies a condition."""
    for _ in until(time.monotonic() + LIMIT_SECONDS):
        status = supervisor.poll()[0]
        if wanted(status):
            return status
        assert status.phase not in ENDED, (status.message, status.tail)
    raise AssertionError(f"this did not come to be; the last status: {supervisor.statuses[0]}")


def test_a_writer_reports_that_it_waits_for_executors_and_survives_the_loss_of_one(
    tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str]
) -> None:
    broker.create_topics({"cluster-one": 2})
    produce(broker, "cluster-one", range(100))
    with Cluster(workers=0) as cluster:
        path = pipeline_file(tmp_path, broker, "cluster-one", {"spark.master": cluster.master, **on_executors})
        pipeline = load_pipeline(path)
        open_table(pipeline)
        supervisor = Supervisor([writer_job(pipeline, "sa")], ONCE)
        supervisor.start()
        try:
            waiting = seen(supervisor, lambda status: bool(status.report.waiting_for))
            assert waiting.report.waiting_for == f"an executor of {cluster.master}"
            assert waiting.report.doing == "waiting"
            assert "spark.cores.max" in waiting.report.message
            assert waiting.report.waiting_since_ms is not None
            assert waiting.report.reported_at_ms is not None
            assert waiting.report.reported_at_ms - waiting.report.waiting_since_ms >= 15_000
            cluster.add_worker()
            seen(supervisor, lambda status: status.report.rows == 100 and not status.report.waiting_for)
            assert "an executor of" not in supervisor.statuses[0].report.message
            cluster.daemons[-1].kill()
            produce(broker, "cluster-one", range(100, 150))
            cluster.add_worker()
            seen(supervisor, lambda status: status.report.rows == 150)
            assert supervisor.statuses[0].restarts == 0
        finally:
            supervisor.stop(at_once=True)
    rows = Table.open(pipeline.table.uri).snapshot().to_arrow(["id", "at"]).sort_by("id").to_pylist()
    assert rows == [{"id": number, "at": number} for number in range(150)]


def test_executors_without_weft_cause_an_error_with_a_hint(
    tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str]
) -> None:
    base = str(Path(sys.base_prefix, "bin", "python3"))
    assert subprocess.run([base, "-c", "import weft.storage"], capture_output=True, check=False, env={}).returncode == 1
    broker.create_topics({"cluster-two": 2})
    produce(broker, "cluster-two", range(10))
    bare = {**on_executors, "spark.pyspark.python": base}
    del bare["spark.archives"]
    with Cluster(workers=1) as cluster:
        path = pipeline_file(tmp_path, broker, "cluster-two", {"spark.master": cluster.master, **bare})
        pipeline = load_pipeline(path)
        open_table(pipeline)
        supervisor = Supervisor([writer_job(pipeline, "sa")], ONCE)
        supervisor.start()
        try:
            for _ in until(time.monotonic() + LIMIT_SECONDS):
                status = supervisor.poll()[0]
                if status.phase in ENDED:
                    break
        finally:
            supervisor.stop(at_once=True)
    assert status.exit_code == Ending.REFUSED, (status.message, status.tail)
    assert "a Python worker of Spark lacks a package: No module named" in status.message
    assert "weft package" in status.message


def cli(*arguments: str) -> str:
    """Run a command in a separate process; it must succeed. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "weft.streams.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


def test_services_run_on_executors(tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str]) -> None:
    """The compaction service, a fold, a verification and a query; executors have nothing but what is sent to them."""
    with Cluster(workers=0) as cluster:
        path = pipeline_file(tmp_path, broker, "unused", {"spark.master": cluster.master, **on_executors})
        whole = yaml.safe_load(path.read_text())
        calm = {"min_commits": 1_000, "max_log_ratio": 1e9, "fold_commits": 3}
        whole["compaction"] = {"on": "cluster", "every": "1 second", **calm}
        path.write_text(yaml.safe_dump(whole))
        pipeline = load_pipeline(path)
        table = open_table(pipeline)
        append(table, range(100), at=0)
        # Without writers a background job would be stopped.
        supervisor = Supervisor(
            [replace(service_job(pipeline, "compaction"), background=False, stop_seconds=LIMIT_SECONDS)], ONCE
        )
        supervisor.start()
        try:
            seen(supervisor, lambda status: status.report.waiting_for == f"an executor of {cluster.master}")
            cluster.add_worker()
            # A first slice is due at once, and later commits are due for a fold when there are three.
            status = seen(supervisor, lambda status: status.report.commits == 1)
            assert status.report.message.startswith("2 file groups, ")
            with table.writer("sa") as writer:
                for number in range(3):
                    writer.append(rows(range(number + 1), at=1))
            seen(supervisor, lambda status: status.report.commits == 2 and " MB folded in " in status.report.message)
        finally:
            ended = supervisor.stop()
        assert ended[0].exit_code == Ending.DONE, (ended[0].message, ended[0].tail)
        append(table, range(8), at=3)
        assert "2 file groups" in cli("compact", str(path), "--all")
        assert "nothing is wrong" in cli("verify", str(path), "--on-cluster")
        before = len(cluster.applications())
        assert json.loads(cli("sql", str(path), "SELECT count(*) AS rows, max(at) AS at FROM t", "--json")) == {
            "rows": 100,
            "at": 3,
        }
        assert len(cluster.applications()) == before + 1, "the query ran on executors"
    found = Table.open(pipeline.table.uri).snapshot().to_arrow(["id", "at"]).sort_by("id").to_pylist()
    assert found == [{"id": number, "at": 3 if number < 8 else 0} for number in range(100)]


def rows(ids: range, *, at: int) -> pa.Table:
    return pa.table({"id": ids, "a": ["x"] * len(ids), "at": [at] * len(ids)})


def append(table: Table, ids: range, *, at: int) -> None:
    with table.writer("sa") as writer:
        writer.append(rows(ids, at=at))


STATEFUL = """
import sys
from pyspark.sql import SparkSession
import weft.streams
from weft.storage.errors import InvalidInput
master, uri, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
df = spark.readStream.format("rate").load().selectExpr("value AS id", "'x' AS a", "value AS at")
try:
    weft.write_stream(df.dropDuplicates(["id"]), uri, "sa", checkpoint=checkpoint)
except InvalidInput as error:
    print(error.message)
"""


def test_a_stateful_frame_with_a_local_checkpoint_is_refused(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    before = table.snapshot().cut
    with Cluster(workers=0) as cluster:
        command = [sys.executable, "-c", STATEFUL, cluster.master, table.uri, str(tmp_path / "c")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True, cwd=ROOT)
    assert f"(Deduplicate), which executors store below checkpoint {tmp_path}/c" in done.stdout
    assert table.snapshot().cut == before

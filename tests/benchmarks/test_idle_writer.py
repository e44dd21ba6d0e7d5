"""The processes of an idle writer, and the flags of its JVM; without measuring time."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks.idle_writer import PARTITIONS, ROOT, SPAWNING, TOPIC, first_commit, produce, start, write_pipeline
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.spark.settings import SERIAL, SMALL

MINE = "-Dmine=1 -Xss2m -XX:TieredStopAtLevel=1"
SPAWN_SECONDS = 240.0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_writer_has_one_python_one_jvm_and_workers_for_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # set for tests, in tests/conftest.py
    with EmbeddedBroker() as broker:
        broker.create_topics({TOPIC: PARTITIONS})
        settings = {"spark.driver.extraJavaOptions": MINE, "spark.master": "local[1]"}
        path = write_pipeline(tmp_path, broker.bootstrap_servers, "100 ms", settings)
        produce(broker, 0)
        with start(ROOT, path) as writer:
            first_commit(writer, load_pipeline(path).state, set())
            deadline = time.monotonic() + SPAWN_SECONDS
            while SPAWNING in (kinds := Counter(process.kind for process in writer.tree.processes())):
                assert time.monotonic() < deadline, kinds
                time.sleep(0.05)
            flags = writer.tree.jvm_flags()
    tasks = {kind: kinds.pop(kind) for kind in ("daemon, worker", "worker") if kind in kinds}
    assert tasks["daemon, worker"] == 1, "one for all tasks"
    # Spark's planning is done in the job; the scripts in place of its processes only wait, and need hardly any memory.
    assert kinds == {"job": 1, "JVM": 1, "cat": 4}, kinds
    given = [flag for flag in MINE.split() if flag.startswith("-X")]
    assert [flag for flag in flags.split() if flag in {*SERIAL.split(), *SMALL.split(), *given}] == [
        *SERIAL.split(),
        *SMALL.split(),
        *given,
    ], f"those of the user come last: {flags}"

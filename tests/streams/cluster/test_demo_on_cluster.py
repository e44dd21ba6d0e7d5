"""Six applications on a cluster of two workers, over one table on a real S3 server; a worker and a driver are killed.

Three writers of the demo are processes of a pipeline, and the fourth runs by spark-submit. Compaction and a session of
queries are applications of the user, started by spark-submit too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft.streams.write.writer_job
from tests.stores.places import Place
from tests.stores.real_server import real_server
from tests.streams.cluster.standalone import SPARK_HOME, Cluster, until
from weft import Table
from weft.storage.config.config_file import read_yaml
from weft.streams.demo import shop
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.feed import Feed, TableProgress
from weft.streams.demo.workload import plan_topics
from weft.streams.pipeline.file.pipeline import Pipeline, load_pipeline
from weft.streams.pipeline.run.run import open_table, writer_job
from weft.streams.pipeline.run.supervisor import ENDED, Job, JobStatus, Supervisor

# Nightly: it took 680 of the 2,900 CPU seconds of the extended loop. That one tests the parts one by one: a writer that
# loses its worker, services and a query (test_standalone.py), a writer by spark-submit with a table on S3
# (test_spark_submit.py), compaction whose driver or worker is killed (test_killed_compaction.py), and a killed driver
# of a writer (test_killed_without_checkpoint.py). Only here are they at work on one table at the same time.
pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(2700)]

ROWS = 3_000
LIMIT_SECONDS = 1_800.0  # two busy cores take seven minutes
END_SECONDS = 300.0
BY_SUBMIT = "clicks"
VICTIM = "orders"
JOBS = Path(__file__).parent


@pytest.fixture
def place() -> Iterator[Place]:
    with real_server() as backend:
        yield backend.new_place()


def write_pipeline(folder: Path, broker: EmbeddedBroker, place: Place, spark: Mapping[str, str]) -> Pipeline:
    """The demo's pipeline file, with its table on the store and its writers on the cluster."""
    path = shop.write_pipeline(folder, broker.bootstrap_servers)
    whole = read_yaml(path)
    whole["table"] |= {"uri": place.uri, "storage_options": dict(place.options)}
    whole["spark"] = dict(spark)
    whole["compaction"] = False
    for writer in whole["writers"].values():
        del writer["dead_letter"]  # beside the table, where executors can write
        writer["trigger"] = "500 ms"
    whole["writers"]["payments"]["resume"] = "table"
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return load_pipeline(path)


@dataclass
class Application:
    """A process of spark-submit, which is the leader of a process group."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def check_alive(self) -> None:
        assert self.process.poll() is None, self.output[-4_000:]

    def last_line(self) -> str:
        """The last line of the application, after it has ended by itself."""
        assert self.process.wait(END_SECONDS) == 0, self.output[-4_000:]
        return [line for line in self.output.splitlines() if line.startswith(("{", "compacted"))][-1]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_SECONDS)


def submit(folder: Path, master: str, spark: Mapping[str, str], script: Path, *arguments: str) -> Application:
    """Run a script with the spark-submit of the installed PySpark, with the driver on this machine."""
    conf = {**spark, "spark.pyspark.driver.python": sys.executable, "spark.log.level": "WARN"}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    root = str(JOBS.parents[2])
    log = folder / f"{script.stem}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": root, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
    return Application(process, log)


class Run:
    """Starts the applications one after the other, produces the messages, and kills a worker and a driver."""

    def __init__(self, cluster: Cluster, feed: Feed, progress: TableProgress, deadline: float) -> None:
        self._cluster, self._feed, self._progress, self._deadline = cluster, feed, progress, deadline
        self._supervisors: dict[str, Supervisor] = {}
        self._submitted: list[Application] = []
        self.killed: list[str] = []

    def start(self, job: Job) -> None:
        """Start a writer of the pipeline; returns after its first commit."""
        self._supervisors[job.name] = Supervisor([job])
        self._supervisors[job.name].start()
        self._wait(lambda: self._progress.messages[job.name] > 0, job.name)

    def stop(self, *, at_once: bool = False) -> dict[str, JobStatus]:
        """Stop the writers of the pipeline."""
        return {name: supervisor.stop(at_once=at_once)[0] for name, supervisor in self._supervisors.items()}

    def add(self, application: Application, ready: Callable[[], bool]) -> None:
        """Register a submitted application; returns when it is working."""
        self._submitted.append(application)
        self._wait(ready, application.log.stem)

    def finish(self) -> None:
        """Produce the remaining messages, kill a worker and a driver, and wait until all messages are in the table."""
        self._wait(self._step, "the rest")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        for _ in until(self._deadline):
            for name, supervisor in self._supervisors.items():
                status = supervisor.poll(0.05)[0]
                assert status.phase not in ENDED, (name, status.message, status.tail)
            for application in self._submitted:
                application.check_alive()
            self._progress.refresh()
            if done():
                return
        raise AssertionError((what, self.killed, self._progress.messages))

    def _step(self) -> bool:
        share = self._progress.share(VICTIM)
        if not self.killed and share >= 1 / 4:
            self._cluster.daemons[-1].kill()
            self.killed.append("worker")
        elif self.killed == ["worker"] and share >= 1 / 2:
            victim = self._supervisors[VICTIM].statuses[0]
            if victim.pid is not None:
                os.killpg(victim.pid, signal.SIGKILL)
                self.killed.append("driver")
        if not self._feed.finished and self._feed.share <= share + 0.25:
            self._feed.send_part()
        return self._feed.finished and self._progress.complete and self.killed == ["worker", "driver"]


def test_the_demo_on_a_cluster(tmp_path: Path, place: Place, on_executors: dict[str, str]) -> None:
    topics = plan_topics(ROWS, seed=11)
    stop = tmp_path / "stop"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        # Each worker alone has enough cores and memory for all six applications.
        cluster = stack.enter_context(Cluster(workers=2, cores=6, memory="4g"))
        pipeline = write_pipeline(tmp_path, broker, place, {"spark.master": cluster.master, **on_executors})
        open_table(pipeline)
        feed = Feed(broker, topics)
        progress = TableProgress(place.uri, topics, place.options)
        run = Run(cluster, feed, progress, time.monotonic() + LIMIT_SECONDS)
        stack.callback(run.stop, at_once=True)
        feed.send_part()
        for name in topics:
            if name != BY_SUBMIT:
                run.start(writer_job(pipeline, name))

        def start(script: Path, *arguments: str) -> Application:
            application = submit(tmp_path, cluster.master, on_executors, script, *arguments)
            stack.callback(application.kill)
            return application

        writer = start(Path(str(weft.streams.write.writer_job.__file__)), str(pipeline.path), BY_SUBMIT)
        run.add(writer, lambda: progress.messages[BY_SUBMIT] > 0)
        options = json.dumps(dict(place.options))
        compaction = start(JOBS / "compaction_job.py", place.uri, options, str(stop))
        run.add(compaction, lambda: "round 1" in compaction.output)
        queries = start(JOBS / "query_job.py", str(pipeline.path), str(stop), str(ROWS), str(tmp_path / "reference"))
        run.add(queries, lambda: "query 1" in queries.output)
        run.finish()
        stop.touch()
        statuses = run.stop()
        os.kill(writer.process.pid, signal.SIGTERM)
        answer: dict[str, Any] = json.loads(queries.last_line())
        compacted = int(compaction.last_line().split()[1])
        progress.refresh()
        report = Table.open(place.uri, storage_options=place.options).verify()
    assert progress.events == progress.messages, "sums would differ if rows were written twice"
    assert statuses[VICTIM].restarts >= 1
    assert progress.claims[VICTIM] >= 2
    assert (answer["equal"], answer["topics"]) == (True, True), answer
    assert answer["queries"] > 1
    assert answer["rows"][0] == answer["rows"][1] > 100
    assert compacted > 0
    assert not report.errors

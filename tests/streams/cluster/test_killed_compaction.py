"""The compaction service on a cluster: its driver, and then a worker, is killed in the middle of a job."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tests.streams.cluster.standalone import Cluster, until
from tests.streams.cluster.test_standalone import pipeline_file
from tests.streams.support.pipelines import CONFIG
from weft import Table
from weft.storage.core.names import Path as StorePath
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import open_table, service_job
from weft.streams.pipeline.run.supervisor import ENDED, JobStatus, Supervisor

pytestmark = [pytest.mark.spark, pytest.mark.extended, pytest.mark.timeout(1_500)]

LIMIT_SECONDS = 600.0
BUCKETS = 8
ROWS = 40_000
TEXT_BYTES = 1_000
"""A file group has 2.5 MB, so each is a task: smaller ones would share a task."""
ROUNDS = 20
"""Rounds in which to catch the service in the middle of a job."""
NOW = dt.timedelta(0)


class Rows:
    """What is written to the table, and which rows it has to show: of each key the newest."""

    def __init__(self) -> None:
        self._source = np.random.default_rng(7)
        self._newest: dict[int, tuple[str, int]] = {}

    def next(self, at: int) -> pa.Table:
        """Two thirds of the keys, with texts that cannot be compressed."""
        ids = np.flatnonzero(self._source.random(ROWS) < 2 / 3)
        texts = [self._source.bytes(TEXT_BYTES // 2).hex() for _ in ids]
        self._newest.update((key, (text, at)) for key, text in zip(ids.tolist(), texts, strict=True))
        return pa.table({"id": ids, "a": texts, "at": np.full(len(ids), at)})

    def check(self, table: Table) -> None:
        found = table.snapshot().to_arrow(["id", "a", "at"])
        shown = zip(*(found.column(name).to_pylist() for name in ("id", "a", "at")), strict=True)
        assert {key: (text, at) for key, text, at in shown} == self._newest
        assert found.num_rows == len(self._newest)


def base_files(table: Table) -> set[str]:
    return {f"{folder}/{name}" for folder in ("base", "shadow") for name, _ in table.env.store.list(StorePath(folder))}


def named_files(table: Table) -> set[str]:
    """Base and shadow files of the newest slices."""
    return {str(stored.path) for made in table.state().slices.values() for stored in made.objects}


class Service:
    """The compaction service of a pipeline on a cluster, and the writer of its table."""

    def __init__(self, table: Table, supervisor: Supervisor) -> None:
        self.table, self.rows, self._supervisor, self._commits = table, Rows(), supervisor, 0

    @property
    def status(self) -> JobStatus:
        return self._supervisor.statuses[0]

    def append(self) -> None:
        self._commits += 1
        with self.table.writer("sa") as writer:
            writer.append(self.rows.next(self._commits))

    def wait(self, done: Callable[[], bool], pause: float = 0.1) -> None:
        for _ in until(time.monotonic() + LIMIT_SECONDS):
            status = self._supervisor.poll(pause)[0]
            assert status.phase not in ENDED, (status.message, status.tail)
            if done():
                return
        raise AssertionError((self.status, self.table.state().plans))

    def wait_until_compacted(self) -> None:
        self.wait(lambda: not any(len(part.rows) for part in self.table.snapshot().slices))

    def kill_in_the_middle(self, kill: Callable[[], None]) -> set[str]:
        """Kill a process when some files of a compaction are written, and none of them is published.

        Returns:
            Base and shadow files, of which some are garbage now.
        """
        for _ in range(ROUNDS):
            before, slices = base_files(self.table), self.table.state().slices
            self.append()
            self.wait(lambda before=before: bool(base_files(self.table) - before), pause=0.01)  # type: ignore[misc]
            state = self.table.state()
            if state.plans and state.slices == slices:
                kill()
                return base_files(self.table) - before
            self.wait_until_compacted()
        raise AssertionError("all rounds were published before the process could be killed")


@pytest.fixture
def service(
    tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str], cluster: Cluster
) -> Iterator[Service]:
    settings = {"spark.master": cluster.master, **on_executors, "spark.cores.max": "2"}
    path = pipeline_file(tmp_path, broker, "unused", settings)
    whole = yaml.safe_load(path.read_text())
    whole["table"]["config"] = {**CONFIG, "buckets": BUCKETS}
    whole["compaction"] = {"on": "cluster", "every": "500 ms", "min_commits": 1}
    path.write_text(yaml.safe_dump(whole))
    pipeline = load_pipeline(path)
    table = open_table(pipeline)
    # Without writers a background job would be stopped.
    supervisor = Supervisor(
        [replace(service_job(pipeline, "compaction"), background=False, stop_seconds=LIMIT_SECONDS)]
    )
    supervisor.start()
    try:
        made = Service(table, supervisor)
        made.append()
        made.wait_until_compacted()  # the executors are there, and their environment is unpacked
        yield made
    finally:
        supervisor.stop(at_once=True)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(workers=2) as running:
        yield running


def check_the_end(service: Service, cluster: Cluster) -> None:
    """The service goes on, and after its end nothing is left that cleaning does not remove."""
    service.wait_until_compacted()
    commits = service.status.report.commits
    service.append()
    service.wait(lambda: service.status.report.commits > commits)
    service.wait_until_compacted()
    service.rows.check(service.table)
    ended = service._supervisor.stop()[0]
    assert ended.phase in ENDED
    for daemon in cluster.daemons:  # so that no executor writes any more
        daemon.kill()
    table = Table.open(service.table.uri)
    table.clean(NOW, abandon_after=NOW)
    assert base_files(table) == named_files(table)
    assert not table.state().plans
    report = table.verify()
    assert report.ok, str(report)
    service.rows.check(table)


# Nightly: that executors of a killed driver harm nothing. In the extended loop the soak kills the compaction service,
# and the simulation ends compactions at any call of the store.
@pytest.mark.nightly
def test_the_driver_is_killed_in_the_middle_of_a_job(service: Service, cluster: Cluster) -> None:
    driver = service.status.pid
    assert driver is not None
    written = service.kill_in_the_middle(lambda: os.killpg(driver, signal.SIGKILL))
    assert written
    service.rows.check(service.table)
    service.wait(lambda: service.status.restarts > 0)
    service.wait_until_compacted()
    assert written.isdisjoint(named_files(service.table)), "the next driver does not know these files"
    assert service.table.state().plans, "only cleaning may end the plan of the killed driver"
    check_the_end(service, cluster)


def test_a_worker_is_killed_in_the_middle_of_a_job(service: Service, cluster: Cluster) -> None:
    """Spark repeats the tasks of the killed worker on the other one; the service is not restarted."""
    written = service.kill_in_the_middle(cluster.daemons[-1].kill)
    assert written
    service.rows.check(service.table)
    service.wait_until_compacted()
    assert service.status.restarts == 0
    assert not service.table.state().plans
    check_the_end(service, cluster)

"""Ctrl-C while `weft run` starts: it ends at once, at every moment, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.streams.kafka.topics import topic_numbers
from tests.streams.support.java import never_starts
from tests.streams.support.pipelines import pipeline_file
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.run.job_process import STOP_SECONDS
from weft.streams.write.writer_job import DRAIN_SECONDS

PATIENCE_SECONDS = 180.0


class Run:
    """``weft run`` in a session of its own, as in a terminal. What it prints comes as JSON lines."""

    def __init__(self, path: Path, *options: str, **environment: str) -> None:
        argv = [
            sys.executable,
            "-c",
            "from weft.streams.cli.entry import main; main()",
            "run",
            str(path),
            "--json",
            *options,
        ]
        self.process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self.last: dict[str, Any] = {}
        self.pids: set[int] = set()

    def until(self, **fields: Any) -> None:
        """Read its output until the writer has these fields."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._see(json.loads(text))
            if fields.items() <= self.last.items():
                return
        raise AssertionError(f"it ended: {self.process.communicate()[1]}")

    def interrupt(self) -> tuple[float, str]:
        """Press Ctrl-C; the seconds until it has ended, and its standard error."""
        began = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        for text in out.splitlines():
            self._see(json.loads(text))
        return time.monotonic() - began, err

    def _see(self, line: Mapping[str, Any]) -> None:
        if line["job"] == "sa":
            self.last = dict(line)
            self.pids |= {line["pid"]} - {None}

    @property
    def left(self) -> list[str]:
        """What its writers have left behind, within a few seconds: processes of their sessions."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := [name for pid in self.pids for name in _session(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


def _session(number: int) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        state, _, _, session = rest.split()[:4]
        if int(session) == number and state != "Z":
            yield name


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.process.kill()
        run.process.communicate()


def of_topic(folder: Path, broker: EmbeddedBroker, topic: str) -> Path:
    source = {"type": "kafka", "topic": topic}
    writer = {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}
    kafka = {"bootstrap.servers": broker.bootstrap_servers}
    return pipeline_file(folder, kafka=kafka, writers={"sa": writer}, compaction=False)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code"), [((), 0), (("--once",), 130)])
def test_while_a_jvm_starts(
    tmp_path: Path, broker: EmbeddedBroker, runs: list[Run], options: tuple[str, ...], code: int
) -> None:
    """With a Java that never starts, so that the moment is known: the writer waits for it in PySpark."""
    topic = f"ctrl-c-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    java, started = never_starts(tmp_path)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = of_topic(tmp_path, broker, topic)
    run = Run(path, *options, JAVA_HOME=str(java), TMPDIR=str(temporary))
    runs.append(run)
    while not started.exists():
        run.until(state="starting")
    seconds, errors = run.interrupt()
    assert (run.process.returncode, errors) == (code, "")
    assert (run.last["state"], run.last["message"]) == ("stopped", "")
    assert seconds < STOP_SECONDS, "it is not killed when its time is over"
    assert run.left == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.spark
def test_while_a_query_waits_for_its_topic(tmp_path: Path, broker: EmbeddedBroker, runs: list[Run]) -> None:
    topic = f"ctrl-c-{next(topic_numbers)}"
    run = Run(of_topic(tmp_path, broker, topic))
    runs.append(run)
    offsets = tmp_path / ".weft/p/checkpoints/sa/metadata"
    while not offsets.exists():  # Spark has started the query
        run.until(waiting_for=f"the topic {topic}")
    seconds, errors = run.interrupt()
    assert (run.process.returncode, errors) == (0, "")
    assert run.last["state"] == "stopped"
    assert seconds < DRAIN_SECONDS, "it does not wait for a batch that it has not begun"
    assert run.left == []


def test_before_anything_is_started(tmp_path: Path, broker: EmbeddedBroker, runs: list[Run]) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho asked > {tmp_path}/java-runs\nexec sleep 600\n")  # does not say its version
    java.chmod(0o755)
    run = Run(of_topic(tmp_path, broker, "any"), JAVA_HOME=str(java.parent.parent))
    runs.append(run)
    while not (tmp_path / "java-runs").exists():
        time.sleep(0.05)
    _, errors = run.interrupt()
    assert (run.process.returncode, errors) == (130, "")
    assert not (tmp_path / "wide").exists()


def test_a_run_that_ends_by_itself_asks_brokers_that_are_away_once(tmp_path: Path, runs: list[Run]) -> None:
    with socket.socket() as taken:  # nobody listens
        taken.bind(("127.0.0.1", 0))
        source = {"type": "kafka", "topic": "any", "options": {"requestTimeoutMs": "2000"}}
        writer = {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}
        kafka = {"bootstrap.servers": f"127.0.0.1:{taken.getsockname()[1]}"}
        run = Run(pipeline_file(tmp_path, kafka=kafka, writers={"sa": writer}, compaction=False), "--once")
        runs.append(run)
        out, _ = run.process.communicate(timeout=PATIENCE_SECONDS)
    last = json.loads(out.splitlines()[-1])
    assert (last["state"], last["restarts"]) == ("failed", 0)
    assert run.process.returncode == 1

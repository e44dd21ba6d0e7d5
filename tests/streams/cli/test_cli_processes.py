"""The command line in real processes: a pipeline from broker to query, outages, and the end of runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.storage.services.inspect.inspect import Inspection
from weft.streams.pipeline.run.error_kinds import Ending

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 180.0  # two JVMs start at once on a busy machine


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "weft.streams.cli.main", *(str(argument) for argument in arguments)]


def produce(broker: FaultyBroker, topic: str, messages: Sequence[dict[str, Any] | bytes]) -> None:
    producer = broker.producer()
    for message in messages:
        producer.produce(topic, message if isinstance(message, bytes) else json.dumps(message).encode())
    assert producer.flush(PATIENCE_SECONDS) == 0


def kafka_pipeline(folder: Path, broker: FaultyBroker, *topics: str) -> Path:
    """A pipeline with writers sa and sb, one per topic; with settings for a fast start."""
    first, second = topics[0], topics[-1]
    writers = {
        "sa": {
            "source": {"type": "kafka", "topic": first},
            "schema": {"id": "bigint", "a": "string", "at": "bigint"},
            "dead_letter": "./dead/sa",
        },
        "sb": {
            "source": {"type": "kafka", "topic": second},
            "schema": {"id": "bigint", "v": "double"},
            "select": {"id": "id", "b": "v * 2"},
            "where": "v IS NOT NULL",
        },
    }
    return pipeline_file(
        folder,
        kafka={"bootstrap.servers": broker.bootstrap_servers},
        writers={name: {**writers[name], "trigger": "100 ms"} for name in ("sa", "sb")[: len(topics)]},
        spark={
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.sql.session.timeZone": "Asia/Tokyo",
        },
        compaction={"every": 0.5, "min_commits": 2},
    )


def test_a_pipeline_once_then_a_query(tmp_path: Path, broker: FaultyBroker) -> None:
    broker.create_topics({"cli-once": 2})
    produce(broker, "cli-once", [{"id": i % 50, "a": f"v{i}", "at": i} for i in range(100)])
    produce(broker, "cli-once", [b"not json"])
    path = kafka_pipeline(tmp_path, broker, "cli-once")
    run = subprocess.run(command("run", path, "--once", "--json"), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    last = {line["job"]: line for line in map(json.loads, run.stdout.splitlines())}
    assert {name: line["state"] for name, line in last.items()} == {"sa": "done", "compaction": "done"}
    assert (last["sa"]["rows"], last["sa"]["dead_letters"], last["sa"]["lag"]) == (100, 1, 0)
    lanes = [json.loads(line) for line in weft("show", path, "streams", "--json").stdout.splitlines()]
    assert [lane["finished"] for lane in lanes if lane["stream"] == "sa"] == [True], (
        "all is read, so the lane does not hold back the watermark of its stream"
    )
    overview = json.loads(weft("show", path, "--json").stdout)
    assert (overview["rows_in_base"], overview["events_in_logs"]) == (50, 0)
    letters = [json.loads(line) for file in (tmp_path / "dead/sa").rglob("*.jsonl") for line in file.open()]
    assert [letter["value"] for letter in letters] == ["not json"]

    sql = (
        "SELECT count(*) AS n, max(t.at) AS newest, current_timezone() AS zone FROM t JOIN wide USING (id) WHERE id < 2"
    )
    asked = subprocess.run(command("sql", path, sql, "--json"), capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == {"n": 2, "newest": 51, "zone": "Asia/Tokyo"}, (
        "the pipeline's Spark settings are used"
    )
    assert asked.stderr == "", "output of Spark is not shown"


def test_a_pipeline_deletes_what_tombstones_name_and_keeps_bad_messages_by_default(
    tmp_path: Path, broker: FaultyBroker
) -> None:
    broker.create_topics({"cli-tombstones": 1})
    producer = broker.producer()
    for key, value in (
        (b'{"id": 1}', b'{"id": 1, "a": "x", "at": 1}'),
        (b'{"id": 2}', b'{"id": 2, "a": "y", "at": 1}'),
        (b'{"id": 2}', b"not json"),
        (b'{"id": 1}', None),
        (b"nobody", None),
    ):
        producer.produce("cli-tombstones", value, key)
    assert producer.flush(PATIENCE_SECONDS) == 0
    path = kafka_pipeline(tmp_path, broker, "cli-tombstones")
    whole = yaml.safe_load(path.read_text())
    del whole["writers"]["sa"]["dead_letter"]
    whole["writers"]["sa"] |= {
        "tombstones": "delete",
        "select": {"id": "id", "a": "a", "at": "coalesce(at, unix_millis(_kafka.timestamp))"},
    }
    path.write_text(yaml.safe_dump(whole))
    run = subprocess.run(command("run", path, "--once", "--json"), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    last = {line["job"]: line for line in map(json.loads, run.stdout.splitlines())}["sa"]
    assert (last["rows"], last["dead_letters"], last["tombstones_ignored"], last["lag"]) == (3, 2, 0, 0)
    table = Table.open(tmp_path / "wide")
    assert [row["id"] for row in table.snapshot().to_arrow().to_pylist()] == [2]
    letters = [
        json.loads(line) for file in (tmp_path / "wide_dead_letters/sa").rglob("*.jsonl") for line in file.open()
    ]
    assert sorted(letter["offset"] for letter in letters) == [2, 4]


class Running:
    """``weft run`` in the background; its JSON lines by job."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            command("run", path, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pids: set[int] = set()

    def until(self, job: str, **fields: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        assert self.process.stdout is not None
        while time.monotonic() < deadline:
            text = self.process.stdout.readline()
            assert text, f"it ended: {self.process.communicate()[1]}"
            line = json.loads(text)
            self.pids |= {line["pid"]} - {None}
            if line["job"] == job and fields.items() <= line.items():
                return line
        raise AssertionError(f"{job} was not {fields} within {PATIENCE_SECONDS} s")


@pytest.fixture
def runs() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for run in started:
        run.process.kill()
        run.process.communicate()


@pytest.fixture
def no_broker() -> Iterator[int]:
    """A port at which nothing answers during the test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def lonely_pipeline(folder: Path, port: int, **changes: Any) -> Path:
    """A writer whose broker does not answer; it waits before it starts Spark."""
    writer = {"source": {"type": "kafka", "topic": "t"}, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}
    kafka = {"bootstrap.servers": f"127.0.0.1:{port}"}
    return pipeline_file(folder, kafka=kafka, writers={"sa": writer}, compaction=False, **changes)


def test_an_outage_of_the_broker_is_shown_until_it_ends(tmp_path: Path, no_broker: int, runs: list[Running]) -> None:
    run = Running(lonely_pipeline(tmp_path, no_broker))
    runs.append(run)
    shown = run.until("sa", state="waiting", waiting_for=f"the broker 127.0.0.1:{no_broker}")
    assert shown["message"].startswith(f"waiting for the broker 127.0.0.1:{no_broker}, ")
    later = run.until("sa", state="waiting")
    assert later["waiting_seconds"] >= shown["waiting_seconds"]
    assert (later["restarts"], later["failures"]) == (0, 0)
    log = tmp_path / ".weft/p/logs/sa.log"
    assert f"waiting for the broker 127.0.0.1:{no_broker}" in log.read_text()
    run.process.send_signal(signal.SIGTERM)
    run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == 0, "it stopped on the signal, with exit code 0"
    assert all(_gone(pid) for pid in run.pids)


def test_an_outage_of_the_store_is_shown_until_it_ends(tmp_path: Path, no_broker: int, runs: list[Running]) -> None:
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{no_broker}"}
    table = {"uri": "s3://bucket/wide", "config": CONFIG, "storage_options": options}
    path = lonely_pipeline(tmp_path, no_broker, table=table)
    run = Running(path)
    runs.append(run)
    shown = run.until("sa", waiting_for="the store of s3://bucket/wide", pid=None)
    assert shown["message"].startswith("waiting for the store of s3://bucket/wide, ")
    assert "Could not connect" in shown["message"]
    assert run.until("sa", pid=None)["waiting_seconds"] > shown["waiting_seconds"]
    once = weft("run", path, "--once", "--writer", "sa")
    assert "is already running" in once.stderr, "the waiting run now has the lock of the pipeline"
    run.process.kill()
    run.process.communicate()
    once = weft("run", path, "--once")
    assert once.exit_code == 1
    assert "Could not connect" in once.stderr, "a run with --once does not wait"


def test_a_missing_topic_is_shown_until_it_exists(tmp_path: Path, runs: list[Running]) -> None:
    with FaultyBroker() as private_broker:
        private_broker.create_topics({"orders": 1})
        run = Running(kafka_pipeline(tmp_path, private_broker, "ordres"))
        runs.append(run)
        shown = run.until("sa", state="waiting", waiting_for="the topic ordres")
        assert "has no topic ordres (did you mean orders? create the topic, or correct its name" in shown["message"]
        private_broker.create_topics({"ordres": 1})
        produce(private_broker, "ordres", [{"id": 1, "a": "x", "at": 1}])
        last = run.until("sa", rows=1, waiting_for=None)
        assert (last["restarts"], last["message"]) == (0, "")
        assert "the topic ordres exists now after " in (tmp_path / ".weft/p/logs/sa.log").read_text()


@pytest.mark.extended
def test_a_run_that_ends_waits_once_for_a_missing_topic(tmp_path: Path, broker: FaultyBroker) -> None:
    path = kafka_pipeline(tmp_path, broker, "cli-never")
    whole = yaml.safe_load(path.read_text())
    whole["writers"]["sa"]["source"]["options"] = {"requestTimeoutMs": 5000}
    path.write_text(yaml.safe_dump(whole))
    run = subprocess.run(command("run", path, "--once", "--json"), capture_output=True, text=True, check=False)
    assert run.returncode == 1
    lines = [line for line in map(json.loads, run.stdout.splitlines()) if line["job"] == "sa"]
    assert "the topic cli-never" in {line["waiting_for"] for line in lines}
    assert (lines[-1]["state"], lines[-1]["restarts"]) == ("failed", 0)
    assert "has no topic cli-never (" in run.stderr
    assert "waited 5 s for it" in run.stderr


@pytest.mark.extended
def test_a_running_query_survives_an_outage_of_the_broker(tmp_path: Path, runs: list[Running]) -> None:
    with FaultyBroker() as private_broker:
        private_broker.create_topics({"away": 1})
        produce(private_broker, "away", [{"id": 1, "a": "before", "at": 1}])
        path = kafka_pipeline(tmp_path, private_broker, "away")
        whole = yaml.safe_load(path.read_text())
        whole["writers"]["sa"]["source"]["options"] = {"requestTimeoutMs": 2000}
        path.write_text(yaml.safe_dump(whole))
        run = Running(path)
        runs.append(run)
        run.until("sa", rows=1)
        private_broker.set_reachable(reachable=False)
        waits = run.until("sa", state="waiting", waiting_for=f"the broker {private_broker.bootstrap_servers}")
        assert (waits["lag"], waits["freshness_seconds"]) == (None, None)
        while waits["waiting_seconds"] < 10:  # many times the wait of one request
            waits = run.until("sa", state="waiting")
        private_broker.set_reachable(reachable=True)
        produce(private_broker, "away", [{"id": 2, "a": "after", "at": 2}])
        last = run.until("sa", rows=2, waiting_for=None)
        assert (last["restarts"], last["failures"]) == (0, 0), "one process, one query"
        run.process.send_signal(signal.SIGTERM)
        run.process.communicate(timeout=PATIENCE_SECONDS)
        assert run.process.returncode == 0


@pytest.mark.extended
def test_a_second_run_of_a_pipeline_is_refused_unless_the_first_is_dead(
    tmp_path: Path, no_broker: int, runs: list[Running]
) -> None:
    path = lonely_pipeline(tmp_path, no_broker)
    first = Running(path)
    runs.append(first)
    first.until("sa", state="waiting")
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    for again in (path, tmp_path / "elsewhere/p.yaml"):
        for more in ([], ["--once"], ["--writer", "sa"]):
            refused = weft("run", again, *more)
            assert refused.exit_code == 1
            assert f"p.yaml: sa is already running, by process {first.process.pid} on " in refused.stderr
    first.process.kill()
    first.process.communicate()
    second = Running(path)
    runs.append(second)
    second.until("sa", state="waiting")
    assert all(_gone(pid) for pid in first.pids), "the jobs of the first run do not run beside those of the second"


@pytest.mark.extended
def test_a_running_writer_compacts_its_table(tmp_path: Path, broker: FaultyBroker, runs: list[Running]) -> None:
    broker.create_topics({"cli-inline": 1})
    path = kafka_pipeline(tmp_path, broker, "cli-inline")
    whole = yaml.safe_load(path.read_text())
    whole["compaction"] = {"on": "inline", "share": 0.5, "every": 0.2, "min_commits": 2}
    path.write_text(yaml.safe_dump(whole))
    run = Running(path)
    runs.append(run)
    run.until("sa", state="running")
    round_, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while round_ < 3 or Inspection(tmp_path / "wide").overview().rows_in_base < 4:
        assert time.monotonic() < deadline, run.process.poll()
        round_ += 1
        produce(broker, "cli-inline", [{"id": key, "a": f"v{round_}", "at": round_} for key in range(4)])
        run.until("sa", rows=4 * round_)
    assert "compaction" not in {path.stem for path in (tmp_path / ".weft/p/logs").iterdir()}, "there is no such job"
    run.process.send_signal(signal.SIGTERM)
    run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == 0
    rows = Table.open(tmp_path / "wide").snapshot().to_arrow(["id", "a", "at"]).sort_by("id").to_pylist()
    assert rows == [{"id": key, "a": f"v{round_}", "at": round_} for key in range(4)]


@pytest.mark.extended
def test_exit_on_failure_ends_all(tmp_path: Path, no_broker: int) -> None:
    path = lonely_pipeline(tmp_path, no_broker)
    whole = yaml.safe_load(path.read_text())
    whole["writers"]["sb"] = {
        "source": {"type": "spark", "format": "rate"},
        "select": {"id": "value", "b": "value"},
        "where": "no_such_column > 1",  # an error that every start has, so one start is enough
    }
    path.write_text(yaml.safe_dump(whole))
    ended = subprocess.run(
        command("run", path, "--exit-on-failure", "--json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == 1
    last = {line["job"]: line for line in map(json.loads, ended.stdout.splitlines())}
    assert {name: line["state"] for name, line in last.items()} == {"sa": "stopped", "sb": "failed"}
    assert "sb has stopped permanently, all others are being stopped: " in ended.stderr


@pytest.mark.extended
def test_a_fenced_writer_stops_and_the_others_continue_until_sigterm(
    tmp_path: Path, broker: FaultyBroker, runs: list[Running]
) -> None:
    broker.create_topics({"cli-a": 1, "cli-b": 1})
    produce(broker, "cli-a", [{"id": 1, "a": "first", "at": 1}])
    produce(broker, "cli-b", [{"id": 1, "v": 0.5}, {"id": 2}])
    run = Running(kafka_pipeline(tmp_path, broker, "cli-a", "cli-b"))
    runs.append(run)
    for job in ("sa", "sb"):
        assert run.until(job, rows=1)["restarts"] == 0

    table = Table.open(tmp_path / "wide")
    with table.writer("sa", owner="somebody else") as other:
        other.append(pa.table({"id": [7], "a": ["theirs"], "at": [1]}))
        produce(broker, "cli-a", [{"id": 1, "a": "second", "at": 2}])
        fenced = run.until("sa", state="fenced")
    assert "claimed by somebody else" in fenced["message"]
    produce(broker, "cli-b", [{"id": 1, "v": 1.5}])
    run.until("sb", rows=2)

    run.process.send_signal(signal.SIGTERM)
    _, complaints = run.process.communicate(timeout=PATIENCE_SECONDS)
    assert run.process.returncode == Ending.FENCED, "a crash has exit code 1"
    assert "sa has stopped permanently, the others continue: stream 'sa' was claimed by somebody else at " in complaints
    assert "sa fenced; its log: " in complaints
    assert complaints.count("was claimed by") == 1, "it is said once"
    assert "Physical Plan" not in complaints, "the message has no query plan"
    rows = {row["id"]: (row["a"], row["b"]) for row in table.snapshot().to_arrow().to_pylist()}
    assert rows == {1: ("first", 3.0), 7: ("theirs", None)}, "no rows are lost, duplicated, or written after the fence"
    assert all(_gone(pid) for pid in run.pids), "no process remains, not even a JVM"


@pytest.mark.extended
def test_the_lag_of_a_killed_writer_is_unknown_until_it_is_measured(
    tmp_path: Path, broker: FaultyBroker, runs: list[Running]
) -> None:
    broker.create_topics({"cli-lag": 1})
    produce(broker, "cli-lag", [{"id": 1, "a": "first", "at": 1}])
    run = Running(kafka_pipeline(tmp_path, broker, "cli-lag"))
    runs.append(run)
    before = run.until("sa", rows=1, lag=0)
    assert before["freshness_seconds"] is not None
    os.killpg(before["pid"], signal.SIGSTOP)  # so that no process measures when only some of the messages are there
    produce(broker, "cli-lag", [{"id": i, "a": "more", "at": 2} for i in range(500)])
    os.killpg(before["pid"], signal.SIGKILL)
    seen = []
    while not seen or seen[-1]["rows"] == 1:
        line = run.until("sa")
        if line["pid"] != before["pid"]:
            seen.append(line)
    # 501 if the process was killed before Spark noted the end of its first batch, which the table has already.
    measured = {line["lag"] for line in seen if line["rows"] == 1}
    assert measured <= {None, 500, 501}, "the lag of 0 that was measured before is not shown"
    assert {line["freshness_seconds"] for line in seen if line["rows"] == 1} == {None}
    caught_up = run.until("sa", lag=0)
    assert caught_up["rows"] == 501
    assert caught_up["freshness_seconds"] is not None

    run.process.send_signal(signal.SIGTERM)
    out, _ = run.process.communicate(timeout=PATIENCE_SECONDS)
    last = [line for line in map(json.loads, out.splitlines()) if line["job"] == "sa"][-1]
    assert (last["state"], last["lag"], last["freshness_seconds"]) == ("stopped", None, None)


def _gone(group: int) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(group)


def _alive(group: int) -> bool:
    """Whether a process group has a live process; zombies that wait for init do not count."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(pgid == str(group) and stat[0] != "Z" for pgid, stat in map(str.split, listed.splitlines()))

"""``weft doctor``: each problem is found and says what to do, and nothing is changed or left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation

from tests.download_cache import Unavailable
from tests.streams.kafka.secure import USER, SecureBroker, start_secure_broker
from tests.streams.kafka.topics import NOBODY, produce, topic_numbers
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.doctor.finding import Findings, Level
from weft.streams.doctor.kafka_checks import check_source
from weft.streams.doctor.store_checks import _check_clock, check_store, check_table
from weft.streams.pipeline.file.pipeline import load_pipeline

PASSWORD = "doctor-pass-1"


@pytest.fixture
def topic(embedded_broker: EmbeddedBroker) -> str:
    name = f"doctor-{next(topic_numbers)}"
    embedded_broker.create_topics({name: 2})
    return name


def writer(topic: str, **changes: Any) -> dict[str, Any]:
    schema = {"id": "bigint", "a": "string", "at": "bigint"}
    return {"sa": {"source": {"type": "kafka", "topic": topic}, "schema": schema, **changes}}


def doctor(path: Path, *options: str) -> tuple[int, dict[str, list[tuple[str, str, str]]]]:
    """Exit code, and (level, text, hint) of the findings by check."""
    done = weft("doctor", path, "--json", *options)
    return done.exit_code, by_check(done.stdout)


def doctor_process(path: Path) -> tuple[int, dict[str, list[tuple[str, str, str]]]]:
    """The same in a process of its own: it stops the Spark session of its process at its end."""
    command = [sys.executable, "-m", "weft.streams.cli.main", "doctor", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    return done.returncode, by_check(done.stdout)


def by_check(lines: str) -> dict[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in lines.splitlines():
        finding = json.loads(line)
        found.setdefault(finding["check"], []).append((finding["level"], finding["text"], finding["hint"]))
    return found


def levels(found: dict[str, list[tuple[str, str, str]]]) -> dict[str, str]:
    worst = [str(level) for level in Level]
    return {check: max((level for level, _, _ in each), key=worst.index) for check, each in found.items()}


@pytest.mark.slow
def test_a_good_pipeline_and_nothing_is_left(tmp_path: Path, embedded_broker: EmbeddedBroker, topic: str) -> None:
    produce(embedded_broker, topic, ['{"id": 1, "a": "x", "at": 1}'])
    kafka = {"bootstrap.servers": embedded_broker.bootstrap_servers}
    path = pipeline_file(tmp_path, kafka=kafka, writers=writer(topic), state="./state")
    code, found = doctor(path, "--sample", "0")
    assert code == 0, found
    assert levels(found) == {
        "java": "ok",
        "spark": "ok",
        "spark.pyspark.python": "ok",
        "state": "ok",
        "table.uri": "ok",
        "clock": "ok",
        "table": "ok",
        "writers.sa.dead_letter": "ok",
        "writers.sa.kafka": "ok",
        "writers.sa.source": "ok",
        "writers.sa.permissions": levels(found)["writers.sa.permissions"],
        "spark session": "skipped",
    }
    assert [each.name for each in tmp_path.iterdir()] == ["p.yaml"], "no table, folder or probe is left"
    text = weft("doctor", path, "--sample", "0").stdout
    assert text.endswith("0 problems, 0 warnings\n")


@pytest.mark.slow
def test_what_is_wrong_with_machine_table_and_broker(tmp_path: Path) -> None:
    Table.create(tmp_path / "wide", {**CONFIG, "buckets": 4})
    (tmp_path / "python").write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "letters").touch()
    source = {"type": "kafka", "topic": "t", "options": {"requestTimeoutMs": 500}}
    path = pipeline_file(
        tmp_path,
        kafka={"bootstrap.servers": NOBODY},
        writers=writer("t", source=source, dead_letter="./letters"),
        spark={"spark.archives": "none.tar.gz#environment", "spark.pyspark.python": str(tmp_path / "python")},
    )
    before = sorted(tmp_path.rglob("*"))
    code, found = doctor(path, "--sample", "0")
    assert code == 1
    told = {check: each[0] for check, each in found.items() if each[0][0] == "problem"}
    assert set(told) == {
        "spark.archives",
        "spark.pyspark.python",
        "table",
        "writers.sa.dead_letter",
        "writers.sa.source",
    }
    assert "cannot run tasks: broken" in told["spark.pyspark.python"][1]
    assert "buckets: 2 in the file, 4 in the table" in told["table"][1]
    assert NOBODY in told["writers.sa.source"][1]
    assert all(hint for _, _, hint in told.values()), "each says what to do"
    assert sorted(tmp_path.rglob("*")) == before


def test_without_java_only_services_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    path = pipeline_file(tmp_path)
    code, found = doctor(path)
    assert (code, levels(found)["java"], levels(found)["spark session"]) == (1, "problem", "skipped")
    assert doctor(path, "--only", "compaction")[0] == 0


def test_a_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    assert weft("doctor", pipeline_file(tmp_path, evry=1)).exit_code == 2
    assert weft("doctor", pipeline_file(tmp_path), "--only", "none").exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    found = Findings()
    check_store("table.uri", str(tmp_path / "closed/wide"), {}, found)
    assert [each.level for each in found.all] == [Level.PROBLEM]


@pytest.mark.parametrize(
    ("skew", "level"),
    [(None, "skipped"), (0.0, "ok"), (-4.0, "ok"), (30.0, "warning"), (-61.0, "problem"), (3600.0, "problem")],
)
def test_clocks(skew: float | None, level: str) -> None:
    found = Findings()
    _check_clock(skew, found)
    (finding,) = found.all
    assert finding.level == level
    assert bool(finding.hint) == (level in {"warning", "problem"})


def test_a_time_to_live_that_nobody_applies(tmp_path: Path) -> None:
    def levels(**changes: Any) -> list[tuple[Level, str]]:
        found = Findings()
        check_table(load_pipeline(pipeline_file(tmp_path, table={"uri": "./wide"}, **changes)), found)
        return [(each.level, each.text) for each in found.all if each.check == "ttl"]

    table = Table.create(tmp_path / "wide", CONFIG)
    assert levels() == []
    table.set_ttl(rows="90 days")
    ((level, text),) = levels()
    assert level is Level.WARNING
    assert "no service of the file applies it" in text
    assert [level for level, _ in levels(ttl=True)] == [Level.OK]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_messages_are_decoded_as_the_writer_would(tmp_path: Path, embedded_broker: EmbeddedBroker, topic: str) -> None:
    produce(embedded_broker, topic, ['{"id": 1, "a": "x", "at": 1}', '{"id": null, "a": "y", "at": 2}', "no JSON"])
    changes = {
        "schema": {"id": "bigint", "a": "string", "att": "bigint"},
        "select": {"id": "id", "a": "a", "at": "att"},
    }
    kafka = {"bootstrap.servers": embedded_broker.bootstrap_servers}
    path = pipeline_file(tmp_path, kafka=kafka, writers=writer(topic, **changes), state="./state")
    code, found = doctor_process(path)
    assert code == 1, "nothing would be in the table"
    assert levels(found)["spark session"] == levels(found)["executors"] == "ok"
    assert (
        found["executors"][0][1] == f"a task ran with Python {sys.version_info[0]}.{sys.version_info[1]}, and has weft"
    )
    told = [text for level, text, _ in found["writers.sa.schema"] if level == "warning"]
    assert told[0].startswith("1 of 3 messages cannot be decoded: ")
    assert told[1] == "no message of 2 has a value in att"
    assert told[2].startswith("column 'id': ")
    [(text, hint)] = [(text, hint) for level, text, hint in found["writers.sa.schema"] if level == "problem"]
    assert text.startswith("2 of 2 messages have no value in at, which orders the events, and change nothing")
    assert "at: coalesce(att, unix_millis(_kafka.timestamp))" in hint
    assert sorted(each.name for each in tmp_path.iterdir()) == ["p.yaml"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    starting = start_secure_broker(tmp_path_factory.mktemp("certificates"), PASSWORD)
    try:
        running = starting.__enter__()
    except Unavailable as reason:
        pytest.skip(f"no real Kafka broker: {reason}")
    yield running
    starting.__exit__(None, None, None)


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_permissions_are_asked(secure: SecureBroker, tmp_path: Path) -> None:
    name = f"doctor-{next(topic_numbers)}"
    secure.broker.create_topics({name: 1})
    produce(secure.broker, name, ["a", "b"])

    def checked() -> tuple[dict[str, Level], int | None]:
        spec = load_pipeline(pipeline_file(tmp_path, kafka=secure.sasl(PASSWORD), writers=writer(name))).writer("sa")
        found = Findings()
        messages = check_source(spec, 10, found)
        assert PASSWORD not in str(found.all)
        return {each.check: each.level for each in found.all}, None if messages is None else len(messages)

    assert checked() == ({"writers.sa.source": Level.PROBLEM}, None), "it may not even see the topic"
    secure.allow(USER, name, AclOperation.DESCRIBE)
    described, read = checked()
    assert described["writers.sa.permissions"] is described["writers.sa.messages"] is Level.PROBLEM
    assert read is None
    secure.allow(USER, name, AclOperation.READ)
    allowed, read = checked()
    assert (allowed["writers.sa.permissions"], read) == (Level.OK, 2)

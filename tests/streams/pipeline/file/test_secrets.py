"""Secrets of a pipeline: where they come from, and that no log, process list, checkpoint or page of Spark has them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
import yaml
from confluent_kafka.admin import AclOperation
from keyring.backend import KeyringBackend

from tests.download_cache import Unavailable
from tests.http_get import get
from tests.reserved_port import reserved_port
from tests.streams.formats.registry_server import SchemaRegistry
from tests.streams.formats.test_avro import record, written
from tests.streams.kafka.certificates import Authority
from tests.streams.kafka.secure import USER, start_secure_broker
from tests.streams.kafka.topics import Broker, topic_numbers
from tests.streams.support.pipelines import pipeline_file
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.pipeline import load_pipeline, load_settings
from weft.streams.pipeline.file.references import MAX_BYTES, References
from weft.streams.spark.settings import is_secret

PATIENCE_SECONDS = 200.0  # for a start of Spark, which takes 10 s on an idle machine
PASSWORD, STORE_KEY, HADOOP_KEY = "kafka-7d1e9f0a", "store-51c0ffee", "hadoop-c4fe1234"
REGISTRY_PASSWORD, TLS_PASSWORD = "registry-0ddba11", "tls-5eedbed5"
SCHEMA = record({"id": "long", "a": "string", "at": "long"})


def resolve(text: str, folder: Path, **environment: str) -> Any:
    found: list[InvalidInput] = []
    resolved = References(environment, folder, found.append).resolve(text, "kafka.p")
    if found:
        raise found[0]
    return resolved


def test_references(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("pa$$ ${NAME}\n")
    assert resolve("${NAME}", tmp_path, NAME="v") == resolve("${env:NAME}", tmp_path, NAME="v") == "v"
    assert resolve("a${file:password}b$$", tmp_path) == "apa$$ ${NAME}b$", "a value is not resolved again"
    assert resolve(f"${{file:{tmp_path}/password}}", tmp_path) == "pa$$ ${NAME}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("${file:none}", "kafka.p: file .*/none cannot be read: No such file"),
        ("${file:}", r"kafka.p: '\$\{file:\}' is not the name"),
        ("${file:large}", "kafka.p: file .*/large has more than"),
        ("${file:binary}", "kafka.p: file .*/binary is not UTF-8"),
        ("${vault:x}", r"kafka.p: '\$\{vault:x\}' is not the name"),
        ("${env:NONE}", "kafka.p: environment variable NONE is not set"),
        ("${keyring:no-user}", "kafka.p: .* has no user"),
    ],
)
def test_wrong_references_are_refused_by_field(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "large").write_bytes(b"S" * (MAX_BYTES + 1))
    (tmp_path / "binary").write_bytes(b"S\xff")
    with pytest.raises(InvalidInput, match=why) as refused:
        resolve(text, tmp_path)
    assert "SS" not in str(refused.value)


class Keys(KeyringBackend):
    """A keyring with one password."""

    priority = 1  # type: ignore[assignment]

    def get_password(self, service: str, username: str) -> str | None:
        if service == "locked":
            raise keyring.errors.KeyringLocked(PASSWORD)
        return PASSWORD if (service, username) == ("kafka/prod", "weft") else None

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture
def keys() -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(Keys())
    yield
    keyring.set_keyring(before)


@pytest.mark.usefixtures("keys")
def test_a_keyring(tmp_path: Path) -> None:
    assert resolve("${keyring:kafka/prod/weft}", tmp_path) == PASSWORD
    with pytest.raises(InvalidInput, match="no password of 'other' for 'kafka/prod'"):
        resolve("${keyring:kafka/prod/other}", tmp_path)
    with pytest.raises(InvalidInput, match="does not answer: KeyringLocked") as refused:
        resolve("${keyring:locked/weft}", tmp_path)
    assert PASSWORD not in str(refused.value)


def test_a_secret_among_the_settings_of_spark_must_be_one_that_spark_hides(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(HADOOP_KEY)
    spark = {"spark.hadoop.fs.s3a.secret.key": "${file:x}"}
    assert load_pipeline(pipeline_file(tmp_path, spark=spark)).spark == {"spark.hadoop.fs.s3a.secret.key": HADOOP_KEY}
    for place in (
        {"spark": {"spark.my.key": "${file:x}"}},
        {"writers": {"sa": {"spark": {"spark.my.key": "${file:x}"}}}},
    ):
        with pytest.raises(InvalidInput, match=r"spark\.my\.key: the value is a secret, but Spark shows") as refused:
            load_pipeline(pipeline_file(tmp_path, **place))
        assert refused.value.hint is not None
        suggested = re.search("'(.*)'", refused.value.hint)
        assert suggested is not None
        assert is_secret("spark.my.key", {"spark.redaction.regex": suggested[1]})
    hidden = {"spark.my.key": "${file:x}", "spark.redaction.regex": "my[.]key"}
    assert load_settings(str(pipeline_file(tmp_path, spark=hidden)), "spark").spark["spark.my.key"] == HADOOP_KEY


def command_lines() -> list[str]:
    """Command lines of all processes, as `ps` shows them to everybody."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def spark_pages(port: int) -> dict[str, str]:
    """The pages and JSON of Spark's UI, by path."""
    base = f"http://127.0.0.1:{port}"
    (application,) = json.loads(get(f"{base}/api/v1/applications"))
    api = f"/api/v1/applications/{application['id']}"
    executions = json.loads(get(f"{base}{api}/sql?details=true&planDescription=true&length=1000"))
    paths = ["/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/"]
    paths += [f"/SQL/execution/?id={execution['id']}" for execution in executions[:5]]
    details = "/sql?details=true&planDescription=true&length=1000"
    paths += [f"{api}/{name}" for name in ("environment", "jobs", "stages", "allexecutors")] + [api + details]
    return {path: get(base + path) for path in paths}


@contextlib.contextmanager
def running(path: Path, *options: str | int | Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "weft.streams.cli.main", "run", *map(str, (path, *options))]
    environment = {**os.environ, "STORE_KEY": STORE_KEY}
    with (path.parent / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_SECONDS)


def check_no_place_has_a_secret(
    folder: Path, kafka: dict[str, str], topic: str, registry: SchemaRegistry, login: dict[str, str]
) -> None:
    """Run a pipeline, and look for its secrets everywhere.

    Args:
        folder: An empty folder.
        kafka: Settings of librdkafka; the password is a reference to the file ``password`` beside the pipeline file.
        topic: A topic with three messages in Avro, and one with an unknown schema.
        registry: The registry with their schema. It fails at first, so that its address is in logs.
        login: Settings of the registry's client; passwords are references to the files ``registry`` and ``tls``.
    """
    secrets = {"password": PASSWORD, "hadoop": HADOOP_KEY, "registry": REGISTRY_PASSWORD, "tls": TLS_PASSWORD}
    certificate, key = Authority(folder, "authority").issue("client", TLS_PASSWORD)
    tls = {
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "ssl.key.password": "${file:tls}",
    }
    registry.failing = 1
    for name, value in secrets.items():
        (folder / name).write_text(value)
    with reserved_port() as ui:
        path = pipeline_file(
            folder,
            table={
                **yaml.safe_load(pipeline_file(folder).read_text())["table"],
                "storage_options": {"k": "${STORE_KEY}"},
            },
            kafka=kafka,
            registry={**login, **tls},
            spark={
                "spark.ui.enabled": True,
                "spark.ui.port": ui,
                "spark.hadoop.fs.s3a.secret.key": "${file:hadoop}",
                "spark.sql.ui.explainMode": "extended",
            },
            writers={
                "sa": {
                    "source": {"type": "kafka", "topic": topic, "format": "avro"},
                    "schema": {"id": "bigint", "a": "string", "at": "bigint"},
                    "trigger": "200 ms",
                }
            },
        )
        with running(path, "--http", "0", "--log-file", folder / "weft.log") as process:
            deadline = time.monotonic() + PATIENCE_SECONDS
            metrics = ""
            while 'weft_rows_total{part="sa"} 3.0' not in metrics:
                assert time.monotonic() < deadline, metrics
                assert process.poll() is None, (folder / "output").read_text()
                output = (folder / "output").read_text()
                if printed := re.search(r"^--http 0: (http://[^/]+)/metrics$", output, re.MULTILINE):
                    metrics = get(f"{printed[1]}/metrics")
                time.sleep(0.2)
            assert printed is not None
            shown = {"metrics": metrics, "readyz": get(f"{printed[1]}/readyz"), **spark_pages(ui)}
            shown |= {f"process {number}": line for number, line in enumerate(command_lines())}
    # What this test finds nothing in must have been found, and not be empty.
    settings = next(
        text for place, text in shown.items() if place.startswith("/api/") and place.endswith("/environment")
    )
    assert str(ui) in settings
    assert "spark.hadoop.fs.s3a.secret.key" in settings
    assert any("MapInArrow" in text for place, text in shown.items() if place.startswith("/SQL/execution/"))
    assert any("org.apache.spark.deploy.SparkSubmit" in line and str(ui) in line for line in shown.values())
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for name in secrets:
        del files[name]
    assert any(name.startswith(".weft/p/checkpoints/sa/offsets/") for name in files)
    assert b"sa batch: 3 rows" in files["weft.log"]
    assert b"sa: " in files["output"]
    address = f"127.0.0.1:{registry.port}".encode()
    assert any(address in text and b"503" in text for text in files.values()), "the outage is in a log"
    assert any(b"schema 999 is not in the schema registry" in text for text in files.values()), "the dead letter"
    assert any(name.startswith(".weft/p/logs/") for name in files)
    everywhere = {**{place: text.encode() for place, text in shown.items()}, **files}
    for secret in (STORE_KEY, *secrets.values()):
        assert [place for place, text in everywhere.items() if secret.encode() in text] == []


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def fill(registry: SchemaRegistry) -> Callable[[Broker], str]:
    def filled(broker: Broker) -> str:
        topic = f"secrets-{next(topic_numbers)}"
        broker.create_topics({topic: 1})
        schema_id = registry.register(f"{topic}-value", json.dumps(SCHEMA))
        good = [written(SCHEMA, {"id": i, "a": "x", "at": 1}, schema_id) for i in range(3)]
        producer = broker.producer()
        for value in (*good, written(SCHEMA, {"id": 9}, 999)):
            producer.produce(topic, value)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return topic

    return filled


@pytest.mark.spark
@pytest.mark.extended
def test_a_pipeline_shows_no_secret(
    broker: Broker, fill: Callable[[Broker], str], registry: SchemaRegistry, tmp_path: Path
) -> None:
    unused = {"sasl.username": "weft", "sasl.password": "${file:password}"}  # the broker asks for no login
    login = {"url": f"http://weft:${{file:registry}}@127.0.0.1:{registry.port}"}
    settings = {"bootstrap.servers": broker.bootstrap_servers, **unused}
    check_no_place_has_a_secret(tmp_path, settings, fill(broker), registry, login)
    assert registry.users == {f"weft:{REGISTRY_PASSWORD}"}


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_pipeline_with_a_login_shows_no_secret(
    fill: Callable[[Broker], str], registry: SchemaRegistry, tmp_path: Path
) -> None:
    (tmp_path / "certificates").mkdir()
    (tmp_path / "pipeline").mkdir()
    login = {"url": registry.url, "basic.auth.user.info": "weft:${file:registry}"}
    try:
        with start_secure_broker(tmp_path / "certificates", PASSWORD) as secure:
            topic = fill(secure.broker)
            secure.allow(USER, topic, AclOperation.READ, AclOperation.DESCRIBE)
            kafka = secure.sasl("${file:password}")
            check_no_place_has_a_secret(tmp_path / "pipeline", kafka, topic, registry, login)
    except Unavailable as reason:
        pytest.skip(f"no real Kafka broker: {reason}")
    assert registry.users == {f"weft:{REGISTRY_PASSWORD}"}

"""The commands of deploy/compose.yaml as processes, with a real broker and a real S3 server: the table is correct.

Without a container engine: each service's command is started with its environment, in a separate state folder. A writer
is killed and started again with an empty one, as by Kubernetes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import weft
from tests.http_get import get
from tests.stores.real_server import real_server
from tests.streams.kafka.real_broker import RealBroker
from weft.streams.demo import reference
from weft.streams.pipeline.file.pipeline import load_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(1_800)]

DEPLOY = Path(__file__).parents[4] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
PIPELINE = DEPLOY / "kubernetes/common/pipeline.yaml"
STATE = "/var/lib/weft/state"
ROWS = 20_000
WRITERS = ("orders", "payments", "shipments", "clicks")
LIMIT_SECONDS = 900.0
STOP_SECONDS = 120.0
MEASURED_SECONDS = 15.0  # a lag that is reported this long after the last message was measured after it


@dataclass
class Part:
    """A service of the file, as a process on this machine."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    port: int = 0
    starts: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it with an empty state folder and a free port."""
        self.starts += 1
        home = self.folder / f"{self.name}-{self.starts}"
        home.mkdir()
        path = home / "pipeline.yaml"
        path.write_text(PIPELINE.read_text().replace(STATE, str(home / "state")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        given = {"/etc/weft/pipeline.yaml": str(path), "0.0.0.0:9464": str(self.port)}
        arguments = [given.get(argument, argument) for argument in SERVICES[self.name]["command"]]
        with (home / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weft.streams.cli.main", *arguments],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )

    def metrics(self) -> dict[str, float]:
        """Its metrics; empty while it does not answer."""
        with contextlib.suppress(OSError):
            families = list(text_string_to_metric_families(get(f"http://127.0.0.1:{self.port}/metrics")))
            return {sample.name: sample.value for family in families for sample in family.samples}
        return {}

    def output(self) -> str:
        """The end of its output."""
        return (self.folder / f"{self.name}-{self.starts}" / "output").read_text()[-2_000:]


@pytest.fixture
def parts(tmp_path: Path, real_broker: RealBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Part]]:
    with real_server() as store:
        told = {
            **{name: value for name, value in SERVICES["orders"]["environment"].items() if "$" not in value},
            "KAFKA_BOOTSTRAP_SERVERS": real_broker.bootstrap_servers,
            "AWS_ENDPOINT_URL": store.options["endpoint_url"],
            "AWS_ACCESS_KEY_ID": store.options["key"],
            "AWS_SECRET_ACCESS_KEY": store.options["secret"],
        }
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        made = {name: Part(name, tmp_path, told) for name in (*WRITERS, "compaction", "clean", "create")}
        try:
            yield made
        finally:
            for part in made.values():
                if part.starts:
                    part.process.kill()
                    part.process.wait(STOP_SECONDS)
            for topic in (*WRITERS, "customers"):
                with contextlib.suppress(RuntimeError):
                    real_broker.delete_topic(topic)  # other tests share the broker


def until(parts: dict[str, Part], metric: str, wanted: Callable[[float], bool]) -> None:
    """Wait until a metric of every writer satisfies a condition. No part may end meanwhile."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        seen = {name: parts[name].metrics().get(metric) for name in WRITERS}
        if all(value is not None and wanted(value) for value in seen.values()):
            return
        for part in parts.values():
            assert part.process.poll() is None, (part.name, part.output())
        assert time.monotonic() < deadline, (metric, seen)
        time.sleep(0.5)


def test_the_parts_write_a_table_that_equals_the_join(
    spark: SparkSession, parts: dict[str, Part], real_broker: RealBroker, tmp_path: Path
) -> None:
    _, *bucket = SERVICES["bucket"]["entrypoint"]
    subprocess.run([sys.executable, *bucket], check=True, timeout=120)
    create = parts.pop("create")
    create.start()
    assert create.process.wait(120) == 0, create.output()

    feed = [real_broker.bootstrap_servers if word == "kafka:9092" else word for word in SERVICES["feed"]["command"]]
    feed[feed.index("--rows") + 1] = str(ROWS)
    feed[feed.index("--feed-seconds") + 1] = "20"
    feeding = subprocess.Popen([sys.executable, "-P", "-m", "weft.streams.cli.main", *feed])
    for part in parts.values():
        part.start()
    until(parts, "weft_rows_total", lambda rows: rows > 0)
    parts["orders"].process.kill()
    parts["orders"].process.wait(STOP_SECONDS)
    parts["orders"].start()  # while the job of the first process may still run
    assert feeding.wait(120) == 0
    time.sleep(MEASURED_SECONDS)
    until(parts, "weft_lag_messages", lambda lag: lag == 0)

    for part in parts.values():
        part.process.send_signal(signal.SIGTERM)
    ends = {part.name: part.process.wait(STOP_SECONDS) for part in parts.values()}
    assert ends == dict.fromkeys(parts, 0), {part.name: part.output() for part in parts.values()}
    pipeline = load_pipeline(parts["clicks"].folder / "clicks-1/pipeline.yaml")
    # The workers of this session started without the variables of the parts.
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "endpoint_url": "AWS_ENDPOINT_URL"}
    options = {option: os.environ[name] for option, name in names.items()}
    weft.create_view(spark, pipeline.table.uri, "composed", storage_options=options)
    real_broker.create_topics({"customers": 1})  # the join reads them; this table does not
    assert reference.load_topics(spark, real_broker.bootstrap_servers, tmp_path / "reference") == ROWS
    view = spark.table("composed")
    found = reference.compare(view, reference.join_query(spark).select(view.columns))
    assert found.equal, found

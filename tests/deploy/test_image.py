"""The image: its Dockerfile is built, and a writer, the services and a query run in the image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.deploy.image_builder import ROOT, Image, built_image
from tests.download_cache import Unavailable
from tests.stores.moto_server import BUCKET
from tests.stores.real_server import real_server
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.feed import Feed
from weft.streams.demo.workload import MIN_ROWS, plan_topics

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(3_600)]

WEFT = "/opt/weft/bin/entrypoint.sh"
PIPELINE = "/etc/weft/pipeline.yaml"
CACHE = "/opt/weft/cache"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    try:
        with built_image() as built:
            yield built
    except Unavailable as reason:
        pytest.skip(f"the image cannot be built here: {reason}")


def test_the_build_leaves_no_temporary_files(image: Image) -> None:
    """The first test, because the others leave some in the same container."""
    assert list((image.root / "tmp").iterdir()) == []
    assert [path.name for path in (image.root / "root").iterdir() if path.name not in {".bashrc", ".profile"}] == []


def test_the_weft_command_runs(image: Image) -> None:
    done = image.run("/usr/bin/tini", "--", WEFT, "--help")
    assert done.returncode == 0, done.stderr
    assert "Exit codes: 0 ok" in done.stdout


def test_it_runs_as_an_unprivileged_user(image: Image) -> None:
    assert image.run("id", "-u").stdout == "10001\n"
    assert image.run("touch", "/opt/weft/x", "/etc/x").returncode != 0
    assert image.run("touch", "/var/lib/weft/x").returncode == 0


def test_writers_use_the_archive_of_classes(image: Image) -> None:
    """It was made for this Java and these jars, and the JVM that weft starts maps it."""
    (archive,) = image.run("ls", CACHE).stdout.split()
    code = (
        "import sys; from pathlib import Path; from weft.streams.spark.session import build_session\n"
        "spark = build_session('weft test', {'spark.master': 'local[1]'}, scratch=Path('scratch'))\n"
        "jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()\n"
        "print('maps', sys.argv[1] in Path(f'/proc/{jvm}/maps').read_text()); spark.stop()"
    )
    done = image.run("python", "-c", code, f"{CACHE}/{archive}")
    assert "maps True" in done.stdout, done.stdout + done.stderr


def test_java_is_17(image: Image) -> None:
    assert re.search(r'version "17\.', image.run("java", "-version").stderr)


def test_build_tools_are_not_in_the_image(image: Image) -> None:
    for program in ("pip", "pip3", "gcc", "cc", "make", "javac", "git", "curl", "wget"):
        assert image.run("sh", "-c", f"command -v {program}").returncode != 0, program
    left = image.run("python", "-c", "import importlib.util as u; print(u.find_spec('pip'), u.find_spec('setuptools'))")
    assert left.stdout == "None None\n"
    assert not (image.root / "build").exists()
    assert list((image.root / "var/lib/apt/lists").iterdir()) == []


def test_every_package_has_the_pinned_version(image: Image) -> None:
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    found = json.loads(image.run("python", "-c", code).stdout)
    installed = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}
    assert installed.pop("weft")
    assert {name: version for name, version in installed.items() if pinned.get(name) != version} == {}


def test_a_kubernetes_executor_is_started_by_sparks_command(image: Image) -> None:
    told = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "pod-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dspark.rpc.numRetries=1",
        "SPARK_JAVA_OPT_1": "-Dspark.rpc.askTimeout=5s",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = image.run(WEFT, "executor", environment=told)
    assert done.returncode != 0
    assert "Usage: " not in done.stderr, "the entry point passes the arguments on"
    assert "Failed to connect to /127.0.0.1:1" in done.stderr, (
        "the executor tries to connect to its driver, which does not exist"
    )


def test_spark_submit_starts_a_driver(image: Image) -> None:
    done = image.run(WEFT, "driver", "--version", environment={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"})
    assert done.returncode == 0, done.stderr
    assert "version 4.3" in done.stdout + done.stderr


def test_a_writer_the_services_and_a_query(image: Image) -> None:
    topics = plan_topics(MIN_ROWS)
    with real_server() as store, EmbeddedBroker() as broker:
        feed = Feed(broker, topics)
        while not feed.finished:
            feed.send_part()
        environment = {
            "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "TABLE_URI": f"s3://{BUCKET}/orders_wide",
            "AWS_ENDPOINT_URL": store.options["endpoint_url"],
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": store.options["key"],
            "AWS_SECRET_ACCESS_KEY": store.options["secret"],
        }
        volumes = {ROOT / "deploy/kubernetes/common/pipeline.yaml": f"{PIPELINE}:ro"}

        def weft(*arguments: str) -> list[dict[str, object]]:
            done = image.run(WEFT, *arguments, "--json", environment=environment, volumes=volumes)
            assert done.returncode == 0, done.stdout + done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        assert weft("create", PIPELINE) == [{"uri": environment["TABLE_URI"], "created": True}]
        for rows in (topics["orders"].rows, 0):  # the second process has no checkpoint, only the table
            last = weft("run", PIPELINE, "--only", "orders", "--once")[-1]
            assert (last["job"], last["state"], last["rows"], last["lag"]) == ("orders", "done", rows, 0)
        assert weft("run", PIPELINE, "--only", "compaction", "--once")[-1]["state"] == "done"
        assert weft("run", PIPELINE, "--only", "clean", "--once")[-1]["state"] == "done"
        (counted,) = weft("sql", PIPELINE, "SELECT count(*) AS n FROM t")
        assert 0 < int(str(counted["n"])) <= topics["orders"].rows

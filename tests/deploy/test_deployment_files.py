"""The files below deploy/ agree with each other, with the command line and with the time limits of the supervisor."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.cli.arguments import USAGE
from streams.demo import shop
from streams.pipeline.error_kinds import Ending
from streams.pipeline.job_process import STOP_SECONDS
from streams.pipeline.pipeline import Pipeline, load_pipeline
from streams.pipeline.run import choose_part, make_jobs
from streams.pipeline.supervisor import KILL_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PIPELINE = DEPLOY / "kubernetes/common/pipeline.yaml"
ENVIRONMENT = {"KAFKA_BOOTSTRAP_SERVERS": "kafka:9092", "TABLE_URI": "s3://weft/orders_wide"}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
RUN = ["run", "/etc/weft/pipeline.yaml", "--only"]


@pytest.fixture
def pipeline() -> Pipeline:
    return load_pipeline(PIPELINE, ENVIRONMENT)


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def documents() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
        if path != PIPELINE:
            yield from yaml.safe_load_all(path.read_text())


def seconds_to_stop(pipeline: Pipeline, part: str) -> float:
    """Seconds until the supervisor has ended, if a process of the part hangs."""
    job = next(job for job in make_jobs(pipeline) if job.name == part)
    return job.stop_seconds + KILL_SECONDS


def test_the_pipeline_file_equals_the_demo(pipeline: Pipeline, tmp_path: Path) -> None:
    demo = load_pipeline(shop.write_pipeline(tmp_path, "kafka:9092"))
    assert pipeline.config == demo.config
    assert list(pipeline.writers) == list(demo.writers)
    for name, writer in pipeline.writers.items():
        told = demo.writers[name]
        for field in ("stream", "message", "select", "where", "reader_format", "reader_options"):
            assert getattr(writer, field) == getattr(told, field), (name, field)
        assert writer.resume == "table", "its checkpoint is on scratch"
        assert writer.dead_letter is None, "dead letters are beside the table, not on scratch"
    assert pipeline.state == Path("/var/lib/weft/state")
    assert pipeline.clean is not None
    assert pipeline.compaction is not None


def test_compose_has_a_container_for_each_part(pipeline: Pipeline, compose: dict[str, Any]) -> None:
    services = compose["services"]
    commands = {name: service["command"] for name, service in services.items() if service.get("command", [])[:3] == RUN}
    assert list(commands) == [*pipeline.writers, "compaction", "clean"]
    for name, command in commands.items():
        choose_part(pipeline, command[3])
        assert command[3:] == [name, "--exit-on-failure", "--http", "0.0.0.0:9464"]
        grace = int(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace > seconds_to_stop(pipeline, name)
    for config in compose["configs"].values():
        assert (DEPLOY / config["file"]).is_file()
    told = compose["x-weft"]["environment"]
    assert ENVIRONMENT.items() <= told.items()


def test_prometheus_scrapes_every_part(pipeline: Pipeline) -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())["scrape_configs"]
    (static,) = job["static_configs"]
    assert static["targets"] == [f"{part}:9464" for part in (*pipeline.writers, "compaction", "clean")]


def test_images_are_pinned_to_versions(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values()]
    images += re.findall(
        r"^\s*image: (\S+)", "".join(p.read_text() for p in DEPLOY.rglob("kubernetes/**/*.yaml")), re.MULTILINE
    )
    assert all(re.fullmatch(r"[a-z/]+:v?\d+\.\d+(\.\d+)?", image) for image in images), images
    assert {image for image in images if image.startswith("weft:")} == {f"weft:{VERSION}"}
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    assert re.search(r"^ARG BASE=debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_kubernetes_has_a_folder_for_each_writer(pipeline: Pipeline) -> None:
    for folder, listed in (("writers", "../writers/"), ("spark-operator", "")):
        for name in pipeline.writers:
            told = yaml.safe_load((DEPLOY / "kubernetes" / folder / name / "kustomization.yaml").read_text())
            assert told["nameSuffix"] == f"-{name}"
            assert told["labels"][0]["pairs"] == {"app.kubernetes.io/component": name}
            if folder == "spark-operator":
                assert yaml.safe_load(told["patches"][0]["patch"])[0]["value"] == name
        whole = yaml.safe_load(
            (DEPLOY / "kubernetes" / folder.replace("writers", "deployments") / "kustomization.yaml").read_text()
        )
        assert {f"{listed}{name}" for name in pipeline.writers} <= set(whole["resources"])


def test_each_pod_runs_one_part_and_has_enough_time_to_stop(pipeline: Pipeline) -> None:
    pods = {}
    for document in documents():
        if document.get("kind") in {"Deployment", "CronJob"}:
            spec = document["spec"]["jobTemplate"]["spec"] if document["kind"] == "CronJob" else document["spec"]
            pods[document["metadata"]["name"]] = spec["template"]
            if document["kind"] == "Deployment":
                assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert set(pods) == {"weft-writer", "weft-compaction", "weft-clean"}
    for name, pod in pods.items():
        (container,) = pod["spec"]["containers"]
        assert container["args"][:4] == [*RUN, "$(PART)"]
        part = "orders" if name == "weft-writer" else pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert pod["spec"]["terminationGracePeriodSeconds"] > seconds_to_stop(pipeline, part)
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert ("--once" in container["args"]) == (name == "weft-clean")
        assert ("livenessProbe" in container) == ("readinessProbe" in container) == ("--http" in container["args"])


def test_systemd_units_have_enough_time_to_stop(pipeline: Pipeline) -> None:
    found = {}
    for unit in (DEPLOY / "systemd").glob("*.service"):
        text = unit.read_text()
        command = re.search(
            r"^ExecStart=/opt/weft/bin/weft run /etc/weft/pipeline.yaml --only (\S+)", text, re.MULTILINE
        )
        stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        assert command is not None
        assert stop is not None
        part = "orders" if command[1] == "%i" else command[1]
        found[part] = int(stop[1])
        assert found[part] > seconds_to_stop(pipeline, part)
        assert "KillMode=mixed" in text, "a JVM that gets the signal too would drop its batch"
    assert set(found) == {"orders", "compaction", "clean"}
    assert found["orders"] < 3 * STOP_SECONDS


def test_systemd_does_not_restart_fenced_writers() -> None:
    text = (DEPLOY / "systemd/weft-writer@.service").read_text()
    prevented = re.search(r"^RestartPreventExitStatus=(.+)$", text, re.MULTILINE)
    assert prevented is not None
    assert {int(code) for code in prevented[1].split()} == {USAGE, Ending.FENCED}


def test_prometheus_finds_the_drivers_of_the_spark_operator() -> None:
    template = yaml.safe_load((DEPLOY / "kubernetes/spark-operator/template/application.yaml").read_text())
    service = yaml.safe_load((DEPLOY / "kubernetes/common/service.yaml").read_text())
    driver, executor = template["spec"]["driver"], template["spec"]["executor"]
    (port,) = driver["ports"]
    (served,) = service["spec"]["ports"]
    assert (port["name"], port["containerPort"]) == (served["targetPort"], served["port"])
    assert template["spec"]["arguments"][2:] == ["--http", f"0.0.0.0:{port['containerPort']}"]
    assert service["spec"]["selector"].items() <= driver["labels"].items()
    assert "labels" not in executor, "an executor serves nothing"


def test_the_image_installs_the_requirements_of_the_project(capfd: pytest.CaptureFixture[str]) -> None:
    script, project = DEPLOY / "docker/requirements.py", ROOT / "pyproject.toml"
    subprocess.run([sys.executable, str(script), str(project), "s3"], check=True)
    told = capfd.readouterr().out.splitlines()
    whole = tomllib.loads(project.read_text())["project"]
    assert told == [*whole["dependencies"], *whole["optional-dependencies"]["s3"]]
    done = subprocess.run(
        [sys.executable, str(script), str(project), "s4"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "there is no extra 's4'" in done.stderr) == (1, True)


def test_files_that_the_image_copies_are_not_in_dockerignore() -> None:
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+)$", dockerfile, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)

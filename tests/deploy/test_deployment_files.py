"""The files below deploy/ agree with each other, with the command line and with the time limits of the supervisor."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from weft.streams.cli.arguments import USAGE
from weft.streams.demo import shop
from weft.streams.pipeline.file.pipeline import Pipeline, load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.job_process import STOP_SECONDS
from weft.streams.pipeline.run.run import choose_part, make_jobs
from weft.streams.pipeline.run.supervisor import KILL_SECONDS

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


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and checksums of each package in a list for pip."""
    text = (DEPLOY / "docker" / name).read_text()
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=\S+)*)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[^#\s]", text, re.MULTILINE)), "each line is a package in one version"
    return {package: (version, re.findall(r"--hash=(\S+)", hashes)) for package, version, hashes in entries}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_pods_reach_only_what_the_pipeline_names() -> None:
    policies = {
        document["metadata"]["name"]: document["spec"]
        for document in documents()
        if document.get("kind") == "NetworkPolicy"
    }
    assert set(policies) == {"weft", "weft-spark"}
    whole, spark = policies["weft"], policies["weft-spark"]
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule.get("to") or rule.get("ports") for rule in policy["egress"]), "an empty rule allows everything"
        assert all(rule["from"] for rule in policy["ingress"])
    assert whole["podSelector"] == {}, "every pod of the namespace"
    (scraped,) = whole["ingress"]
    (monitored,) = yaml.safe_load((DEPLOY / "kubernetes/common/service.yaml").read_text())["spec"]["ports"]
    assert [port["port"] for port in scraped["ports"]] == [monitored["targetPort"]]
    common = yaml.safe_load((DEPLOY / "kubernetes/common/kustomization.yaml").read_text())
    literals = dict(line.split("=", 1) for line in common["configMapGenerator"][1]["literals"])
    host, _, port = literals["KAFKA_BOOTSTRAP_SERVERS"].partition(":")
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": host.split(".")[1]}}}
    assert {"to": [namespace], "ports": [{"protocol": "TCP", "port": int(port)}]} in whole["egress"]
    outside = [rule for rule in whole["egress"] if any("ipBlock" in target for target in rule["to"])]
    assert [port["port"] for rule in outside for port in rule["ports"]] == [443]
    assert all(target["ipBlock"]["except"] for rule in outside for target in rule["to"]), "metadata of instances"
    assert spark["podSelector"] == spark["ingress"][0]["from"][0]["podSelector"], "only each other"


def test_the_image_installs_pinned_versions_with_checksums_alone() -> None:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    pins = {normalized(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    packages = locked("requirements.txt") | locked("build-requirements.txt")
    assert {name: version for name, (version, _) in packages.items()} == {name: pins.get(name) for name in packages}
    for name, (_, hashes) in packages.items():
        assert hashes, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", checksum) for checksum in hashes), name
    dockerfile = re.sub(r"\\\n\s*", "", (DEPLOY / "docker/Dockerfile").read_text())
    installs = re.findall(r"pip install ([^&\n]*)", dockerfile)
    assert ["--require-hashes" in line for line in installs] == [True, True, False]
    assert all("--no-build-isolation" in line for line in installs[1:]), "it would fetch what builds packages"
    assert installs[2].split()[-1] == ".", "this is weft itself"


def test_links_of_the_image_lead_to_installed_packages() -> None:
    """Without -I Python would find the copy in the build folder, which is not in the image."""
    commands = re.findall(r"bin/python (.*?)-c", (DEPLOY / "docker/Dockerfile").read_text())
    assert commands == ["-I ", "-I "]


def test_the_list_of_checksums_has_all_that_the_image_needs() -> None:
    """With --no-deps pip does not look: everything that an installed package asks for is in the list."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages, seen = locked("requirements.txt"), set[tuple[str, str]]()
    waiting = [Requirement(line) for line in [*whole["dependencies"], *whole["optional-dependencies"]["s3"]]]
    target = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": "3.11"}
    target |= {"python_full_version": "3.11.2", "platform_python_implementation": "CPython"}
    while waiting:
        need = waiting.pop()
        version, _ = packages[normalized(need.name)]
        assert need.specifier.contains(version, prereleases=True), need
        for extra in {"", *need.extras}:
            if (normalized(need.name), extra) not in seen:
                seen.add((normalized(need.name), extra))
                asked = [Requirement(line) for line in metadata.requires(need.name) or ()]
                waiting += [one for one in asked if not one.marker or one.marker.evaluate({**target, "extra": extra})]
    assert {name for name, _ in seen} == set(packages)


def test_the_list_of_checksums_is_that_of_an_extra() -> None:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "docker/lock.py"), "s4"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "there is no extra 's4'" in done.stderr) == (1, True)
    first = (DEPLOY / "docker/requirements.txt").read_text().splitlines()[0]
    assert first == "# Written by python deploy/docker/lock.py s3"


def test_files_that_the_image_copies_are_not_in_dockerignore() -> None:
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+)$", dockerfile, re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)

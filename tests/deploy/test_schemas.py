"""Checks the files below deploy/ against the schemas and linters of the programs that read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import tools
from tests.download_cache import Unavailable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]  # programs may have to be fetched

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUSTOMIZATIONS = ("deployments", "spark-operator")
VARIABLE = re.compile(r"\$\{?\w+\}?")
SCRIPTS = [*sorted(DEPLOY.glob("*.sh")), *sorted(DEPLOY.glob("*/*.sh")), ROOT / ".ci/run"]


def fetched(get: Callable[..., Path], *arguments: str) -> Path:
    try:
        return get(*arguments)
    except Unavailable as reason:
        pytest.skip(f"a program that checks this file cannot be installed: {reason}")


def output(*command: str | Path, given: str | None = None) -> tuple[int, str]:
    whole = [str(part) for part in command]
    done = subprocess.run(whole, input=given, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def programs() -> Path:
    return fetched(tools.python_tools)


@pytest.fixture(scope="module")
def kustomize() -> Path:
    return fetched(tools.go_program, tools.KUSTOMIZE, "kustomize")


@pytest.fixture(scope="module", params=KUSTOMIZATIONS)
def manifests(request: pytest.FixtureRequest, kustomize: Path) -> list[dict[str, Any]]:
    code, text = output(kustomize, "build", DEPLOY / "kubernetes" / request.param)
    assert code == 0, text
    return [document for document in yaml.safe_load_all(text) if document]


def test_dockerfile(programs: Path) -> None:
    assert output(programs / "hadolint", DEPLOY / "docker/Dockerfile") == (0, "")


def test_the_linter_of_dockerfiles_finds_mistakes(programs: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian\nRUN cd /tmp && sudo apt-get install x\n")
    code, text = output(programs / "hadolint", wrong)
    assert code == 1
    assert "DL3006" in text


def test_scripts(programs: Path) -> None:
    assert output(programs / "shellcheck", "-x", "-P", DEPLOY, *SCRIPTS) == (0, "")


def test_compose() -> None:
    program = fetched(tools.go_program, tools.COMPOSE, "cmd")
    code, text = output(program, DEPLOY / "compose.yaml")
    assert code == 0, text


@pytest.mark.parametrize(
    ("right", "wrong"), [("stop_grace_period", "stop_grace"), ("{condition: service_", "{condition: servise_")]
)
def test_compose_with_a_mistake_is_refused(tmp_path: Path, right: str, wrong: str) -> None:
    program = fetched(tools.go_program, tools.COMPOSE, "cmd")
    copy = tmp_path / "compose.yaml"
    copy.write_text((DEPLOY / "compose.yaml").read_text().replace(right, wrong))
    assert output(program, copy)[0] != 0


def test_kubernetes(manifests: list[dict[str, Any]], programs: Path, tmp_path: Path) -> None:
    for number, document in enumerate(manifests):
        if document["apiVersion"].startswith(("monitoring.coreos.com/", "sparkoperator.k8s.io/")):
            continue  # no resources of Kubernetes itself; see below
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(document))
        # It prints nothing, in particular no warning about an unknown resource.
        assert output(programs / "kubernetes-validate", "-k", tools.KUBERNETES, "--strict", "--quiet", file) == (
            0,
            "",
        ), document["metadata"]["name"]


def test_a_manifest_with_a_mistake_is_refused(programs: Path, tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes/common/clean.yaml").read_text()
    wrong = tmp_path / "clean.yaml"
    for right, mistake in (("concurrencyPolicy", "concurencyPolicy"), ("backoffLimit: 1", "backoffLimit: one")):
        wrong.write_text(text.replace(right, mistake))
        assert output(programs / "kubernetes-validate", "-k", tools.KUBERNETES, "--strict", "--quiet", wrong)[0] != 0


def test_service_monitor(manifests: list[dict[str, Any]]) -> None:
    packages = fetched(tools.npm_packages, tools.PROMETHEUS_MODELS)
    check = shutil.copy(Path(__file__).with_name("check_service_monitor.mjs"), packages)
    found = [document for document in manifests if document["kind"] == "ServiceMonitor"]
    assert found
    assert output("node", check, given=json.dumps(found)) == (0, "")
    del found[0]["spec"]["endpoints"]
    assert "endpoints" in output("node", check, given=json.dumps(found))[1]
    rules = [document for document in manifests if document["kind"] == "PrometheusRule"]
    assert rules
    assert output("node", check, given=json.dumps(rules)) == (0, "")
    del rules[0]["spec"]["groups"][0]["name"]
    assert "name" in output("node", check, given=json.dumps(rules))[1]


def test_spark_applications(kustomize: Path, programs: Path) -> None:
    code, text = output(kustomize, "build", DEPLOY / "kubernetes/spark-operator")
    assert code == 0, text
    found = [document for document in yaml.safe_load_all(text) if document["kind"] == "SparkApplication"]
    assert len(found) == 4
    check = Path(__file__).with_name("check_spark_application.py")
    assert output(programs / "python", check, given=json.dumps(found)) == (0, "")
    found[0]["spec"]["driver"]["serviceacount"] = "x"
    assert ".spec.driver.serviceacount" in output(programs / "python", check, given=json.dumps(found))[1]


@pytest.fixture(scope="module")
def promtool() -> Path:
    found = shutil.which("promtool")
    return Path(found) if found else fetched(tools.debian_program, "prometheus", "promtool")


def test_prometheus(promtool: Path) -> None:
    code, text = output(promtool, "check", "config", DEPLOY / "prometheus/prometheus.yaml")
    assert code == 0, text
    assert "rules found" in text, "the alerts are part of the configuration"


def test_alerts_fire_when_they_should(promtool: Path) -> None:
    code, text = output(promtool, "test", "rules", Path(__file__).with_name("alerts_test.yaml"))
    assert code == 0, text


def test_a_wrong_alert_is_refused(promtool: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "alerts.yaml"
    wrong.write_text((DEPLOY / "prometheus/alerts.yaml").read_text().replace("increase(", "increases(", 1))
    assert output(promtool, "check", "rules", wrong)[0] != 0


def test_every_panel_asks_a_valid_query(promtool: Path, tmp_path: Path) -> None:
    """Queries of the dashboard, with values for its variables, as expressions of rules."""
    panels = json.loads((DEPLOY / "grafana/dashboards/weft.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    valued = [VARIABLE.sub(lambda found: "5m" if "interval" in found[0] else "x", query) for query in queries]
    assert any("weft_publication_age_seconds" in query for query in valued)
    for broken, expected in (("", 0), ("sum by (", 1)):
        rules = [{"record": f"panel:{number}", "expr": broken + query} for number, query in enumerate(valued)]
        written = tmp_path / "rules.yaml"
        written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        code, text = output(promtool, "check", "rules", written)
        assert code == expected, text


def test_systemd(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no program `systemd-analyze`; on Debian it is in the package systemd")
    units = []
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        copy = tmp_path / unit.name.replace("@.", "@orders.")
        # weft is not installed here.
        copy.write_text(unit.read_text().replace("/opt/weft/bin/weft", shutil.which("true") or "/bin/true"))
        units.append(copy)
    assert output("systemd-analyze", "verify", "--man=no", *units) == (0, "")
    for copy in units:
        if copy.suffix == ".service":
            code, text = output("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", copy)
            assert code == 0, text

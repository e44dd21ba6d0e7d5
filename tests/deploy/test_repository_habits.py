"""Workflows, the Makefile and hooks call what exists: the loops of deploy/test.sh, all parts of the nightly loop."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.nightly import all_parts

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOOPS = set(re.findall(r"--(fast|extended|ci|nightly)", (ROOT / "deploy" / "test.sh").read_text(encoding="utf-8")))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs() -> dict[str, Any]:
    return {name: job for path in WORKFLOWS for name, job in read_yaml(path)["jobs"].items()}


def commands() -> list[str]:
    return [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]


def test_every_script_and_loop_of_a_workflow_exists() -> None:
    scripts = {name for command in commands() for name in re.findall(r"deploy/\w+\.sh", command)}
    assert scripts >= {"deploy/test.sh", "deploy/demo.sh", "deploy/docs.sh", "deploy/nightly.sh"}
    assert [name for name in scripts if not (ROOT / name).is_file()] == []
    loops = {loop for command in commands() for loop in re.findall(r"deploy/test\.sh --(\w+)", command)}
    assert loops == {"fast", "extended"} <= LOOPS
    assert "bash deploy/test.sh" in commands(), "the full loop runs, too"


def test_every_job_has_a_limit_of_time_and_reads_only() -> None:
    assert [name for name, job in jobs().items() if "timeout-minutes" not in job] == []
    assert [path.name for path in WORKFLOWS if read_yaml(path)["permissions"] != {"contents": "read"}] == []


def test_the_nightly_workflow_runs_all_parts() -> None:
    assert jobs()["nightly"]["strategy"]["matrix"]["part"] == [part.name for part in all_parts()]


def test_the_fast_loop_runs_on_each_python_that_the_package_accepts() -> None:
    classifiers = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = re.findall(r"Programming Language :: Python :: (3\.\d+)", classifiers)
    assert jobs()["fast"]["strategy"]["matrix"]["python"] == versions


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lists_its_names_and_each_runs_something() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert names == re.findall(r"^([a-z]+):", text, re.MULTILINE)
    for name in names:
        subprocess.run(["make", "--dry-run", name], cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert [script for script in re.findall(r"deploy/\w+\.sh", text) if not (ROOT / script).is_file()] == []


def test_forms_and_containers_for_development_can_be_read() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert form.name == "config.yml" or {"name", "description", "body"} <= set(read_yaml(form))
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert "weft_setup dev" in container["postCreateCommand"]
    hooks = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"].split()[0].rpartition("/")[2] for hook in hooks] == ["ruff", "ruff", "lint-imports", "mypy"]


def test_the_version_has_notes_and_is_the_one_that_images_have() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## {version} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    listed = subprocess.run(["git", "ls-files", "deploy"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = [path.read_bytes().decode(errors="ignore") for name in listed.split() if (path := ROOT / name).is_file()]
    tags = [tag for text in texts for tag in re.findall(r"(?:weft:|newTag: )(\d+\.\d+\.\d+)", text)]
    assert set(tags) == {version}

"""The README is short, and its example prints the documented output; the quick start runs as it is pasted."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from weft.streams.demo.broker import PORT

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
QUICK_START = ROOT / "deploy" / "docs" / "quickstart.md"
MOST_LINES = 130


def test_it_takes_a_minute() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_example_prints_the_documented_output(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"```python\n(import pyarrow.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None, "the example and its output stand next to each other"
    code, shown = found.groups()
    assert len(code.strip().splitlines()) <= 15
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip() == shown.rstrip()


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(1_000)
def test_the_first_pipeline_runs_as_it_is_pasted(tmp_path: Path) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something listens at port {PORT}, which the broker of the quick start takes")
    text = QUICK_START.read_text(encoding="utf-8")
    section = text[: text.index("Then let it\nrun, and look at it")]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 4
    script = "\n".join(("set -e", "trap 'kill $(jobs -p)' EXIT", *blocks))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = re.findall(r"^\W*(\d)\W+(\w+)\W+?(9\.5|NULL)\W*$", run.stdout, re.MULTILINE)
    assert rows == [("1", "sent", "9.5"), ("2", "new", "NULL")], run.stdout
    assert "sent" in run.stdout

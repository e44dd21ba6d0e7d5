"""How a run of the demo ends early: by Ctrl-C, and when nothing is done any more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROWS = 4_000
DEADLINE_SECONDS = 240.0
_RUN = """
import sys
from weft.streams.cli.main import app
from weft.streams.demo import run_demo
run_demo.STALL_SECONDS, run_demo.STALL_ROWS_PER_SECOND = float(sys.argv[1]), 1e9
app(["demo", *sys.argv[2:]], prog_name="weft")
"""


def start(folder: Path, stall_seconds: float) -> subprocess.Popen[str]:
    """A demo in a session of its own, so that a signal to its process group is what Ctrl-C on a terminal is."""
    argv = [sys.executable, "-c", _RUN, str(stall_seconds), "--rows", str(ROWS), "--keep", str(folder / "kept")]
    with (folder / "output").open("w") as output:
        return subprocess.Popen(argv, stdout=output, stderr=subprocess.PIPE, text=True, start_new_session=True)


def left_processes(folder: Path) -> list[str]:
    """Command lines of processes that use the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(folder) in line:
            found.append(line)
    return found


def ended(process: subprocess.Popen[str], folder: Path) -> str:
    """The verdict of a demo that has ended early."""
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert "Traceback" not in errors + (folder / "output").read_text()
    (verdict,) = errors.strip().splitlines()
    deadline = time.monotonic() + 120
    while left_processes(folder) and time.monotonic() < deadline:
        time.sleep(0.2)  # a JVM that was killed is on its way
    assert left_processes(folder) == []
    return verdict


@pytest.mark.spark
def test_ctrl_c_ends_it_with_what_is_missing(tmp_path: Path) -> None:
    moment = "messages for 4 topics"
    verdict = r"unfinished, stopped by SIGINT; missing: .*\d of \d.* messages of orders; .*the kill"
    process = start(tmp_path, DEADLINE_SECONDS)
    while moment not in (tmp_path / "output").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    assert re.match(verdict, ended(process, tmp_path))


@pytest.mark.spark
def test_a_stall_ends_it_with_what_is_missing(tmp_path: Path) -> None:
    """No writer starts within a second."""
    verdict = ended(start(tmp_path, 1.0), tmp_path)
    assert verdict.startswith("unfinished, no progress for 1 s; missing: ")
    assert "messages of orders;" in verdict

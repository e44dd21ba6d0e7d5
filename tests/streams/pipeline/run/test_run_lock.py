"""One `weft run` at a time: refusals, messages, and locks of dead processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.storage.errors import Conflict, InvalidInput
from weft.streams.pipeline.run.run_lock import hold_locks

pytestmark = pytest.mark.slow

HOLD = """
import sys, time
from pathlib import Path
from weft.streams.pipeline.run.run_lock import hold_locks
with hold_locks(Path(sys.argv[1]), sys.argv[2:], "p.yaml"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def hold(holders: list[subprocess.Popen[str]], state: Path, *names: str, code: str = HOLD) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(state), *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    holders.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_refused_and_the_first_is_named(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    first = hold(holders, tmp_path, "orders", "payments")
    with pytest.raises(Conflict) as refused, hold_locks(tmp_path, ["payments"], "p.yaml"):
        pass
    since = json.loads((tmp_path / "locks/payments.lock").read_text())["since"]
    assert refused.value.message == (
        f"p.yaml: payments is already running, by process {first.pid} on {socket.gethostname()} since {since}"
    )
    assert "stop that process first" in refused.value.hint


def test_a_link_to_the_state_folder_has_the_same_locks(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    hold(holders, tmp_path / "state", "orders")
    with pytest.raises(Conflict), hold_locks(tmp_path / "link", ["orders"], "p.yaml"):
        pass


def test_other_writers_may_run_at_the_same_time(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    hold(holders, tmp_path, "orders")
    with hold_locks(tmp_path, ["payments"], "p.yaml") as locks:
        assert list(locks) == ["payments"]


def test_a_command_that_is_refused_one_lock_holds_none(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    hold(holders, tmp_path, "b")
    with pytest.raises(Conflict, match="b is already running"), hold_locks(tmp_path, ["a", "b", "c"], "p.yaml"):
        pass
    hold(holders, tmp_path, "a", "c")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_process_leaves_no_lock(
    tmp_path: Path, holders: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = hold(holders, tmp_path, "orders")
    process.send_signal(number)
    process.communicate()
    with hold_locks(tmp_path, ["orders"], "p.yaml"):
        assert json.loads((tmp_path / "locks/orders.lock").read_text())["pid"] == os.getpid()


def test_the_next_run_may_begin_when_a_run_has_ended(tmp_path: Path, holders: list[subprocess.Popen[str]]) -> None:
    with hold_locks(tmp_path, ["orders"], "p.yaml"):
        pass
    hold(holders, tmp_path, "orders")


LEAVE = """
import os, subprocess, sys
from pathlib import Path
from weft.streams.pipeline.run.run_lock import hold_locks
with hold_locks(Path(sys.argv[1]), ["orders"], "p.yaml") as locks:
    # A job, as it goes on for a while when its supervisor is killed.
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=(locks["orders"],),
                             stdin=int(sys.argv[2]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os._exit(0)
"""


def test_a_new_run_waits_for_jobs_of_a_killed_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        subprocess.run([sys.executable, "-c", LEAVE, str(tmp_path), str(reading)], pass_fds=(reading,), check=True)
        with (
            pytest.raises(Conflict, match="which has ended, but its jobs have not"),
            hold_locks(tmp_path, ["orders"], "p.yaml", ending_seconds=0),
        ):
            pass
        os.close(writing)  # the job ends
        writing = -1
        with hold_locks(tmp_path, ["orders"], "p.yaml", ending_seconds=60):
            pass
    finally:
        for end in (reading, writing):
            if end >= 0:
                os.close(end)


def test_a_state_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InvalidInput, match=r"cannot write .*: Not a directory") as refused,
        hold_locks(tmp_path / "file", ["orders"], "p.yaml"),
    ):
        pass
    assert "set `state:` in the pipeline" in refused.value.hint

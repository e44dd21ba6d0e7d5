"""Ends processes that a test has started, and waits for the end of those that it has started indirectly."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

STOP_SECONDS: Final = 120


def end_process(process: subprocess.Popen[Any], how: signal.Signals) -> int:
    """Send a signal, and SIGKILL if the process has not ended `STOP_SECONDS` later; returns its exit status."""
    process.send_signal(how)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_SECONDS)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie process counts as dead; it is reaped by init.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pid: int) -> bool:
    """Whether a process ends within `STOP_SECONDS`."""
    deadline = time.monotonic() + STOP_SECONDS
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)

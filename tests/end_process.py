"""Ends a process that a test has started."""

from __future__ import annotations

import signal
import subprocess
from typing import Any, Final

STOP_SECONDS: Final = 30


def end_process(process: subprocess.Popen[Any], how: signal.Signals) -> int:
    """Send a signal, and SIGKILL if the process has not ended `STOP_SECONDS` later; returns its exit status."""
    process.send_signal(how)
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(STOP_SECONDS)

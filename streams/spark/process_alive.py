"""Asks the operating system whether a process is alive."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists on this machine. It may be another process that got the same id later."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process runs as another user
    return True

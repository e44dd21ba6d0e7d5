"""Asks the operating system whether a process is alive."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists on this machine. Another process may have got the id of one that ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process runs as another user
    return True

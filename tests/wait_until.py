"""Waits in a test for something that other threads or processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

_PAUSE_SECONDS: Final = 0.02


def wait_until(condition: Callable[[], Any], seconds: float) -> None:
    """Call a function until it returns something true; fails the test if that takes longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(_PAUSE_SECONDS)

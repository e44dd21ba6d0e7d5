"""Calls a function repeatedly in another thread while this one waits, for example for Spark."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def call_every(seconds: float, function: Callable[[], object], name: str) -> Iterator[None]:
    """Call a function every ``seconds`` until the block ends or the function raises. The block waits for the last call.

    Args:
        seconds: Time before the first call, and between the end of a call and the next one.
        function: The function.
        name: Name of the thread.
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(seconds):
            function()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

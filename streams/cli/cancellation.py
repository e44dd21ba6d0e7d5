"""Cancels the start of Spark and statements of Spark SQL at Ctrl-C.

PySpark handles Ctrl-C itself: it sends a request on the connection of the interrupted thread. In the middle of an
answer that breaks the connection. So the work runs in another thread here, and the interrupted thread only waits.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from weft.streams.cli.arguments import stderr

T = TypeVar("T")

_POLL_SECONDS: Final = 0.05
_CANCEL_SECONDS: Final = 10.0  # time for Spark to end its tasks
_RETRY_SECONDS: Final = 0.3  # a statement that has just begun has no jobs yet, so one request may cancel nothing


def run_until_ctrl_c(run: Callable[[str], None], text: str, cancel: Callable[[], None]) -> None:
    """Run a statement in a thread, and cancel it at Ctrl-C: call ``cancel`` again and again until the statement ends.

    Raises:
        KeyboardInterrupt: The statement was cancelled.
    """
    work = _Work(lambda: run(text))
    try:
        work.wait()
    except KeyboardInterrupt:
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not work.ended.is_set() and time.monotonic() < deadline:
            cancel()
            work.ended.wait(_RETRY_SECONDS)
        if not work.ended.is_set():
            stderr.print("the statement has not ended yet: it continues in the background", style="yellow")
        raise


def start_until_ctrl_c(start: Callable[[], T]) -> T:
    """Run ``start`` in a thread and return its result. After Ctrl-C it continues until the process ends.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    return _Work(start).wait()


class _Work(Generic[T]):
    """A function in a thread of its own.

    Attributes:
        ended: Set when the function has returned or raised. Before Python 3.13 a thread whose `join` is interrupted
            counts as dead although it runs.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._returned: list[T] = []
        self._raised: list[BaseException] = []
        self.ended = threading.Event()

    def _run(self) -> None:
        try:
            self._returned.append(self._function())
        except BaseException as error:
            self._raised.append(error)
        finally:
            self.ended.set()

    def wait(self) -> T:
        """Start the thread and return its result, or raise its error. Ctrl-C raises KeyboardInterrupt here only."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=self._run, daemon=True).start()
            while not self.ended.wait(_POLL_SECONDS):
                pass
        finally:
            signal.signal(signal.SIGINT, before)
        if self._raised:
            raise self._raised[0]
        return self._returned[0]

"""How a process learns that it has to stop: by a signal, or because its supervisor has ended.

A supervisor holds the writing end of a pipe, the lifeline, and never writes to it. The pipe closes when the supervisor
ends for whatever reason; its jobs notice that, and stop.

This module imports nothing heavy, so that a job can be stopped as soon as it starts.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NoReturn

LIFELINE_FD: Final = "WEFT_LIFELINE_FD"
ORPHAN_SECONDS: Final = 10.0  # time for a job without a supervisor to finish its batch; shorter than any restart


@contextlib.contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM until the block ends. Use it in the main thread."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopSignal:
    """Set when the job has to stop: on SIGTERM, or when the supervisor has ended. Create it in the main thread.

    Args:
        ends_start: Before `started` is called, end the process at once instead: its start may take long, and leaves
            nothing that a killed process would not leave.
    """

    def __init__(self, *, ends_start: bool = False) -> None:
        self._is_set, self._ends_at_once = False, ends_start
        # A handler interrupts the main thread anywhere, also inside `wait`. An event would then wait for its own lock
        # without end; putting into this queue is reentrant.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        signal.signal(signal.SIGTERM, lambda *_: self._set())
        lifeline = os.environ.get(LIFELINE_FD)
        if lifeline is not None:
            watch_lifeline(int(lifeline), self._set)

    def _set(self) -> None:
        self._is_set = True
        self._wakeups.put(None)
        if self._ends_at_once:
            os._exit(0)  # the supervisor kills the rest of the process group; without one, a JVM ends by itself

    def started(self) -> None:
        """Stop ending the process at once: from now on the job itself checks this signal."""
        self._ends_at_once = False

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until the signal is set, for at most ``seconds``; returns whether it is set."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=max(0.0, seconds))
                self._wakeups.put(None)  # for other threads that wait
        return self._is_set


def watch_lifeline(descriptor: int, on_end: Callable[[], None]) -> None:
    """Call ``on_end`` when the supervisor has ended; `ORPHAN_SECONDS` later kill this process and its children."""
    os.set_inheritable(descriptor, False)

    def watch() -> None:
        os.read(descriptor, 1)  # returns when the pipe closes: nothing is ever written to it
        on_end()
        time.sleep(ORPHAN_SECONDS)
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="weft-lifeline", daemon=True).start()


def end_process(code: int) -> NoReturn:
    """End this process at once.

    With `sys.exit` threads of py4j that wait for a JVM that has ended would keep the process alive.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

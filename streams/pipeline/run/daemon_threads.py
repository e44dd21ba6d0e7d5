"""An executor whose threads end with the process, for calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class DaemonThreads(Executor):
    """Runs each call in a thread that does not keep the process alive: a catalog may not answer for hours."""

    def __init__(self, limit: int | None = None) -> None:
        """Start no thread yet.

        Args:
            limit: How many calls may run at the same time; further calls wait. None: no limit.
        """
        self._room: AbstractContextManager[Any] = nullcontext() if limit is None else threading.BoundedSemaphore(limit)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread."""
        future: Future[Any] = Future()

        def run() -> None:
            with self._room:
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=run, name="weft-publish", daemon=True).start()
        return future

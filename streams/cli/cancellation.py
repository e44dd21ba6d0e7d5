"""Statements of Spark SQL that Ctrl-C cancels."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Final

from streams.cli.arguments import errors

_POLL_SECONDS: Final = 0.05
_CANCEL_SECONDS: Final = 10.0  # time for Spark to end its tasks


def run_until_ctrl_c(run: Callable[[str], None], text: str, cancel: Callable[[], None]) -> None:
    """Run a statement in a thread, and cancel it at Ctrl-C.

    PySpark handles Ctrl-C itself, with a request on the connection of the interrupted thread. In the middle of an
    answer that breaks the connection, so here the thread that is interrupted only waits.

    Raises:
        KeyboardInterrupt: The statement was cancelled.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run(text)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="statement", daemon=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
    except KeyboardInterrupt:
        cancel()
        thread.join(_CANCEL_SECONDS)
        if thread.is_alive():
            errors.print("the statement does not end yet: it goes on in the background", style="yellow")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if raised:
        raise raised[0]

"""Runs the rounds of many tables in a thread, until they are done or have to stop, and reports their status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from weft.streams.pipeline.run.many_tables import ManyTables
from weft.streams.pipeline.run.supervisor import JobStatus

STATUS_SECONDS: Final = 0.5
_IDLE_SECONDS: Final = 1.0  # a round begins at most this late
_BUSY_SECONDS: Final = 0.05  # pause between two checks of tables that are being opened


def serve_tables(
    tables: ManyTables, stop: threading.Event, on_status: Callable[[Sequence[JobStatus]], None] = lambda _: None
) -> None:
    """Run all tables in a thread until ``stop`` is set or all rounds are done. The current step is finished first.

    Args:
        tables: The tables.
        stop: Set to stop.
        on_status: Called about twice a second, and at the end, with the status of each table.
    """
    failures: list[BaseException] = []

    def run_steps() -> None:
        try:
            while not stop.is_set() and not tables.finished:
                if tables.step() is None:
                    stop.wait(max(_BUSY_SECONDS, min(tables.wait_seconds(), _IDLE_SECONDS)))
            tables.stop()
        except BaseException as error:  # raised in the other thread
            failures.append(error)

    # A daemon: a second Ctrl-C ends the process without waiting for the step.
    thread = threading.Thread(target=run_steps, name="weft-tables", daemon=True)
    thread.start()
    while thread.is_alive():
        on_status(tables.statuses)
        thread.join(STATUS_SECONDS)
    on_status(tables.statuses)
    if failures:
        raise failures[0]

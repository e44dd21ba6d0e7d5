"""Publishes the base files of a table after compactions, as the section ``publish`` of a pipeline says.

A round publishes to every target whose turn it is. A target that fails does not keep others waiting: it is tried again
after a growing pause, without a limit, and the report says why. What is known to be published is not asked for again
until `RECHECK_SECONDS` have passed; then a publication undoes what other engines have changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streams.pipeline.error_kinds import describe
from streams.pipeline.status import Report

if TYPE_CHECKING:
    from storage import Table
    from storage.publish.targets import Target
    from streams.pipeline.model import PublishSection

RECHECK_SECONDS: Final = 600.0
MAX_PAUSE_SECONDS: Final = 300.0  # an outage of a catalog that ends is noticed within this time


class DaemonThreads(Executor):
    """Runs each call in a thread that does not keep the process alive: a catalog may not answer for hours."""

    def __init__(self, limit: int) -> None:
        """At most ``limit`` calls run at the same time; the others wait."""
        self._room = threading.BoundedSemaphore(limit)

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


@dataclass(slots=True)
class _Published:
    """What is known of one target.

    Attributes:
        target: The target.
        version: The base files that it shows, see `storage.publish.targets.base_version`; None if that is not known.
        checked_at: Time of the last publication that succeeded, by the publisher's clock.
        failures: Failed publications in a row.
        next_at: Earliest time of the next try.
        error: The last failure; None after a success.
    """

    target: Target
    version: object = None
    checked_at: float = 0.0
    failures: int = 0
    next_at: float = 0.0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PublishRound:
    """The result of a round.

    Attributes:
        changed: Number of published tables that changed.
        message: What was published; empty if nothing changed.
        problem: Why targets are not up to date, and when they are tried again; empty if all are.
        errors: The errors of this round.
        complete: Whether all targets show the base files that the table had when the round began.
    """

    changed: int = 0
    message: str = ""
    problem: str = ""
    errors: Sequence[Exception] = ()
    complete: bool = True

    def report(self, last: Report) -> dict[str, Any]:
        """The changes to the report."""
        now_ms = time.time_ns() // 1_000_000
        return {
            "doing": "idle" if self.complete else "waiting",
            "message": self.problem or self.message or ("" if last.message == last.publish_problem else last.message),
            "publish_problem": self.problem,
            "publications": last.publications + self.changed,
            "published_at_ms": now_ms if self.complete else last.published_at_ms,
        }


@dataclass(slots=True)
class Publisher:
    """Publishes one table. Used by one thread at a time.

    Attributes:
        section: What to publish, and how often to look.
        clock: Returns monotonic seconds.
    """

    section: PublishSection
    clock: Callable[[], float] = time.monotonic
    _targets: list[_Published] = field(init=False)

    def __post_init__(self) -> None:
        self._targets = [_Published(target) for target in self.section.targets]

    def publish(self, table: Table) -> PublishRound:
        """Publish to every target whose turn it is. Errors of targets are part of the result.

        Raises:
            TableError: The table itself cannot be read.
        """
        from storage.publish.targets import base_version

        version = base_version(table)
        messages: list[str] = []
        errors: list[Exception] = []
        for known in self._targets:
            now = self.clock()
            if now < known.next_at or (known.version == version and now - known.checked_at < RECHECK_SECONDS):
                continue
            try:
                published = known.target.publish(table)
            except Exception as error:
                known.failures += 1
                pause = min(self.section.every * 2.0 ** min(known.failures, 20), MAX_PAUSE_SECONDS)
                known.error, known.version, known.next_at = error, None, self.clock() + pause
                errors.append(error)
                continue
            known.error, known.failures, known.next_at = None, 0, 0.0
            known.version, known.checked_at = version, now
            if published.changed:
                messages.append(
                    f"{known.target} published with {published.rows} rows: "
                    f"{published.added} files added, {published.removed} removed"
                )
        return PublishRound(
            changed=len(messages),
            message="; ".join(messages),
            problem="; ".join(self._problem(known) for known in self._targets if known.error is not None),
            errors=errors,
            complete=all(known.version == version for known in self._targets),
        )

    def _problem(self, known: _Published) -> str:
        assert known.error is not None, "the caller has checked this"
        seconds = max(0.0, known.next_at - self.clock())
        return f"{known.target} not published: {describe(known.error)}; next try in {seconds:.0f} s"

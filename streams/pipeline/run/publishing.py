"""Publishes the base files of a table after compactions, as the section ``publish`` of a pipeline says.

A round publishes to every target whose turn it is, each in a thread of its own. A target that fails, or does not
answer, does not keep others waiting: it is tried again after a growing pause, without a limit, and the report says why.
What is known to be published is not asked for again until `RECHECK_SECONDS` have passed; then a publication undoes what
other engines have changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from weft.storage.errors import StoreUnavailable
from weft.storage.plural import counted
from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.pipeline.run.status import Report

if TYPE_CHECKING:
    from weft.storage import Table
    from weft.storage.publish.publication import Published
    from weft.storage.publish.targets import Target
    from weft.streams.pipeline.file.model import PublishSection

RECHECK_SECONDS: Final = 600.0
MAX_PAUSE_SECONDS: Final = 300.0  # an outage of a catalog that ends is noticed within this time
ANSWER_SECONDS: Final = 30.0  # for which a round waits; then others go on, and the status says so
GIVE_UP_SECONDS: Final = 3600.0
"""After this time another try begins beside one that has no answer: a connection may be dead without saying so. The old
one does no harm if it goes on after all, because of two publications one fails."""


class NoAnswer(StoreUnavailable):
    """A publication has neither succeeded nor failed so far."""


class DaemonThreads(Executor):
    """Runs each call in a thread that does not keep the process alive: a catalog may not answer for hours."""

    def __init__(self, limit: int | None = None) -> None:
        """At most ``limit`` calls run at the same time, if there is a limit; the others wait."""
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


@dataclass(slots=True)
class _Published:
    """What is known of one target.

    Attributes:
        target: The target.
        version: The base files that it shows, see `weft.storage.publish.targets.base_version`; None if that is not
            known.
        checked_at: Time of the last publication that succeeded, by the publisher's clock.
        failures: Failed publications in a row.
        next_at: Earliest time of the next try.
        error: The last failure; None after a success.
        running: The publication in progress.
        showing: The base files that it shows.
        began_at: When it began.
    """

    target: Target
    version: object = None
    checked_at: float = 0.0
    failures: int = 0
    next_at: float = 0.0
    error: Exception | None = None
    running: Future[Published] | None = None
    showing: object = None
    began_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PublishRound:
    """The result of a round.

    Attributes:
        changed: Number of published tables that changed.
        message: What was published; empty if nothing changed.
        problem: Why targets are not up to date, and when they are tried again; empty if all are.
        errors: The errors of this round.
        complete: Whether all targets show the base files that the table had when the round began.
        every: Seconds from one round to the next.
    """

    changed: int = 0
    message: str = ""
    problem: str = ""
    errors: Sequence[Exception] = ()
    complete: bool = True
    every: float | None = None

    def report(self, last: Report) -> dict[str, Any]:
        """The changes to the report."""
        now_ms = time.time_ns() // 1_000_000
        return {
            "doing": "idle" if self.complete else "waiting",
            "message": self.problem or self.message or ("" if last.message == last.publish_problem else last.message),
            "publish_problem": self.problem,
            "publications": last.publications + self.changed,
            "published_at_ms": now_ms if self.complete else last.published_at_ms,
            "publish_seconds": self.every,
        }


@dataclass(slots=True)
class Publisher:
    """Publishes one table. Used by one thread at a time.

    Attributes:
        section: What to publish, and how often to look.
        clock: Returns monotonic seconds.
        answer_seconds: How long a round waits for its publications; None: until all have ended.
    """

    section: PublishSection
    clock: Callable[[], float] = time.monotonic
    answer_seconds: float | None = ANSWER_SECONDS
    _targets: list[_Published] = field(init=False)
    _threads: Executor = field(init=False)

    def __post_init__(self) -> None:
        self._targets = [_Published(target) for target in self.section.targets]
        self._threads = DaemonThreads()

    def publish(self, table: Table) -> PublishRound:
        """Publish to every target whose turn it is. Errors of targets are part of the result.

        Raises:
            TableError: The table itself cannot be read.
        """
        from weft.storage.publish.targets import base_version

        version = base_version(table)
        messages: list[str] = []
        errors: list[Exception] = []
        for known in self._targets:
            if self._is_due(known, version):
                known.running = self._threads.submit(known.target.publish, table)
                known.showing, known.began_at = version, self.clock()
        wait([known.running for known in self._targets if known.running is not None], self.answer_seconds)
        for known in self._targets:
            if known.running is None:
                continue
            if known.running.done():
                if (published := self._end(known, known.running, errors)) is not None and published.changed:
                    messages.append(
                        f"{known.target} published with {counted(published.rows, 'row')}: "
                        f"{counted(published.added, 'file')} added, {published.removed} removed"
                        + ("" if published.is_moment else ", maybe not of one moment")
                    )
            elif not isinstance(known.error, NoAnswer):
                known.error = NoAnswer(f"{known.target} is not published: there is no answer yet")
                errors.append(known.error)
        return PublishRound(
            changed=len(messages),
            message="; ".join(messages),
            problem="; ".join(self._problem(known) for known in self._targets if known.error is not None),
            errors=errors,
            complete=all(known.version == version for known in self._targets),
            every=self.section.every,
        )

    def _is_due(self, known: _Published, version: object) -> bool:
        now = self.clock()
        if known.running is not None:
            return not known.running.done() and now - known.began_at >= GIVE_UP_SECONDS
        return now >= known.next_at and (known.version != version or now - known.checked_at >= RECHECK_SECONDS)

    def _end(self, known: _Published, ended: Future[Published], errors: list[Exception]) -> Published | None:
        """Note the result of a publication; None if it has failed."""
        known.running = None
        error = ended.exception()
        if error is None:
            known.error, known.failures, known.next_at = None, 0, 0.0
            known.version, known.checked_at = known.showing, known.began_at
            return ended.result()
        if not isinstance(error, Exception):
            raise error
        known.failures += 1
        pause = min(self.section.every * 2.0 ** min(known.failures, 20), MAX_PAUSE_SECONDS)
        known.error, known.version, known.next_at = error, None, self.clock() + pause
        errors.append(error)
        return None

    def _problem(self, known: _Published) -> str:
        assert known.error is not None, "the caller has checked this"
        if known.running is not None:
            return f"{known.target} not published: no answer for {self.clock() - known.began_at:.0f} s"
        seconds = max(0.0, known.next_at - self.clock())
        return f"{known.target} not published: {describe(known.error)}; next try in {seconds:.0f} s"

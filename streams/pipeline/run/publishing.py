"""Publishes the base files of a table after compactions, as the section ``publish`` of a pipeline says.

A round publishes to every target that is due, each in a thread of its own. A target that fails, or does not answer,
does not keep others waiting: it is tried again after a growing pause, without a limit, and the report says why. A
target that is up to date is published again after `RECHECK_SECONDS`, which undoes changes by other engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from weft.storage.errors import StoreUnavailable
from weft.storage.plural import counted
from weft.streams.pipeline.run.daemon_threads import DaemonThreads
from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.pipeline.run.report import Report

if TYPE_CHECKING:
    from weft.storage import Table
    from weft.storage.publish.publication import Published
    from weft.storage.publish.targets import Target
    from weft.streams.pipeline.file.model import PublishSection

RECHECK_SECONDS: Final = 600.0
MAX_PAUSE_SECONDS: Final = 300.0  # an outage of a catalog that ends is noticed within this time
ANSWER_SECONDS: Final = 30.0  # a round does not wait longer; the status then says that there is no answer
GIVE_UP_SECONDS: Final = 3600.0
"""After this time a publication without an answer is started a second time, because its connection may be dead. If the
first one goes on after all, it does no harm: one of the two fails."""


class NoAnswer(StoreUnavailable):
    """A publication has neither succeeded nor failed yet."""


@dataclass(slots=True)
class _TargetState:
    """The state of one target.

    Attributes:
        target: The target.
        version: The published base files, see `weft.storage.publish.targets.base_version`; None if unknown.
        checked_at: Time of the last publication that succeeded, by the publisher's clock.
        failures: Failed publications in a row.
        next_at: Earliest time of the next try.
        error: The last failure; None after a success.
        running: The publication in progress.
        running_version: The base files that it publishes.
        began_at: When it began, by the publisher's clock.
    """

    target: Target
    version: object = None
    checked_at: float = 0.0
    failures: int = 0
    next_at: float = 0.0
    error: Exception | None = None
    running: Future[Published] | None = None
    running_version: object = None
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
    _targets: list[_TargetState] = field(init=False)
    _threads: Executor = field(init=False)

    def __post_init__(self) -> None:
        self._targets = [_TargetState(target) for target in self.section.targets]
        self._threads = DaemonThreads()

    def publish(self, table: Table) -> PublishRound:
        """Publish to every target that is due. Errors of targets are part of the result.

        Raises:
            TableError: The table itself cannot be read.
        """
        from weft.storage.publish.targets import base_version

        version = base_version(table)
        messages: list[str] = []
        errors: list[Exception] = []
        for state in self._targets:
            if self._is_due(state, version):
                state.running = self._threads.submit(state.target.publish, table)
                state.running_version, state.began_at = version, self.clock()
        wait([state.running for state in self._targets if state.running is not None], self.answer_seconds)
        for state in self._targets:
            if state.running is None:
                continue
            if state.running.done():
                if (published := self._finish(state, state.running, errors)) is not None and published.changed:
                    messages.append(
                        f"{state.target} published with {counted(published.rows, 'row')}: "
                        f"{counted(published.added, 'file')} added, {published.removed} removed"
                        + ("" if published.is_moment else ", maybe not of one moment")
                    )
            elif not isinstance(state.error, NoAnswer):
                state.error = NoAnswer(f"{state.target} is not published: there is no answer yet")
                errors.append(state.error)
        return PublishRound(
            changed=len(messages),
            message="; ".join(messages),
            problem="; ".join(self._problem(state) for state in self._targets if state.error is not None),
            errors=errors,
            complete=all(state.version == version for state in self._targets),
            every=self.section.every,
        )

    def _is_due(self, state: _TargetState, version: object) -> bool:
        now = self.clock()
        if state.running is not None:
            return not state.running.done() and now - state.began_at >= GIVE_UP_SECONDS
        return now >= state.next_at and (state.version != version or now - state.checked_at >= RECHECK_SECONDS)

    def _finish(self, state: _TargetState, ended: Future[Published], errors: list[Exception]) -> Published | None:
        """Record the result of a publication, and return it; None if it failed."""
        state.running = None
        error = ended.exception()
        if error is None:
            state.error, state.failures, state.next_at = None, 0, 0.0
            state.version, state.checked_at = state.running_version, state.began_at
            return ended.result()
        if not isinstance(error, Exception):
            raise error
        state.failures += 1
        pause = min(self.section.every * 2.0 ** min(state.failures, 20), MAX_PAUSE_SECONDS)
        state.error, state.version, state.next_at = error, None, self.clock() + pause
        errors.append(error)
        return None

    def _problem(self, state: _TargetState) -> str:
        assert state.error is not None, "the caller has checked this"
        if state.running is not None:
            return f"{state.target} not published: no answer for {self.clock() - state.began_at:.0f} s"
        seconds = max(0.0, state.next_at - self.clock())
        return f"{state.target} not published: {describe(state.error)}; next try in {seconds:.0f} s"

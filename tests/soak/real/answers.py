"""Answers of SQL queries while the table is written: each must be that of some moment between question and answer.

Every event of ``clicks`` counts once in ``sum(visits)``, so an answer has the number of events that were committed at
its snapshot: at least those before the question, at most those before the answer was read, without erased ones. The
streams without deletes never have fewer keys than before, except by an erase.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

PAUSE_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 400.0  # the first one starts Spark, on a busy machine
COUNTED: Final = ("payments", "profiles")
RISING: Final = (*COUNTED, "click_seq", "pay_seq")


class Asked(Protocol):
    """The session of queries, see `tests.soak.real.processes.Queries`."""

    answers: queue.SimpleQueue[dict[str, Any]]

    def say(self, line: str) -> None: ...


@dataclass
class Answers:
    """All answers so far.

    Attributes:
        expired: Queries of a snapshot that cleaning or an erase has ended meanwhile, which is an error for a reader.
        erased_before: Events of ``clicks`` that erases have removed which have ended.
        erased_at_most: The same with erases that still run.
    """

    count: int = 0
    expired: int = 0
    wrong: list[str] = field(default_factory=list)
    erased_before: int = 0
    erased_at_most: int = 0
    _last: dict[str, int] = field(default_factory=dict)
    _low: tuple[int, int] | None = None
    _asked_at: float = field(default_factory=time.monotonic)
    _next: float = 0.0
    _ready: bool = False
    _fewer: int = 0  # keys that an answer may lack, because an erase runs or ended after the question
    _runs: bool = False  # an erase
    _is_after: bool = False  # the question was asked after the last erase ended

    def step(self, session: Asked, committed: Callable[[], int]) -> None:
        """Check an answer that has come, and ask again.

        Args:
            session: Answers the query.
            committed: Returns the number of events of ``clicks`` that are committed now.
        """
        now = time.monotonic()
        try:
            answer = session.answers.get_nowait()
        except queue.Empty:
            answer = None
        if answer is not None and not self._ready:
            self._ready = True
        elif answer is not None:
            self.check(answer, committed())
            self._low, self._next = None, now + PAUSE_SECONDS
        if self._ready and self._low is None and now >= self._next:
            self._low, self._asked_at = (committed(), self.erased_before), now
            self._is_after = not self._runs
            session.say("ask")
        if (self._low is not None or not self._ready) and now > self._asked_at + ANSWER_SECONDS:
            raise RuntimeError(f"no answer of a query for {ANSWER_SECONDS:.0f} s; see queries.log")

    def check(self, answer: Mapping[str, Any], committed: int) -> None:
        """Check one answer."""
        assert self._low is not None
        self.count += 1
        if "failed" in answer:
            if "expired" in answer["failed"]:
                self.expired += 1
            else:
                self.wrong.append(f"a query has failed: {answer['failed'][:600]}")
            return
        low, high = self._low[0] - self.erased_at_most, committed - self._low[1]
        if not low <= answer["visits"] <= high:
            self.wrong.append(f"a query has counted {answer['visits']} clicks, not {low} to {high}")
        for name in RISING:
            if answer[name] < self._last.get(name, 0) - (self._fewer if name in COUNTED else 0):
                self.wrong.append(f"{name} has fallen from {self._last[name]} to {answer[name]} in a query")
        self._last = dict(answer)
        if self._is_after:
            self._fewer = 0

    def begin_erase(self, keys: int, events: int) -> None:
        """An erase begins that removes some keys and events of ``clicks``; the newest events may be among them."""
        self.erased_at_most += events
        self._fewer, self._runs, self._is_after = self._fewer + keys, True, False

    def end_erase(self) -> None:
        self.erased_before = self.erased_at_most
        self._runs = False

    def settled(self, committed: int) -> bool:
        """Whether the last answer had everything."""
        return self._last.get("visits") == committed - self.erased_before

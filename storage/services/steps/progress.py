"""How far long work is, as plain facts for a function of the caller. Who shows them, and where, is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from weft.storage.services.steps.tasks import Execute, Task

T = TypeVar("T")

EVERY: Final = 64
"""Items between two reports of `counted`: a report must not cost more than the work that it is about."""


@dataclass(frozen=True, slots=True)
class Stage:
    """How far one stage of some work is.

    Attributes:
        what: What is done, such as ``rewriting``. A new text begins a new stage.
        done: What is done so far.
        total: All that is to be done; None if it is not known. It may grow where more is found on the way.
        unit: What is counted.
    """

    what: str
    done: int
    total: int | None
    unit: Literal["bytes", "files", "messages", "objects", "rows", "tasks"]


OnStage = Callable[[Stage], None]
"""Called during the work in the thread that does it. It must return at once, and must not raise."""


def unobserved(_: Stage, /) -> None:
    """Nobody looks."""


def counted(items: Iterable[T], report: OnStage, activity: str, total: Callable[[], int | None]) -> Iterator[T]:
    """The same items. Reports their number after every `EVERY`-th, and at the end.

    Args:
        items: The objects that the stage works on.
        report: Gets the stages.
        activity: What is done.
        total: Called with each report: the number of all items, as far as it is known.
    """
    count = 0
    for item in items:
        yield item
        count += 1
        if count % EVERY == 0:
            report(Stage(activity, count, total(), "objects"))
    if count:
        report(Stage(activity, count, count, "objects"))


def run_reported(tasks: Sequence[Task[T]], execute: Execute, report: OnStage, activity: str) -> Iterator[T]:
    """The results of tasks, in order. Reports the stored bytes that they have read."""
    total, bytes_read = sum(task.bytes for task in tasks), 0
    report(Stage(activity, 0, total, "bytes"))
    for task, result in zip(tasks, execute(tasks), strict=True):
        bytes_read += task.bytes
        report(Stage(activity, bytes_read, total, "bytes"))
        yield result

"""Progress of long work, reported to a function of the caller, which decides how to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from weft.storage.services.steps.tasks import Execute, Task

T = TypeVar("T")

EVERY: Final = 64
"""Items between two reports of `counted`, so that reporting costs less than the work."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Progress of one stage of some work.

    Attributes:
        what: What is done, such as ``rewriting``. A new text begins a new stage.
        done: Amount of work that is done, in units.
        total: Amount of all work, in units; None if it is not known. It may grow during the work.
        unit: Unit of ``done`` and ``total``.
    """

    what: str
    done: int
    total: int | None
    unit: Literal["bytes", "files", "messages", "objects", "rows", "tasks"]


OnStage = Callable[[Stage], None]
"""Called during the work in the thread that does it. It must return at once, and must not raise."""


def unobserved(_: Stage, /) -> None:
    """Ignore a stage."""


def counted(items: Iterable[T], report: OnStage, activity: str, total: Callable[[], int | None]) -> Iterator[T]:
    """Yield the items unchanged. Report how many after every `EVERY` items, and at the end.

    Args:
        items: The objects that the stage works on.
        report: Called with the stages.
        activity: What is done, such as ``cleaning``.
        total: Called for each report; returns the number of all items, or None if it is not known.
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
    """Run tasks and yield their results in order. Report the stored bytes that they have read."""
    total, bytes_read = sum(task.bytes for task in tasks), 0
    report(Stage(activity, 0, total, "bytes"))
    for task, result in zip(tasks, execute(tasks), strict=True):
        bytes_read += task.bytes
        report(Stage(activity, bytes_read, total, "bytes"))
        yield result

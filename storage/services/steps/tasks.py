"""Tasks: the work of a service, divided into parts that may run in other processes.

A service makes tasks, which can be pickled, and passes them to a function that runs them (`Execute`), here or in other
processes. Only the service publishes their results, so a task may be killed, or run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

WORKING_BYTES: Final = 48 * 1024 * 1024
"""Memory that every task needs: fetched blocks, buffers of files, Python objects."""

COPIES: Final = 3
"""Merged rows are in memory three times: as read, as merged, and as they are written."""


class Task(Protocol[T_co]):
    """One part of the work of a service."""

    @property
    def bytes(self) -> int:
        """Stored bytes that the task reads."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the task needs, in bytes."""
        ...

    def run(self) -> T_co:
        """Do the work and return the result. Raises errors of weft."""
        ...


class Execute(Protocol):
    """Runs tasks, and yields their results in the same order.

    It may take each task when it can start it, or all tasks first. A compaction chooses each task when it is taken.
    """

    def __call__(self, tasks: Iterable[Task[T]], /) -> Iterable[T]: ...


def one_by_one(tasks: Iterable[Task[T]], /) -> Iterator[T]:
    """Run tasks in this process, one after the other. Only one task needs memory at a time."""
    for task in tasks:
        yield task.run()


@dataclass(frozen=True, slots=True, eq=False)
class Shared(Generic[T]):
    """A value that many tasks have in common. An `Execute` may send it to each process once, not with each task."""

    value: T

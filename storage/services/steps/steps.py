"""Work in steps: a generator that yields the stored bytes that each step read, and returns the result.

The caller may do other work between two steps. `finish` runs all steps. `cancel` closes the generator early, and the
plan of the work is aborted in the table; what was published remains.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from weft.storage.errors import Conflict, TableError

T = TypeVar("T")
Steps = Generator[int, None, T]


def finish(steps: Steps[T], on_step: Callable[[int], object] = lambda _: None) -> T:
    """Run all steps, and return the result.

    Args:
        steps: The work.
        on_step: Called after each step with the stored bytes that it read.
    """
    while True:
        try:
            on_step(next(steps))
        except StopIteration as done:
            result: T = done.value
            return result


def cancel(steps: Steps[T]) -> None:
    """Cancel work between two steps: publish an ABORT, and delete the files that were not published (PROTOCOL.md, K4).

    If the store does not answer, a later clean aborts the plan, like that of a dead process.
    """
    cancellation = Conflict("the work was cancelled", hint="start it again")
    try:
        steps.throw(cancellation)
    except StopIteration:
        return
    except TableError as error:
        if error is not cancellation:
            raise
    finally:
        steps.close()

"""A mutant: an implementation that breaks one rule of the protocol, which the simulation must notice.

A rule is broken where its implementation meets the rest: a store that overwrites, a log that acknowledges what it lost,
a service that does not check. A mutant is a function that makes the broken implementation from the right one, and the
place of the right one: a class or module, and a name. So it says what is wrong in code that is checked like any other,
and an implementation that was renamed is an error here, not a mutant that does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from tests.simulation.run import run_seed

MAX_SCHEDULES: Final = 1_500
"""The rarest are met by one schedule in some hundred. Any change of the code's store calls makes other schedules."""
MISTAKES: Final = ("AttributeError", "ImportError", "NameError", "TypeError", "UnboundLocalError")
"""How a mutant fails that is wrong itself: then nothing was noticed."""


@dataclass(frozen=True)
class Mutant:
    """``make`` makes the broken implementation from the right one, which is ``name`` of ``where``.

    ``theme``: of the schedules that look for it, where not any will do. ``rare``: it takes fifty or more of them, so
    only the nightly loop looks for it.
    """

    where: Any
    name: str
    make: Callable[[Any], Any]
    theme: str | None = None
    rare: bool = False

    def is_found(self, seed: int) -> bool:
        """Whether a schedule notices. Requires that the mutant is in place."""
        failure = run_seed(seed, self.theme).failure
        if failure is None:
            return False
        assert not failure.rstrip().rpartition("\n")[2].startswith(MISTAKES), failure
        return True


@contextlib.contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a broken implementation in place of the right one."""
    broken = mutant.make(getattr(mutant.where, mutant.name))
    with mock.patch.object(mutant.where, mutant.name, broken):
        yield


def always(answer: object) -> Callable[[Any], Any]:
    """Does nothing, and always gives the same answer."""
    return lambda _: mock.Mock(return_value=answer)

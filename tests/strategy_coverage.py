"""Which cases a Hypothesis strategy never draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_Example = TypeVar("_Example")

_ROUNDS: Final = 30
_EXAMPLES_PER_ROUND: Final = 100  # all but the rarest cases are in the first


def undrawn_cases(
    strategy: st.SearchStrategy[_Example], cases_of: Callable[[_Example], set[str]], expected: set[str]
) -> set[str]:
    """Draw examples until their cases are all the expected ones, at most 3,000; returns those that were never drawn.

    What Hypothesis draws also depends on the modules that the process has imported, so no fixed number of examples
    covers everything in each order of tests. Each round has a seed of its own: where the environment says that it is
    CI, Hypothesis draws the same examples in each run otherwise.
    """
    undrawn = set(expected)
    for number in range(_ROUNDS):

        @seed(number)
        @settings(
            max_examples=_EXAMPLES_PER_ROUND,
            derandomize=False,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def draw(example: _Example) -> None:
            undrawn.difference_update(cases_of(example))

        draw()
        if not undrawn:
            break
    return undrawn

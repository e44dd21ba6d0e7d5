"""The order of events: random, and determined by a seed. Pure functions.

The first round has every event. Later rounds leave out what restarts ``weft run``, so that it and some of its parts
live long enough for their memory to be judged. The long outage is in the second round.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

LONG_MINUTES: Final = 15.0
"""A soak of this duration has the events that need minutes by themselves."""
LONG: Final = ("outage",)
TWICE: Final = ("kill_compaction",)
THRICE: Final = ("kill_writer",)
ONLY_FIRST: Final = ("kill_weft_run", "add_column", "kill_again")


def first_round(names: Sequence[str], seed: int) -> tuple[str, ...]:
    """Every event but the long ones, in random order; some are in it more than once."""
    found = [name for name in [*names, *THRICE, *THRICE, *TWICE] if name not in LONG]
    random.Random(f"{seed} first round").shuffle(found)
    return tuple(found)


def later_rounds(names: Sequence[str], seed: int, *, with_long: bool) -> Iterator[tuple[str, ...]]:
    """The rounds after it, endlessly; each has its own order, and the first of them the long events."""
    for number in itertools.count(2):
        added = LONG if with_long and number == 2 else ()
        found = [*added, *(name for name in names if name not in {*LONG, *ONLY_FIRST})]
        random.Random(f"{seed} round {number}").shuffle(found)
        yield tuple(found)

"""Bounds at which tests divide file groups."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from weft.storage.core import keys
from weft.storage.core.keys import KeyVector
from weft.storage.core.plan.key_ranges import Extents

Bounds = Callable[..., KeyVector | None]
"""Takes the place of `weft.storage.core.plan.key_ranges.choose_bounds`."""


def any_bounds(seed: int) -> Bounds:
    """Bounds at any stored keys, instead of those that distribute the bytes evenly."""
    source = random.Random(seed)

    def choose(
        base: Extents | None, logs: Extents | None, _ranges: int, others: Sequence[Extents] = (), **_limits: float
    ) -> KeyVector | None:
        parts = [part for part in (base, logs, *others) if part is not None]
        known = [vector for part in parts for vector in (part.least, part.largest)]
        found = keys.union(known) if known else np.empty(0, np.int64)
        chosen = [position for position in range(len(found)) if source.random() < 0.5]
        return keys.take(found, np.array(chosen, np.int64)) if chosen else None

    return choose

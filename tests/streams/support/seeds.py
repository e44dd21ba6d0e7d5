"""Which loop runs a random test with which seed: each runs new ones."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(extended: int, last: int) -> list[Any]:
    """Values of a parameter: 1 in the full loop, up to ``extended`` in the extended one, others in the nightly one."""
    return [
        1,
        *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2, extended + 1)),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(extended + 1, last + 1)),
    ]

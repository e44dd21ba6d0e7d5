"""Hypothesis profiles.

quick   the default: seconds a test, a failure is printed as it was found
shrink  the same, but a failure is reduced first, which may take minutes
hunt    many examples a test and an end at the first failure: what a mutant is looked for with
deep    thousands of examples a test: ``pytest tests/storage/test_laws.py --hypothesis-profile=deep --timeout=0``
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# An example is the history of a whole table: large, and as slow as the machine is busy.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
}
_WITHOUT_SHRINKING = [phase for phase in Phase if phase is not Phase.shrink]

settings.register_profile("quick", max_examples=30, phases=_WITHOUT_SHRINKING, **_COMMON)
settings.register_profile("shrink", max_examples=200, **_COMMON)
settings.register_profile("hunt", max_examples=1_000, phases=_WITHOUT_SHRINKING, report_multiple_bugs=False, **_COMMON)
settings.register_profile("deep", max_examples=3_000, **_COMMON)
settings.load_profile("quick")

_LONGEST = ["test_simulation.py", "test_mutants.py", "models", "test_soak.py", "test_demo.py"]
"""Files and folders that take longest: begun first, so that no process waits for them in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest; the order is the same in every process."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    parts = item.path.relative_to(Path(__file__).parent).parts
    return next((place for place, name in enumerate(_LONGEST) if name in parts), len(_LONGEST))

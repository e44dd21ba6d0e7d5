"""Hypothesis profiles.

quick   the default: seconds a test, a failure is printed as it was found
shrink  the same, but a failure is reduced first, which may take minutes
deep    thousands of examples a test: ``pytest tests/storage/test_laws.py --hypothesis-profile=deep --timeout=0``
"""

from __future__ import annotations

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
settings.register_profile("deep", max_examples=3_000, **_COMMON)
settings.load_profile("quick")

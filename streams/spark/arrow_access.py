"""Which checks Arrow makes in the JVM at each value that is read; weft turns them off.

Rows from Python workers are Arrow batches, which Spark reads value by value. Each time Arrow checks the bounds of its
memory, and that the value is not null, which takes up to a fifth of the time of handing rows over
(`tests/benchmarks/aggregates.py`, ``--only handover``). Neither finds anything there: Spark reads the rows that a batch
has, and asks whether a value is null before it reads it, unless the schema says that there are no nulls. A worker of a
view checks its batches for that (`streams.read.relation.worker`). The settings are those of the whole JVM: if another
Python function returns a null in a column that is not nullable, Spark reads any value where it failed before. Iceberg
turns both checks off for its own readers as well.

Arrow reads the settings once, when the JVM loads its first classes, so they must be set before the first batch. What
the user has chosen, by a property or by the environment of the JVM, is kept.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

__all__ = ["UNCHECKED", "turn_off_checks"]


class _Setting(NamedTuple):
    """A setting of Arrow: the system property, the environment variable for the same, and the value without checks."""

    property_name: str
    variable: str
    value: str


UNCHECKED: Final = (
    _Setting("arrow.enable_unsafe_memory_access", "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS", "true"),
    _Setting("arrow.enable_null_check_for_get", "ARROW_ENABLE_NULL_CHECK_FOR_GET", "false"),
)
"""Executors get the variables, because this process does not reach their JVMs."""


def turn_off_checks(jvm: Any) -> None:
    """Turn the checks off in the JVM of the driver, in which tasks run too if the master is local."""
    system = jvm.java.lang.System
    for setting in UNCHECKED:
        if system.getProperty(setting.property_name) is None and system.getenv(setting.variable) is None:
            system.setProperty(setting.property_name, setting.value)

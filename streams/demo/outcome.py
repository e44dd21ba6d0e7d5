"""The errors and messages of a demo that ends early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMPARISON = "the comparison with the join in Spark"


class DemoFailed(Exception):
    """The demo failed; the message says why, with the last lines of a log."""


class Unfinished(Exception):
    """The demo ended early; the message says what is missing."""


def unfinished(why: str, missing: Sequence[str]) -> str:
    """Make the message of a run that ended early, with the steps that are missing besides the comparison."""
    return f"unfinished, {why}; missing: {'; '.join((*missing, COMPARISON))}"


def missing_messages(expected: Mapping[str, int], committed: Mapping[str, int]) -> list[str]:
    """Describe how many of the ``expected`` messages of each topic the table lacks."""
    return [
        f"{count - committed[name]:,} of {count:,} messages of {name}"
        for name, count in expected.items()
        if committed[name] < count
    ]

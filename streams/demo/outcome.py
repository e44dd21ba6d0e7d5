"""How a run of the demo ends early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMPARISON = "the comparison with the join in Spark"


class DemoFailed(Exception):
    """The demo failed; the message says why, with the last lines of a log."""


class Unfinished(Exception):
    """The demo ended early; the message says what is missing."""


def unfinished(why: str, missing: Sequence[str]) -> str:
    """Says that a run ended early, and what it had not done yet, besides the comparison."""
    return f"unfinished, {why}; missing: {'; '.join((*missing, COMPARISON))}"


def missing_messages(wanted: Mapping[str, int], committed: Mapping[str, int]) -> list[str]:
    """Which of the ``wanted`` messages of each topic the table lacks, in words."""
    return [
        f"{count - committed[name]:,} of {count:,} messages of {name}"
        for name, count in wanted.items()
        if committed[name] < count
    ]

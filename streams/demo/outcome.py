"""How a run of the demo ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COMPARISON = "the comparison with the join in Spark"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict.

    Attributes:
        equal: Whether the table equals Spark's join.
        text: The same in words.
        figures: Times of both, by name.
    """

    equal: bool
    text: str
    figures: Mapping[str, str] = field(default_factory=dict)


class DemoFailed(Exception):
    """The demo failed; the message says why, with the last lines of a log."""


class Unfinished(Exception):
    """The demo ended early; the message is the verdict, which says what is missing."""


def unfinished(why: str, missing: Sequence[str]) -> str:
    """The verdict of a run that ended early.

    Args:
        why: Why it ended.
        missing: What it had not done yet, besides the comparison.
    """
    return f"unfinished, {why}; missing: {'; '.join((*missing, COMPARISON))}"


def missing_messages(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """What tables lack, in words.

    Args:
        wanted: Messages of each topic.
        found: Those that its table has.
    """
    return [
        f"{wanted[name] - found[name]:,} of {wanted[name]:,} messages of {name}"
        for name in wanted
        if found[name] < wanted[name]
    ]

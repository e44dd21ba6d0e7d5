"""Suggests a topic for the name of one that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def ask_for_closest(topic: str, topics: Sequence[str]) -> str:
    """Return the beginning of a hint, such as ``did you mean orders? ``; empty if no topic has a similar name.

    Args:
        topic: The missing topic.
        topics: The topics that exist.
    """
    return "".join(f"did you mean {match}? " for match in get_close_matches(topic, topics, 1))

"""Shortens a text to an upper bound for the statistics of a file: a short text that is not smaller."""

from __future__ import annotations

from typing import Final

_SURROGATES: Final = range(0xD800, 0xE000)
_LARGEST_CHARACTER: Final = 0x10FFFF


def cut_up(text: str, length: int) -> str | None:
    """A text of at most ``length`` characters that is not smaller, in the order of UTF-8; None if there is none.

    Replaces the last character that has a successor by its successor. Surrogates are skipped: they have no UTF-8 form.
    """
    if len(text) <= length:
        return text
    for position in reversed(range(length)):
        following = ord(text[position]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LARGEST_CHARACTER:
            return text[:position] + chr(following)
    return None

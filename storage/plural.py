"""Numbers with a noun in the texts of results, errors and displays."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number and a noun, which is in the plural unless the number is one."""
    return f"{number:,} {what}{'s' * (number != 1)}"

"""Numbers with a noun in the texts of results, errors and displays."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number and a noun, which is in the plural unless the number is one: ``3 rows``, ``2 entries``."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") else f"{number:,} {what}s"

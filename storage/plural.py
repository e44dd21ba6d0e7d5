"""Numbers with a noun in the texts of results, errors and displays."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number and a noun, which is in the plural unless the number is one: ``3 rows``, ``2 entries``, ``2 keys``."""
    if number == 1:
        return f"1 {what}"
    plural = f"{what[:-1]}ies" if what.endswith("y") and what[-2] not in "aeiou" else f"{what}s"
    return f"{number:,} {plural}"

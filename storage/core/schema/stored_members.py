"""Describes the first member of a stored JSON object that this version cannot read."""

from __future__ import annotations

from pydantic import ValidationError


def first_problem(error: ValidationError, skipped: int = 0) -> str:
    """A phrase about the first member that is unknown, missing or not readable.

    Args:
        error: The error of decoding the object.
        skipped: Number of first parts of the member's path that are not names of members.
    """
    first = error.errors()[0]
    member = ".".join(str(part) for part in first["loc"][skipped:])
    match first["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"has member {member!r}, which this version of weft does not know"
        case "missing":
            return f"has no member {member!r}, which this version of weft needs"
    return f"has a value in member {member!r} that this version of weft cannot read: {first['msg']}"

"""Texts that somebody may take for others: by trimming, case, Unicode, escapes, or the type that they look like."""

from __future__ import annotations

from typing import Final

AWKWARD: Final = (
    "a", " a", "a ", "\ta", "a\n", "a\r\n", "A", "", " ", "é", "e\u0301", "\0", "a\0", "\x7f", "\u200b", "a\u200b",
    "\ufeffa", "\U0001f600", "\ud7ff", "\uffff", "K", "\u212a", "ß", "ss", "İ", "i\u0307", "x" * 3_000,
    "x" * 3_000 + "y", "7", " 7", "07", "7.0", "+7", "1e3", "null", "NULL", "true", "[1]", "NaN", "-0", "a,b", "a=b",
    "id=a", "=1", "'", ' "a"', "`", "%20", "a/b", "..", "~", "__empty__", "__HIVE_DEFAULT_PARTITION__",
)  # fmt: skip
"""Each is UTF-8, and begins with neither ``{`` nor ``"``, which begin the key of a message in JSON."""

"""Kinds of errors: outages, errors for which a retry does not help, and the exit code of a job for each kind.

Imports nothing heavy, so that a job can report before it imports Spark.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

_OUTAGES: Final = frozenset({"SOURCE_UNAVAILABLE", "STORE_UNAVAILABLE", "REGISTRY_UNAVAILABLE", "COMMIT_UNKNOWN"})
"""Codes of errors that mean that a broker, a store or a schema registry does not answer. Such errors end without the
user's help."""
_LASTING: Final = frozenset(
    {
        "INVALID_INPUT",
        "WRONG_FILE",
        "UNSUPPORTED_FORMAT",
        "SPLIT_BRAIN",
        "GAP",
        "CONFLICT",
        "DATA_LOSS",
        "TOO_MANY_DEAD_LETTERS",
    }
)
"""Codes of errors (`weft.storage.errors`, `weft.streams.kafka.errors`, `weft.streams.letters.limit`,
`weft.streams.pipeline.file.file_problems`) for which a retry does not help."""
_INNER: Final = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
"""The last line of a Python traceback within the text of a Spark error."""


class Ending(IntEnum):
    """Exit codes of jobs. 2 is not used: Python and argparse use it for a wrong command line."""

    DONE = 0
    FAILED = 1  # a retry may help: restarted, a bounded number of times in a row
    REFUSED = 3  # a retry does not help: not restarted
    FENCED = 4  # another process took over the lane: not restarted
    UNAVAILABLE = 5  # a broker or a store does not answer: restarted until it does


def is_outage(error: BaseException) -> bool:
    """Whether an error means that a broker or a store does not answer."""
    return getattr(error, "code", None) in _OUTAGES


def ending_of(error: BaseException) -> Ending:
    """The exit code for an error."""
    if is_outage(error):
        return Ending.UNAVAILABLE
    code = getattr(error, "code", None)
    if code == "FENCED":
        return Ending.FENCED
    return Ending.REFUSED if code in _LASTING else Ending.FAILED


def describe(error: BaseException) -> str:
    """An error in one line, hint included."""
    from weft.storage.errors import TableError

    if isinstance(error, TableError):
        text = f"{error.message} ({error.hint})" if error.hint else error.message
    elif inner := _INNER.findall(str(error)):
        text = inner[-1]
    else:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return " ".join(text.split())

"""Errors of weft on their way from Spark's Python workers, and from ``foreachBatch``, to whoever started the query.

Spark passes on the text of a traceback and nothing else. So an error of weft carries itself as JSON in a note, which is
a line of its own at the end of that text, and the receiver reads that line. All other lines are for people.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

from storage.errors import TableError, error_from_dict

_MARK: Final = "weft-error: "

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def noted_errors() -> Iterator[None]:
    """Give errors of weft that leave the block the note that `error_in` reads."""
    try:
        yield
    except TableError as error:
        if not any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
            error.add_note(_MARK + json.dumps(error.to_dict(), default=str))
        raise


def note_errors(function: Function) -> Function:
    """The same function with `noted_errors` around it, also while its result is iterated, if that is a generator."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with noted_errors():
            result = function(*arguments, **options)
        return _noted(result) if inspect.isgenerator(result) else result

    return cast("Function", call)


def _noted(items: Iterator[Any]) -> Iterator[Any]:
    with noted_errors():
        yield from items


def error_in(text: str) -> TableError | None:
    """The error of weft in the text of an error of Spark: the one that was raised last; None if there is none.

    Errors of other packages, such as `streams.kafka.errors`, are found if their module is imported.
    """
    for line in reversed(text.splitlines()):
        _, found, data = line.partition(_MARK)
        if found:
            try:
                return error_from_dict(json.JSONDecoder().raw_decode(data)[0])
            except (ValueError, KeyError, TypeError):
                continue
    return None

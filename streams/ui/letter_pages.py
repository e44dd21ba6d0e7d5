"""The pages about dead letters."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.storage.errors import InvalidInput
from weft.streams.letters.letter_folder import State
from weft.streams.pipeline.file.letter_places import choose_places
from weft.streams.ui.letter_book import LetterBook, hex_lines, text_of
from weft.streams.ui.site import render, site_of

_SHOWN: Final = 100


def letters(request: Request) -> Response:
    """Show counts by reason, and the letters of a chosen writer and reason."""
    book = site_of(request).letters
    if book is None:
        return render(request, "letters.html", view="letters", book=None)
    writer, reason = (request.query_params.get(name) or None for name in ("writer", "reason"))
    return render(
        request,
        "letters.html",
        view="letters",
        book=book,
        counts=book.counts(),
        listed=book.find(writer, reason, _SHOWN),
        writer=writer,
        reason=reason,
        limit=_SHOWN,
        state=State,
    )


def letter(request: Request) -> Response:
    """Show a letter with its bytes."""
    book = _book(request)
    place, state, dead_letter = book.get(request.query_params.get("name", ""))
    contents = {"key": dead_letter.data("key"), "value": dead_letter.data("value")}
    parts = [(name, data, text_of(data), hex_lines(data)) for name, data in contents.items() if data is not None]
    return render(request, "letter.html", place=place, state=state, letter=dead_letter, parts=parts)


def replay(request: Request) -> Response:
    """Start a replay; only with --write."""
    if not site_of(request).write:
        raise InvalidInput("this page is read-only", hint="restart it with --write, or run weft dead-letters replay")
    book = _book(request)
    only = request.query_params.get("writer") or None
    choose_places(book.places, only)
    book.replay(only)
    return RedirectResponse(f"{site_of(request).root}/letters", HTTPStatus.SEE_OTHER)


def _book(request: Request) -> LetterBook:
    book = site_of(request).letters
    if book is None:
        raise InvalidInput("dead letters belong to a pipeline", hint="start weft ui with a pipeline file")
    return book


ROUTES: Final[list[Any]] = [
    Route("/letters", letters),
    Route("/letters/letter", letter),
    Route("/letters/replay", replay, methods=["POST"]),
]

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
    """Counts by reason, and the letters of one of them."""
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
        found=book.find(writer, reason, _SHOWN),
        writer=writer,
        reason=reason,
        shown=_SHOWN,
        state=State,
    )


def letter(request: Request) -> Response:
    """One letter with its bytes."""
    book = _book(request)
    place, state, found = book.get(request.query_params.get("name", ""))
    held = {"key": found.data("key"), "value": found.data("value")}
    parts = [(name, data, text_of(data), hex_lines(data)) for name, data in held.items() if data is not None]
    return render(request, "letter.html", place=place, state=state, letter=found, parts=parts)


def replay(request: Request) -> Response:
    """Start a replay; only with --write."""
    if not site_of(request).write:
        raise InvalidInput("this page is read-only", hint="start it with weft ui --write, or: weft dead-letters replay")
    book = _book(request)
    only = request.query_params.get("writer") or None
    choose_places(book.places, only)
    book.replay(only)
    return RedirectResponse(f"{site_of(request).root}/letters", HTTPStatus.SEE_OTHER)


def _book(request: Request) -> LetterBook:
    book = site_of(request).letters
    if book is None:
        raise InvalidInput("dead letters belong to a pipeline", hint="weft ui PIPELINE")
    return book


ROUTES: Final[list[Any]] = [
    Route("/letters", letters),
    Route("/letters/letter", letter),
    Route("/letters/replay", replay, methods=["POST"]),
]

"""The page over a real table, asked by Starlette's test client as a browser would ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from weft import DuePolicy
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.ui.application import build_application
from weft.streams.ui.guard import Access
from weft.streams.ui.letter_book import LetterBook
from weft.streams.ui.site import Site
from weft.streams.ui.watched_table import WatchedTable

HOST = "127.0.0.1:8088"
ORIGIN = f"http://{HOST}"
ACCESS = Access(frozenset({"127.0.0.1", "localhost"}))


def make_site(uri: str, *, pipeline: Path | None = None, write: bool = False) -> Site:
    location = TableLocation(uri)
    watched = WatchedTable(location, DuePolicy())
    letters = None if pipeline is None else LetterBook(str(pipeline), watched.table, location)
    file = None if pipeline is None else str(pipeline)
    return Site(CommandSettings(location), watched, write=write, pipeline=file, letters=letters)


def client_of(site: Site, access: Access = ACCESS, **options: Any) -> TestClient:
    return TestClient(build_application(site, access), base_url=ORIGIN, follow_redirects=False, **options)

"""Finds the dead letters of the writers of a pipeline file, for commands and for the clean service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from weft.storage import Table
from weft.storage.errors import InvalidInput
from weft.streams.letters.letter_files import default_folder, open_folder
from weft.streams.letters.letter_folder import LetterFolder
from weft.streams.letters.retention import Expired, Retention
from weft.streams.pipeline.file.model import DeadLetterSection, LetterFields, TableLocation, TableSection
from weft.streams.pipeline.file.pipeline import read_fields
from weft.streams.pipeline.file.pipeline_file import read_file, resolve_location


class _File(BaseModel):
    table: TableSection
    writers: dict[str, LetterFields] = {}


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """Where the dead letters of a writer are.

    Attributes:
        writer: Name of the writer.
        stream: Its stream.
        lane: Its lane.
        folder: Path or URL of the folder.
        keep_seconds: How long letters are kept; None if they are never deleted.
    """

    writer: str
    stream: str
    lane: str
    folder: str
    keep_seconds: float | None

    def open(self, table: Table, location: TableLocation) -> LetterFolder:
        """Open the folder; it need not exist.

        Raises:
            InvalidInput: No file system has the scheme of the URL.
        """
        store = open_folder(self.folder, table.uri, location.storage_options)
        return LetterFolder.of(store, self.lane, table, location.storage_options)


def load_letter_places(
    path: str | Path, environment: Mapping[str, str] = os.environ
) -> tuple[TableLocation, list[LetterPlace]]:
    """Read where a pipeline file has its table, and the dead letters of its writers.

    Writers that stop at bad messages have no dead letters. Other fields of the file are not read, so errors in them, or
    environment variables that they need, do not matter.

    Raises:
        InvalidInput, NotFound: See `weft.streams.pipeline.file.pipeline.load_pipeline`.
    """
    path = Path(path).absolute()
    whole = read_file(path)
    sections = whole.get("writers")
    writers = {
        name: {field: section[field] for field in LetterFields.model_fields if field in section}
        for name, section in (sections.items() if isinstance(sections, dict) else ())
        if isinstance(section, dict)
    }
    content, _ = read_fields(_File, {"table": whole.get("table", {}), "writers": writers}, path, environment)
    location = TableLocation(resolve_location(content.table.uri, path.parent), content.table.storage_options)
    places = []
    for name, writer in content.writers.items():
        if writer.on_error == "stop":
            continue
        stream, lane = writer.names(name)
        letters = writer.dead_letter or DeadLetterSection()
        if letters.path is None:
            folder = default_folder(location.uri, lane)
        else:
            folder = resolve_location(letters.path, path.parent)
        places.append(LetterPlace(name, stream, lane, folder, letters.keep))
    return location, places


def choose_places(places: list[LetterPlace], only: str | None) -> list[LetterPlace]:
    """Choose the places of all writers, or of one.

    Args:
        places: From `load_letter_places`.
        only: Name or stream of the writer; None for all writers.

    Raises:
        InvalidInput: There is no such writer, or it has no dead letters.
    """
    chosen = [place for place in places if only is None or only in {place.writer, place.stream}]
    if not chosen:
        what = "no writer of the pipeline has dead letters" if only is None else f"writer {only!r} has no dead letters"
        names = ", ".join(place.writer for place in places) or "none"
        raise InvalidInput(what, hint=f"writers with dead letters: {names}; one with on_error: stop has none")
    return chosen


def expire_letters(retentions: list[Retention], *, dry_run: bool = False) -> Expired:
    """Delete the old dead letters of several writers."""
    return sum((retention.expire(dry_run=dry_run) for retention in retentions), start=Expired())


def retentions_of(places: list[LetterPlace], table: Table, location: TableLocation) -> list[Retention]:
    """The retention of each writer that declares one."""
    return [
        Retention(place.open(table, location), place.keep_seconds) for place in places if place.keep_seconds is not None
    ]

"""Files of dead letters: their names, and the letters in them. `weft.streams.write.dead_letter` writes them.

    <folder>/<query id>/<batch>-<task>.jsonl            letters of a batch, one JSON object a line
    <folder>/_plans/<lane>/<number>.json                replays and drops of letters (`weft.streams.letters.plans`)

A letter is named by its file and its line, for example ``2f1c/7-0:3``. The lines of a file never move: a letter that is
dropped leaves an empty line.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from weft.storage.core.names import Path
from weft.storage.errors import CorruptData, InvalidInput, StoreUnavailable
from weft.storage.foreign_text import parse_json
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

SUFFIX: Final = ".jsonl"
_FILE: Final = re.compile(r"([^/_.][^/]*)/(\d+)-(\d+)\.jsonl")
_NAME: Final = re.compile(r"([^/_.][^/]*/\d+-\d+)(?:\.jsonl)?:(\d+)")


@dataclass(frozen=True, slots=True)
class LetterFile:
    """The file of one task.

    Attributes:
        path: Path in the folder.
        part: The folder of the file: the id of a query, or of a run of a replay.
        batch: Number of the batch.
        task: Number of the task.
        size: Its size in bytes.
    """

    path: str
    part: str
    batch: int
    task: int
    size: int


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        file: Path of its file in the folder.
        line: Its line, from 1.
        content: What `weft.streams.write.dead_letter.DeadLetterFile` wrote.
    """

    file: str
    line: int
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the letter on the command line."""
        return f"{self.file.removesuffix(SUFFIX)}:{self.line}"

    @property
    def has_message(self) -> bool:
        """Whether the letter holds a message; false if it holds the row of a source without messages."""
        return self.content.get("encoding") != "row"

    def data(self, name: Literal["key", "value"]) -> bytes | None:
        """The bytes of its key or its value; None if it has none."""
        return stored_bytes(self.content.get(name), self.content.get("key_encoding" if name == "key" else "encoding"))


def stored_bytes(text: str | None, encoding: str | None) -> bytes | None:
    """The bytes that a letter holds as text: in base64, if they are not UTF-8."""
    if text is None:
        return None
    return base64.b64decode(text) if encoding == "base64" else str(text).encode()


def default_folder(table_uri: str, lane: str) -> str:
    """Default folder of dead letters: beside the table, because every task reaches the store of the table.

    Raises:
        InvalidInput: The table is the root of its bucket, so there is no place for a folder beside it.
    """
    parts = urlsplit(table_uri)
    if parts.netloc and not parts.path.strip("/"):
        raise InvalidInput(
            f"there is no place for dead letters beside {table_uri}", hint="set dead_letter, or on_error: stop"
        )
    return f"{table_uri.rstrip('/')}_dead_letters/{lane}"


def open_folder(folder: str, table_uri: str, storage_options: Mapping[str, Any] | None) -> ObjectStore:
    """The store of a folder of dead letters.

    Args:
        folder: Path or fsspec URL.
        table_uri: Path or URL of the table.
        storage_options: Options of the table's store. They are also used for the folder if it is in the same kind of
            store.

    Raises:
        InvalidInput: No file system has the scheme of the URL.
    """
    return open_store(folder, folder_options(folder, table_uri, storage_options))


def folder_options(folder: str, table_uri: str, storage_options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The options for a folder of dead letters: those of the table, if it is in the same kind of store; else None."""
    return storage_options if urlsplit(folder).scheme == urlsplit(table_uri).scheme else None


def parse_name(text: str) -> tuple[str, int]:
    """The file and the line of a letter's name.

    Raises:
        InvalidInput: It is not a name of a letter.
    """
    name_match = _NAME.fullmatch(text)
    if name_match is None:
        raise InvalidInput(
            f"{text!r} is not the name of a dead letter", hint="list the names with weft dead-letters list PIPELINE"
        )
    return f"{name_match[1]}{SUFFIX}", int(name_match[2])


def list_files(store: ObjectStore) -> list[LetterFile]:
    """The files of dead letters in a folder, in the order of query, batch and task. Other files are left out."""
    files = []
    for name, size in store.list(Path("")):
        match = _FILE.fullmatch(name)
        if match is not None:
            files.append(LetterFile(name, match[1], int(match[2]), int(match[3]), size))
    return sorted(files, key=lambda file: (file.part, file.batch, file.task))


def read_letters(store: ObjectStore, path: str) -> Iterator[Letter]:
    """The letters of a file, in its order; none if the file does not exist.

    Raises:
        CorruptData: A line is not a dead letter.
        StoreUnavailable: The store does not answer.
    """
    data = read_object(store, path) or b""
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            content = parse_json(line)
        except ValueError:
            content = None
        if not isinstance(content, dict) or not {"reason", "query_id", "batch", "lane"} <= content.keys():
            raise CorruptData(
                f"{store.uri}/{path}, line {number}: this is not a dead letter",
                hint="move files that weft did not write out of the folder; restore damaged ones from a copy",
            )
        yield Letter(path, number, content)


def read_object(store: ObjectStore, path: str) -> bytes | None:
    """The content of an object; None if it does not exist.

    Raises:
        StoreUnavailable: The store does not answer.
    """
    try:
        return store.get(Path(path))
    except OSError as error:
        raise StoreUnavailable(f"cannot read {store.uri}/{path}: {error}", hint="try again") from error

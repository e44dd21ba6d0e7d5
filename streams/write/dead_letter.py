"""Dead letters: messages that could not be stored, with the reason, in a folder beside the table.

    <folder>/<query id>/<batch>-<task>.jsonl      one JSON object a line, see `DeadLetterFile`

1. **Exactly once.** The name of a file consists of query, batch and task, and the file is created atomically. A batch
   or task that runs again replaces the file of the earlier run. `discard_others` removes files of an earlier run with
   task numbers that the later run did not use. If another query reads the messages of a batch again
   (`weft.streams.write.resume`), the files of that batch are removed first.
2. **Durable before the commit.** A task reports its rows only after its file is closed and synced. So when a batch is
   committed, every message of it is either in the table or in a file of dead letters.
3. A task without dead letters writes no file.

`weft.streams.letters` reads these files, and `weft.streams.write.replay` replays them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from weft.storage.core.names import Path
from weft.storage.errors import InvalidInput, StoreUnavailable
from weft.storage.store.object_store import ObjectStore
from weft.streams.letters.letter_files import open_folder

SOURCE: Final = "__weft_source"
"""Hidden column of a DataFrame (`weft.streams.write.decode`): a struct of ``topic``, ``partition``, ``offset``,
``timestamp`` (milliseconds since 1970) and ``headers`` of the message of a row, its original ``key`` and ``value``, and
the ``reason`` why it could not be decoded (null if it was decoded). With a schema registry also ``schema_id``."""
IGNORED: Final = "the message has no value (a tombstone), and is ignored"
"""The ``reason`` of messages that are skipped: tasks drop and count them, without a dead letter."""
_FILE: Final = re.compile(r"(\d+)-(\d+)\.jsonl")


def open_dead_letters(folder: str, table_uri: str, storage_options: Mapping[str, Any] | None) -> ObjectStore:
    """Open the folder of dead letters, and check that it can be written.

    Args:
        folder: Path or fsspec URL.
        table_uri: Path or URL of the table.
        storage_options: Options of the table's store. They are also used for the folder if it is in the same kind of
            store.

    Raises:
        InvalidInput: The URL's scheme is not that of a known file system.
        StoreUnavailable: The folder cannot be written to.
    """
    if not folder:
        raise InvalidInput("dead_letter is empty", hint="give a folder, or leave it out")
    store = open_folder(folder, table_uri, storage_options)
    probe = Path(f".probe-{uuid.uuid4().hex}")
    try:
        store.put(probe, b"probe")
        store.delete(probe)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write dead letters to {store.uri}: {error}", hint="check the path and its permissions"
        ) from error
    return store


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where the tasks of one batch write dead letters.

    Attributes:
        store: From `open_dead_letters`.
        query_id: Id of the query, the name of the folder.
        batch: Number of the batch.
        stream: Name of the stream, which the letters contain.
        lane: Name of the lane, which the letters contain.
    """

    store: ObjectStore
    query_id: str
    batch: int
    stream: str
    lane: str

    def open(self, task: int) -> DeadLetterFile:
        """Return the file of one task, a context manager."""
        return DeadLetterFile(self, task)

    def discard_others(self, tasks: Collection[int]) -> None:
        """Remove files that an earlier run of this batch has written for tasks that are not in ``tasks``."""
        for name, _ in self.store.list(Path(self.query_id)):
            match = _FILE.fullmatch(name)
            if match and int(match.group(1)) == self.batch and int(match.group(2)) not in tasks:
                self.store.delete(Path(f"{self.query_id}/{name}"))


class DeadLetterFile:
    """The file of one task, a context manager. It is created with the first letter.

    It becomes visible when the block ends without an error. Each line is a JSON object with

    - ``reason``: why the message could not be stored
    - ``topic``, ``partition``, ``offset``, ``timestamp_ms`` since 1970; null if the source has none
    - ``key`` and ``value``, with ``key_encoding`` and ``encoding``: ``utf-8`` (the text), ``base64`` (of bytes that are
      not UTF-8), ``row`` (the row as JSON, if the DataFrame has no `SOURCE`), or null if there is no key or value
    - ``headers``: a list of ``key``, ``value`` and ``encoding``; null if the message has none, or the source does not
      read headers
    - ``schema_id``: the id of the value's schema in a registry; null if the format has none
    - ``written_at_ms``: when the letter was written, since 1970
    - ``query_id``, ``batch``, ``task``, ``stream``, ``lane``
    """

    def __init__(self, letters: DeadLetters, task: int) -> None:
        self._letters, self._task = letters, task
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, reason: str, source: Mapping[str, Any] | None, row: Mapping[str, Any]) -> None:
        """Write one letter.

        Args:
            reason: Why the message could not be stored.
            source: Value of `SOURCE`; None if the DataFrame has no such column.
            row: The decoded row, which is written if there is no source.
        """
        if self._file is None:
            letters = self._letters
            path = Path(f"{letters.query_id}/{letters.batch}-{self._task}.jsonl")
            self._file = self._stack.enter_context(letters.store.open_output(path))
        origin = source or {}
        value, encoding = _text(origin["value"]) if source is not None else (_dumps(row), "row")
        key, key_encoding = _text(origin.get("key"))
        line = {
            "reason": reason,
            **{name: origin.get(name) for name in ("topic", "partition", "offset")},
            "timestamp_ms": origin.get("timestamp"),
            "key": key,
            "key_encoding": key_encoding,
            "headers": _headers(origin.get("headers")),
            "value": value,
            "encoding": encoding,
            "schema_id": origin.get("schema_id"),
            "written_at_ms": time.time_ns() // 1_000_000,
            "query_id": self._letters.query_id,
            "batch": self._letters.batch,
            "task": self._task,
            "stream": self._letters.stream,
            "lane": self._letters.lane,
        }
        self._file.write(_dumps(line).encode() + b"\n")
        self.count += 1


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii"), "base64"


def _headers(pairs: Sequence[Mapping[str, Any]] | None) -> list[dict[str, str | None]] | None:
    if not pairs:
        return None
    texts = [(pair["key"], *_text(pair["value"])) for pair in pairs]
    return [{"key": key, "value": value, "encoding": encoding} for key, value, encoding in texts]


def _dumps(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    """Convert other types for JSON: binary to base64; decimals, dates and times to text."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)

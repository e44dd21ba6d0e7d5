"""The dead letters of a pipeline for the page: counts, lists and single letters, and replays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from weft.storage import Table
from weft.storage.errors import Conflict, NotFound
from weft.streams.letters.letter_files import Letter, parse_name
from weft.streams.letters.letter_folder import State
from weft.streams.pipeline.file.letter_places import LetterPlace, load_letter_places
from weft.streams.pipeline.file.model import TableLocation

_COUNT_SECONDS: Final = 5.0
_OUTPUT_LINES: Final = 200


@dataclass(frozen=True, slots=True)
class LetterCounts:
    """Numbers of dead letters.

    Attributes:
        by_reason: Numbers of letters that were not dropped, by (writer, reason, state), the largest first.
        waiting: Letters that can be replayed, by writer.
    """

    by_reason: list[tuple[tuple[str, str, State], int]]
    waiting: Counter[str]


@dataclass(slots=True)
class Replay:
    """One run of ``weft dead-letters replay``."""

    only: str | None
    lines: list[str] = field(default_factory=list)
    exit_code: int | None = None


class LetterBook:
    """The letters of the writers of a pipeline file. Usable from any thread."""

    def __init__(self, pipeline: str, table: Table, location: TableLocation) -> None:
        """Read the places of the letters.

        Raises:
            InvalidInput: The pipeline file is wrong.
        """
        self._pipeline, self._table, self._location = pipeline, table, location
        self.places: list[LetterPlace] = load_letter_places(pipeline)[1]
        self._lock = threading.Lock()
        self._counts: LetterCounts | None = None
        self._counted = float("-inf")
        self.replayed: Replay | None = None

    def _letters(self, writer: str | None = None) -> Iterator[tuple[LetterPlace, State, Letter]]:
        for place in self.places:
            if writer in {None, place.writer}:
                for state, letter in place.open(self._table, self._location).survey().letters():
                    yield place, state, letter

    def counts(self) -> LetterCounts:
        """Count all letters; a count that is at most `_COUNT_SECONDS` old is returned again.

        Raises:
            CorruptData: A file of letters is damaged.
            StoreUnavailable: A store does not answer.
        """
        with self._lock:
            if self._counts is None or time.monotonic() - self._counted >= _COUNT_SECONDS:
                counted: Counter[tuple[str, str, State]] = Counter()
                for place, state, letter in self._letters():
                    counted[place.writer, str(letter.content["reason"]), state] += 1
                waiting: Counter[str] = Counter()
                for (writer, _, state), number in counted.items():
                    if state is State.WAITING:
                        waiting[writer] += number
                self._counts, self._counted = LetterCounts(counted.most_common(), waiting), time.monotonic()
            return self._counts

    def find(self, writer: str | None, reason: str | None, limit: int) -> list[tuple[LetterPlace, State, Letter]]:
        """Return the first ``limit`` letters of a writer with a reason; None means any writer or any reason."""
        letters: list[tuple[LetterPlace, State, Letter]] = []
        for place, state, letter in self._letters(writer):
            if reason in {None, str(letter.content["reason"])}:
                letters.append((place, state, letter))
                if len(letters) == limit:
                    break
        return letters

    def get(self, name: str) -> tuple[LetterPlace, State, Letter]:
        """Return a letter by its name.

        Raises:
            InvalidInput: The name is not that of a letter.
            NotFound: There is no such letter.
        """
        file, line = parse_name(name)
        for place, state, letter in self._letters():
            if (letter.file, letter.line) == (file, line):
                return place, state, letter
        raise NotFound(f"there is no dead letter {name}", hint="it was dropped, or has expired")

    def replay(self, only: str | None) -> Replay:
        """Start ``weft dead-letters replay`` in a separate process.

        Args:
            only: Name of the writer; None for all.

        Raises:
            Conflict: A replay is running.
        """
        with self._lock:
            if self.replayed is not None and self.replayed.exit_code is None:
                raise Conflict("a replay is running", hint="wait until it has ended")
            self.replayed = Replay(only)
        command = [sys.executable, "-m", "weft.streams.cli.main", "dead-letters", "replay", self._pipeline]
        command += ["--only", only] if only is not None else []
        threading.Thread(target=self._run, args=(command, self.replayed), name="weft-ui-replay", daemon=True).start()
        return self.replayed

    def _run(self, command: list[str], replay: Replay) -> None:
        try:
            with subprocess.Popen(  # noqa: S603 - our own command; the writer's name is one argument
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                env=dict(os.environ),
            ) as process:
                for line in process.stdout or ():
                    replay.lines = [*replay.lines[1 - _OUTPUT_LINES :], line.rstrip("\n")]
            code = process.returncode
        except OSError as error:
            replay.lines.append(f"the command does not start: {error}")
            code = 1
        self._counted = float("-inf")
        replay.exit_code = code


def text_of(data: bytes, limit: int = 4096) -> str | None:
    """Decode printable UTF-8; None if the bytes are something else, or more than ``limit``."""
    if len(data) > limit:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None


def hex_lines(data: bytes, limit: int = 4096) -> list[tuple[str, str, str]]:
    """Return a hex dump: offset, hexadecimal bytes and characters of every 16 bytes of the first ``limit`` bytes."""
    return [
        (
            f"{start:06x}",
            data[start : start + 16].hex(" "),
            "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in data[start : start + 16]),
        )
        for start in range(0, min(len(data), limit), 16)
    ]

"""What the main process asks of a measuring process, and what it answers; as JSON, because their Pythons differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

TABLE: Final = "table"
WRITERS: Final = "writers"
HOUR: Final = "hour"
PARTS: Final = (TABLE, WRITERS, HOUR)


@dataclass(frozen=True, slots=True)
class Task:
    """The measurements of one system.

    Attributes:
        system: Its name.
        version: Its version.
        data: Folder of the dataset, by part.
        warm_up: Folder of a small dataset, or empty: the figures do not matter.
        folder: An empty folder for tables.
        rounds: Of queries.
        every: Commits between compactions, in `HOUR`.
        jars: For Spark's class path.
    """

    system: str
    version: str
    data: Mapping[str, str]
    warm_up: str
    folder: str
    rounds: int
    every: int
    jars: list[str]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one part of one system, or why there are none.

    Attributes:
        system: Its name.
        part: One of `PARTS`.
        version: Of the system; empty if it could not be fetched.
        spark: The version of Spark.
        keys: Number of keys of the dataset.
        figures: By name; seconds, bytes and numbers.
        load_average: Of the machine over a minute, at the start and at the end.
        skipped: Why it was not started.
        failed: Why it was not finished.
        note: Which newer release could not be fetched.
    """

    system: str
    part: str
    version: str = ""
    spark: str = ""
    keys: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)
    load_average: tuple[float, ...] = ()
    skipped: str = ""
    failed: str = ""
    note: str = ""

    def line(self) -> str:
        """As a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Self:
        return cls(**json.loads(line))

"""Findings of checks, and how errors become findings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from weft.storage.errors import TableError
from weft.storage.shown import Shown
from weft.streams.pipeline.run.error_kinds import describe


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding(Shown):
    """The result of one check.

    Attributes:
        check: What was checked, such as "java" or "writers.orders.topic".
        level: How bad it is.
        text: The result of the check.
        hint: What to do; empty if there is nothing to do.
        guide: Document and section that explain it; empty for none.
    """

    check: str
    level: Level
    text: str
    hint: str = ""
    guide: str = ""


class Findings:
    """Collects findings."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def ok(self, check: str, text: str) -> None:
        self.all.append(Finding(check, Level.OK, text))

    def skipped(self, check: str, text: str, hint: str = "") -> None:
        self.all.append(Finding(check, Level.SKIPPED, text, hint))

    def warning(self, check: str, text: str, hint: str) -> None:
        self.all.append(Finding(check, Level.WARNING, text, hint))

    def problem(self, check: str, text: str, hint: str, guide: str = "") -> None:
        self.all.append(Finding(check, Level.PROBLEM, text, hint, guide))

    @contextmanager
    def guarded(self, check: str) -> Iterator[None]:
        """Turn an error of the block into a problem, so that other checks still run."""
        try:
            yield
        except TableError as error:
            self.problem(check, error.message, error.hint, error.guide)
        except Exception as error:
            self.problem(check, describe(error), "this check itself failed; the message may say why")

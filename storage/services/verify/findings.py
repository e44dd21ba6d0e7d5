"""Findings: what `verify` says is wrong with a table, in words that an operator can act on.

A finding names the invariant that does not hold (PROTOCOL.md, "Invariants"), where, what that means, and the mend. A
report also counts what was looked at, so that "nothing is wrong" says of what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_ALIKE: Final = 100  # findings of one kind that are told in words; more are counted: nobody reads further
FROM_COPY: Final = "restore the object from a copy of the store; weft never rewrites one"

Progress = Callable[[int, int], None]
"""Called with (objects looked at, objects in all); both only grow."""


class Severity(StrEnum):
    """How bad a finding is.

    ERROR: data or history is lost, doubled or wrong, or a reader will be refused. WARNING: nothing is wrong yet, but an
    operator should mend it. INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        invariant: The rule that does not hold, for example ``S7``; "" where it is none of the protocol's.
        severity: See there.
        where: Path, or lane and entry, or file group, and sample rows.
        what: What it means, in plain words.
        mend: What to do about it.
    """

    invariant: str
    severity: Severity
    where: str
    what: str
    mend: str

    def __str__(self) -> str:
        rule = f" {self.invariant}" if self.invariant else ""
        return f"{self.severity.upper()}{rule} {self.where}: {self.what}" + (f"\n  {self.mend}" if self.mend else "")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification has seen.

    Attributes:
        uri: Of the table.
        cut: Text of the snapshot that was verified: all entries up to there.
        deep: Contents of files were read, and not only their sizes.
        findings: Worst first; of each invariant and severity `MAX_ALIKE` at most.
        omitted: How many more there are.
        checked: What was looked at, and how many of it.
        seconds: Wall-clock time.
    """

    uri: str
    cut: str
    deep: bool
    findings: tuple[Finding, ...]
    omitted: int
    checked: Mapping[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing is wrong: whatever was found is only worth knowing."""
        return not self.errors and not self.warnings

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self._of(Severity.WARNING)

    @property
    def infos(self) -> tuple[Finding, ...]:
        return self._of(Severity.INFO)

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is severity)

    def __str__(self) -> str:
        how = "contents of files" if self.deep else "sizes of files only"
        seen = ", ".join(f"{number:,} {what}" for what, number in self.checked.items())
        verdict = (
            "nothing is wrong"
            if self.ok
            else f"{_counted(self.errors, 'error')}, {_counted(self.warnings, 'warning')}"
            + (f", and {self.omitted:,} more findings" if self.omitted else "")
        )
        lines = [f"{self.uri} at {self.cut}", f"checked {seen} ({how}) in {self.seconds:.1f} s", verdict]
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


def _counted(findings: Sequence[Finding], what: str) -> str:
    return f"{len(findings):,} {what}{'s' * (len(findings) != 1)}"


class Findings:
    """Collects findings and counts."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._found: list[Finding] = []
        self._alike: Counter[tuple[str, Severity]] = Counter()
        self._done = self._total = 0
        self.omitted = 0
        self.checked: Counter[str] = Counter()

    def error(self, invariant: str, where: str, what: str, mend: str) -> None:
        self._add(Finding(invariant, Severity.ERROR, where, what, mend))

    def warning(self, invariant: str, where: str, what: str, mend: str) -> None:
        self._add(Finding(invariant, Severity.WARNING, where, what, mend))

    def info(self, where: str, what: str, mend: str = "") -> None:
        self._add(Finding("", Severity.INFO, where, what, mend))

    def _add(self, finding: Finding) -> None:
        kind = (finding.invariant, finding.severity)
        self._alike[kind] += 1
        if self._alike[kind] <= MAX_ALIKE:
            self._found.append(finding)
        else:
            self.omitted += 1

    def count(self, what: str, number: int = 1) -> None:
        """Note that something was looked at."""
        self.checked[what] += number

    def expect(self, objects: int) -> None:
        """Note that so many more objects will be looked at."""
        self._total += objects
        self._tell()

    def done(self, objects: int = 1) -> None:
        self._done += objects
        self._total = max(self._total, self._done)
        self._tell()

    def finish(self) -> None:
        """Whatever was expected and not met was not needed."""
        self.done(self._total - self._done)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)

    def drop(self, unwanted: Callable[[Finding], bool]) -> int:
        """Take findings back; how many."""
        kept = [finding for finding in self._found if not unwanted(finding)]
        dropped = len(self._found) - len(kept)
        self._found = kept
        return dropped

    @property
    def found(self) -> tuple[Finding, ...]:
        """Worst first, else in the order in which they were found."""
        order = list(Severity)
        return tuple(sorted(self._found, key=lambda finding: order.index(finding.severity)))

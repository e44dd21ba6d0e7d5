"""Findings: what `verify` reports, written for operators.

A finding names the violated rule (PROTOCOL.md, "Invariants"), the place, the consequence and what to do. Checks report
to a `Place`, which has a method for each kind of finding, with its hint. A report also counts what was checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from weft.storage import shown
from weft.storage.plural import counted
from weft.storage.services.steps.progress import OnStage, Stage, unobserved

MAX_ALIKE: Final = 100  # findings of one rule and severity that a report lists; the others are only counted

RESTORE: Final = "restore the object from a copy of the store; weft never rewrites an object"
REPORT: Final = "a process broke the commit protocol: report a bug, with this entry and the ones before and after it"
REWRITE: Final = "the file was written like this: report a bug, with the file; a compaction rewrites the file group"


class Severity(StrEnum):
    """How bad a finding is.

    ERROR: data or history is lost, duplicated or wrong, or readers will fail. WARNING: nothing is wrong yet, but an
    operator should act. INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or one fact that is worth knowing.

    Attributes:
        invariant: The violated rule, for example ``S7``; "" if it is not a rule of the protocol.
        severity: See `Severity`.
        where: A path, or a lane and entry, or a file group.
        what: What is wrong, and its consequence.
        hint: What to do; "" if there is nothing to do.
    """

    invariant: str
    severity: Severity
    where: str
    what: str
    hint: str

    def __str__(self) -> str:
        rule = f" {self.invariant}" if self.invariant else ""
        return f"{self.severity.upper()}{rule} {self.where}: {self.what}" + (f"\n  {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """The result of a verification.

    Attributes:
        uri: Location of the table.
        cut: Text of the verified snapshot: all entries up to it.
        deep: True if the contents of files were read, False if only their sizes were checked.
        findings: Errors first, then warnings, then infos; at most `MAX_ALIKE` of one rule and severity.
        omitted: Number of findings beyond `MAX_ALIKE`.
        checked: Number of checked objects, by kind ("entries", "files", "rows", ...).
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
        """Whether there are neither errors nor warnings."""
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

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, and the findings."""
        verdict = str(self).split("\n")[2]
        rows = [(item.severity, item.invariant, item.where, item.what, item.hint) for item in self.findings]
        html = shown.facts(
            "VerifyReport", {"table": self.uri, "snapshot": self.cut, "verdict": verdict, "checked": self.checked}
        )
        return html + (shown.rows("", ("severity", "rule", "where", "what", "what to do"), rows) if rows else "")

    def __str__(self) -> str:
        scope = "contents of files" if self.deep else "sizes of files only"
        checked = ", ".join(f"{number:,} {kind}" for kind, number in self.checked.items())
        verdict = (
            "nothing is wrong"
            if self.ok
            else f"{counted(len(self.errors), 'error')}, {counted(len(self.warnings), 'warning')}"
            + (f", and {self.omitted:,} more findings" if self.omitted else "")
        )
        lines = [f"{self.uri} at {self.cut}", f"checked {checked} ({scope}) in {self.seconds:.1f} s", verdict]
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


@dataclass(frozen=True, slots=True)
class TaskFindings:
    """The findings of one task, in order.

    Attributes:
        findings: At most `MAX_ALIKE` of one rule and severity.
        omitted: Number of further findings.
        checked: Number of checked objects, by kind.
    """

    findings: tuple[Finding, ...]
    omitted: int
    checked: Mapping[str, int]


class Findings:
    """Collects findings, and counts what was checked."""

    def __init__(self, progress: OnStage = unobserved) -> None:
        self._progress = progress
        self._findings: list[Finding] = []
        self._alike: Counter[tuple[str, Severity]] = Counter()
        self._done = self._total = 0
        self.omitted = 0
        self.checked: Counter[str] = Counter()

    def at(self, where: str) -> Place:
        """A place to report findings about: a path, or a lane and entry, or a file group."""
        return Place(self, where)

    def add(self, finding: Finding) -> None:
        kind = (finding.invariant, finding.severity)
        self._alike[kind] += 1
        if self._alike[kind] <= MAX_ALIKE:
            self._findings.append(finding)
        else:
            self.omitted += 1

    def include(self, task_findings: TaskFindings) -> None:
        """Add the findings of a task."""
        for finding in task_findings.findings:
            self.add(finding)
        self.omitted += task_findings.omitted
        self.checked.update(task_findings.checked)

    def result(self) -> TaskFindings:
        """All findings so far."""
        return TaskFindings(tuple(self._findings), self.omitted, dict(self.checked))

    def drop(self, is_unwanted: Callable[[Finding], bool]) -> int:
        """Remove unwanted findings; returns their number."""
        remaining = [finding for finding in self._findings if not is_unwanted(finding)]
        count = len(self._findings) - len(remaining)
        self._findings = remaining
        return count

    @property
    def by_severity(self) -> tuple[Finding, ...]:
        """All findings: errors, then warnings, then infos; each in the order in which they were added."""
        order = list(Severity)
        return tuple(sorted(self._findings, key=lambda finding: order.index(finding.severity)))

    def count(self, kind: str, number: int = 1) -> None:
        """Add to the number of checked objects of a kind."""
        self.checked[kind] += number

    def expect(self, objects: int) -> None:
        """Add to the number of objects that progress is measured against."""
        self._total += objects
        self.done(0)

    def done(self, objects: int = 1) -> None:
        """Report progress."""
        self._done += objects
        self._total = max(self._total, self._done)
        self._progress(Stage("verifying", self._done, self._total, "objects"))

    def finish(self) -> None:
        """Report that the work is done, also if fewer objects were checked than expected."""
        self.done(self._total - self._done)


@dataclass(frozen=True, slots=True)
class Place:
    """Reports findings about one place."""

    findings: Findings
    where: str

    def damage(self, invariant: str, text: str, hint: str = RESTORE) -> None:
        """Report that an object is missing, or that its bytes differ from those that were written."""
        self.findings.add(Finding(invariant, Severity.ERROR, self.where, text, hint))

    def violation(self, invariant: str, text: str, hint: str = REPORT) -> None:
        """Report that an intact entry contradicts others: a process did not follow the protocol."""
        self.findings.add(Finding(invariant, Severity.ERROR, self.where, text, hint))

    def bad_content(self, invariant: str, text: str) -> None:
        """Report that an intact file contradicts its entry, or breaks a rule of its format."""
        self.findings.add(Finding(invariant, Severity.ERROR, self.where, text, REWRITE))

    def warning(self, text: str, hint: str) -> None:
        """Report that nothing is wrong yet, but an operator should act."""
        self.findings.add(Finding("", Severity.WARNING, self.where, text, hint))

    def info(self, text: str, hint: str = "") -> None:
        """Report a fact that an operator may want to know."""
        self.findings.add(Finding("", Severity.INFO, self.where, text, hint))

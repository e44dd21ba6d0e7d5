"""The checks of ``weft doctor`` for the page: they run in a thread on request, and the last results are kept."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from weft.storage.errors import Conflict
from weft.streams.doctor.finding import Finding, Findings, Level
from weft.streams.pipeline.file.model import TableLocation

_WORST_FIRST: Final = (Level.PROBLEM, Level.WARNING, Level.SKIPPED, Level.OK)


@dataclass(slots=True)
class Examination:
    """One run of the checks.

    Attributes:
        began_at_ms: When it began.
        findings: The findings, the worst first; None before the run has ended.
        seconds: How long it took.
    """

    began_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    findings: list[Finding] | None = None
    seconds: float = 0.0

    def count(self, level: Level) -> int:
        """Number of findings of a level."""
        return sum(finding.level is level for finding in self.findings or ())


class Checks:
    """The checks of a pipeline, or of one table. Usable from any thread."""

    def __init__(self, location: TableLocation, pipeline: str | None) -> None:
        """Remember what to check; nothing runs yet."""
        self._location, self._pipeline = location, pipeline
        self._lock = threading.Lock()
        self.last: Examination | None = None

    def start(self) -> Examination:
        """Start the checks.

        Raises:
            Conflict: The previous run has not ended.
        """
        with self._lock:
            if self.last is not None and self.last.findings is None:
                raise Conflict("the checks are running", hint="wait until they have ended")
            self.last = examination = Examination()
        threading.Thread(target=self._run, args=(examination,), name="weft-ui-checks", daemon=True).start()
        return examination

    def _run(self, examination: Examination) -> None:
        began, findings = time.monotonic(), Findings()
        with findings.guarded("checks"):
            findings.all += self._examine()
        examination.seconds = time.monotonic() - began
        examination.findings = sorted(findings.all, key=lambda finding: _WORST_FIRST.index(finding.level))

    def _examine(self) -> list[Finding]:
        if self._pipeline is None:
            from weft.streams.doctor.lake_checks import diagnose_lake

            return diagnose_lake(self._location)
        from weft.streams.doctor.diagnose import diagnose
        from weft.streams.pipeline.file.pipeline import load_pipeline

        pipeline = load_pipeline(self._pipeline)
        return diagnose(pipeline, list(pipeline.writers), sample=0)

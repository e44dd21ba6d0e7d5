"""Finds the problems of a table and its streams, and says what to do about them; the worst is first.

Limits and texts that occur in an alert rule, too (deploy/prometheus/alerts.yaml), are the same here; a test compares
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from weft.storage.plural import counted
from weft.streams.doctor.finding import Finding, Level
from weft.streams.pipeline.file.quantities import age, duration
from weft.streams.pipeline.run.part_states import PartState
from weft.streams.ui.stream_rows import StreamRow
from weft.streams.ui.watched_table import Look

AMPLIFICATION: Final = 3.0
WAITING_COMMITS: Final = 10_000
STARTS: Final = 3
BEHIND_SECONDS: Final = 1_800.0
STUCK_SECONDS: Final = 600.0
STALE_SECONDS: Final = 900.0
LAGGING: Final = 100_000

ALERT_TEXTS: Final[Mapping[str, str]] = {
    "WeftCompactionBehind": "Reads fetch many times the bytes of their base",
    "WeftNoCommits": "A batch hangs or is too large: see the running stage in the Spark UI, and set "
    "max_offsets_per_trigger.",
    "WeftNotFresh": "The table has everything that the topic had so long ago. Give the writer more cores.",
    "WeftLagGrows": "Give the writer more cores; OPERATIONS.md has rates.",
    "WeftDeadLetters": "They are kept in the folder of dead letters, with the reason.",
    "WeftUnorderedRows": "They changed nothing, and are kept nowhere but in the topic. weft check says which field is "
    "missing.",
    "WeftOutage": "It continues by itself when they do. weft doctor says more.",
}
"""Texts that also occur in the descriptions of these alerts."""


class Severity(IntEnum):
    """How bad a problem is."""

    CRITICAL = 0
    WARNING = 1
    NOTE = 2


_SEVERITY: Final = {Level.PROBLEM: Severity.CRITICAL, Level.WARNING: Severity.WARNING}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        severity: How bad it is.
        title: Short description of the problem.
        action: What the user should do.
        view: The view that shows more; "" for none.
        guide: Document and section that explain it; "" for none.
    """

    severity: Severity
    title: str
    action: str
    view: str = ""
    guide: str = ""


def find_problems(
    look: Look,
    streams: Sequence[StreamRow],
    unmeasured: str = "",
    findings: Sequence[Finding] = (),
    parts: Sequence[PartState] = (),
) -> list[Problem]:
    """Find all problems, the worst first.

    Args:
        look: The table.
        streams: Its streams.
        unmeasured: Why the lag is not measured; "" if it is measured, or if there is no pipeline.
        findings: Findings of the last run of the checks.
        parts: States of the parts of its pipeline; empty without a pipeline.
    """
    problems = [*_clock_problems(look), *_table_problems(look), *_part_problems(parts, streams)]
    for stream in streams:
        problems += _stream_problems(stream)
    problems += _reference_problems(look)
    if unmeasured:
        problems.append(Problem(Severity.NOTE, f"Lag is not measured: {unmeasured}", "weft check says what to change."))
    problems += [
        Problem(_SEVERITY[finding.level], f"{finding.check}: {finding.text}", finding.hint, "checks", finding.guide)
        for finding in findings
        if finding.level in _SEVERITY
    ]
    return sorted(problems, key=lambda problem: problem.severity)


def _part_problems(parts: Sequence[PartState], streams: Sequence[StreamRow]) -> Iterator[Problem]:
    is_alive = any(part.runs for part in parts) or any(stream.writer == "live" for stream in streams)
    if parts and not is_alive:
        yield Problem(
            Severity.WARNING,
            f"No part of the pipeline runs: {_describe_backlog(streams)}",
            "Start it again: weft run continues where its commits end. If it runs on another machine, look there: its "
            "writers have no heartbeats.",
        )
    waiting = {stream.name for stream in streams if stream.outage}  # `_stream_problems` reports these
    working = {stream.name for stream in streams if stream.writer == "live"}  # on another machine, perhaps
    for part in parts:
        if part.is_lost and part.part not in working:
            title = f"{part.part} has stopped for good: {part.error}"
            yield Problem(Severity.CRITICAL, title, "Mend the cause, and start weft run again.")
        elif part.error and is_alive and part.part not in waiting | working:
            title = f"{part.part}: {part.error}" + ("" if part.has_worked else "; it has never worked")
            yield Problem(Severity.WARNING, title, "It is tried again. weft check and weft doctor say more.")


def _describe_backlog(streams: Sequence[StreamRow]) -> str:
    """Say how many messages the brokers have that the table does not have yet."""
    words = [f"{counted(stream.lag, 'message')} of {stream.name}" for stream in streams if stream.lag]
    silent = [f"the brokers of {stream.name} do not answer" for stream in streams if stream.outage]
    if words:
        return "; ".join([f"not stored: {', '.join(words)}", *silent])
    is_known = any(stream.lag is not None for stream in streams)
    return "; ".join(silent) or ("nothing waits in its topics" if is_known else "what waits is not known yet")


def _clock_problems(look: Look) -> Iterator[Problem]:
    if look.clock_lead_ms:
        yield Problem(
            Severity.WARNING,
            f"The newest entry of the table is {duration(look.clock_lead_ms / 1000)} ahead of this machine's clock",
            "Correct the clocks of all machines. Until then name past snapshots by cuts and savepoints, not by times.",
            "timeline",
        )


def _table_problems(look: Look) -> Iterator[Problem]:
    measures = look.measures
    factor = measures.read_amplification or 1.0
    oldest_ms = min(look.waiting_since.values(), default=look.at_ms)
    waited = (look.at_ms - oldest_ms) / 1000  # the alert waits for the same time before it fires
    if waited > BEHIND_SECONDS and (factor > AMPLIFICATION or measures.commits_waiting > WAITING_COMMITS):
        yield Problem(
            Severity.WARNING,
            f"Compaction does not keep up: {measures.commits_waiting:,} commits wait, the oldest for "
            f"{duration(waited)}, and reads fetch {factor:.1f} times the bytes of their base",
            f"{ALERT_TEXTS['WeftCompactionBehind']}. Run weft compact, or give the compaction service more.",
            "files",
        )
    elif measures.events_waiting and not measures.base_rows and measures.commits_waiting > 1:
        yield Problem(
            Severity.NOTE,
            f"The table was never compacted: {measures.commits_waiting:,} commits are merged by each read",
            "weft run compacts by itself; without it run weft compact.",
            "files",
        )


def _stream_problems(stream: StreamRow) -> Iterator[Problem]:
    name = f"Stream {stream.name}"
    if stream.outage:
        yield Problem(Severity.WARNING, f"{name}: {stream.outage}", ALERT_TEXTS["WeftOutage"])
    if stream.writer == "silent" and stream.heartbeat_at_ms is not None:
        yield Problem(
            Severity.CRITICAL,
            f"{name}: its writer is silent for {age(stream.heartbeat_at_ms)}; it died or is paused",
            "Start it again: weft run continues where its commits end.",
            "timeline",
        )
    idle = stream.idle_seconds
    if stream.lag and idle is not None and idle > STUCK_SECONDS + stream.trigger_seconds:
        yield Problem(
            Severity.CRITICAL,
            f"{name} has {stream.lag:,} messages to commit, and has committed nothing for {duration(idle)}",
            ALERT_TEXTS["WeftNoCommits"],
        )
    elif stream.lag is not None and stream.lag > LAGGING:
        yield Problem(Severity.WARNING, f"{name} lags by {stream.lag:,} messages", ALERT_TEXTS["WeftLagGrows"])
    elif stream.freshness is not None and stream.freshness > STALE_SECONDS + stream.trigger_seconds:
        yield Problem(
            Severity.WARNING,
            f"{name} is {duration(stream.freshness)} behind its topic",
            ALERT_TEXTS["WeftNotFresh"],
        )
    if stream.dead_letters:
        yield Problem(
            Severity.WARNING,
            f"{name} could not store {counted(stream.dead_letters, 'message')}",
            f"{ALERT_TEXTS['WeftDeadLetters']} Mend the cause, then replay them.",
            "letters",
        )
    if stream.unordered:
        yield Problem(
            Severity.WARNING,
            f"{name} left out {counted(stream.unordered, 'row')} without an ordering value in the last 10 minutes",
            ALERT_TEXTS["WeftUnorderedRows"],
            "timeline",
            "deploy/docs/modelling.md#orderings",
        )
    if stream.writer != "closed" and stream.recent_starts > STARTS:
        yield Problem(
            Severity.WARNING,
            f"{name}: its writer was started {stream.recent_starts} times in the last 15 minutes",
            "The last lines of its log are in the status of weft run.",
            "timeline",
        )


def _reference_problems(look: Look) -> Iterator[Problem]:
    for reference in look.overview.references:
        if reference.problem:
            yield Problem(Severity.CRITICAL, reference.problem, reference.hint, guide=reference.guide)

"""The verdict of the soak with a real broker: one check for each thing that must hold at the end, with its figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.download_cache import Unavailable
from tests.soak.lanes import services_of
from tests.soak.real.alerts import fired, judge_alerts
from tests.soak.real.answers import Answers
from tests.soak.real.feed import expected
from tests.soak.real.letters import letter_errors
from tests.soak.real.memory import Memory
from tests.soak.real.topics import FORMATS
from tests.soak.run import Verdict, differences
from weft import Table

if TYPE_CHECKING:
    from tests.soak.real.run import Soak

MAX_AMPLIFICATION: Final = 20.0
"""Of this table of some hundred rows, whose base is smaller than a few log files."""
LAST_AMPLIFICATION: Final = 3.0
"""At the end, without new messages: the limit of the alert WeftCompactionBehind."""
RESTARTS_OF_LOOP: Final = 3
"""The alert WeftCrashLoop may fire for a part that was disturbed so often; `increase` extrapolates."""
ACCEPTED_FAILURES: Final = 0.2
"""Share of scrapes that may fail; ``weft run`` is restarted a few times."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold.

    Attributes:
        name: What must hold.
        figures: What was found, in words.
        wrong: What is wrong; empty if it holds.
    """

    name: str
    figures: str
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {'NO' if self.wrong else 'yes'} ({self.figures})"


def judge(soak: Soak) -> Verdict:
    """Compare what is there with what must be there. ``weft run`` has ended."""
    soak.lanes.refresh()
    checks = [
        *_contents(soak),
        check_lag(soak.last_lag),
        _letters(soak),
        check_memory(soak.memory),
        check_amplification([value for _, value in soak.amplification]),
        check_queries(soak.answers),
        check_scrapes(soak.series.scrapes, soak.series.unanswered),
        _alerts(soak),
        check_events(soak.tally, soak.wanted_events, soak.wrong),
    ]
    wrong = tuple(dict.fromkeys(error for check in checks for error in check.wrong))
    return Verdict(wrong, (*_report(soak), "; ".join(map(str, checks))))


def _contents(soak: Soak) -> Iterator[Check]:
    wanted = expected(soak.feeds, soak.changes)
    table = Table.open(soak.table.uri)
    wrong = differences("the table", table.snapshot().to_arrow(), wanted)
    report = table.verify()
    findings = tuple(str(finding) for finding in (*report.errors, *report.warnings))
    table.compact()
    wrong += differences("the compacted table", table.snapshot().to_arrow(), wanted)
    yield Check("equal to the oracle", f"{len(wanted)} rows, also compacted", tuple(wrong))
    events = {stream: feed.events for stream, feed in soak.feeds.items()}
    found = soak.lanes.events()
    twice = () if found == events else (f"live commits hold {found} events of {events} messages",)
    yield Check("each event in one live commit", f"{sum(found.values())} of {sum(events.values())}", twice)
    yield Check("verify finds nothing", f"{len(findings)} findings", findings)


def check_lag(lag: Mapping[str, float | None]) -> Check:
    """Every writer has reported lag 0 at the end."""
    late = {stream: lag.get(stream) for stream in FORMATS if lag.get(stream) != 0}
    wrong = (f"not every writer has reported lag 0 at the end: {late}",) if late else ()
    return Check("lag 0", f"{len(FORMATS) - len(late)} of {len(FORMATS)} writers", wrong)


def _letters(soak: Soak) -> Check:
    sent = [message for feed in soak.feeds.values() for message in feed.bad]
    letters = list(read_letters(soak))
    name = f"dead letters {len(letters)} of {len(sent)} bad messages"
    return Check(name, "and no others; bytes and positions are those sent", tuple(letter_errors(letters, sent)))


def read_letters(soak: Soak) -> Iterator[dict[str, Any]]:
    """All dead letters of the table."""
    for file in (soak.folder / "table_dead_letters").rglob("*.jsonl"):
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def check_memory(memory: Memory) -> Check:
    """No process grows in the second half of its life. A soak of some minutes has processes to judge."""
    lives = memory.lives()
    most = max(lives, key=lambda life: life.after - life.before, default=None)
    shown = f"{len(lives)} processes judged"
    if most is not None:
        shown += f", the largest growth is {most.after - most.before:+.0f} MiB of {most.before:.0f}: {most.role}"
    return Check("memory flat", shown, tuple(memory.wrong()))


def check_amplification(samples: Sequence[float]) -> Check:
    """Read amplification is bounded, and compaction brings it back."""
    highest, last = max(samples, default=0.0), samples[-1] if samples else 0.0
    wrong = []
    if not samples:
        wrong.append("read amplification was never measured")
    if highest > MAX_AMPLIFICATION:
        wrong.append(f"read amplification was {highest:.1f}, more than {MAX_AMPLIFICATION:.0f}")
    if last > LAST_AMPLIFICATION:
        wrong.append(f"read amplification was {last:.1f} at the end, more than {LAST_AMPLIFICATION:.0f}")
    return Check("read amplification bounded", f"at most {highest:.1f}, {last:.1f} at the end", tuple(wrong))


def check_queries(answers: Answers) -> Check:
    """Queries were answered, each with the rows of one moment."""
    shown = f"{answers.count}, {answers.expired} of them of an expired snapshot"
    never = () if answers.count > answers.expired else ("no query was answered",)
    return Check("queries right", shown, (*never, *answers.wrong))


def check_scrapes(scrapes: int, unanswered: int) -> Check:
    """The metrics were scraped throughout."""
    few = unanswered > scrapes * ACCEPTED_FAILURES or scrapes == 0
    wrong = (f"{unanswered} of {scrapes} scrapes were not answered",) if few else ()
    return Check("scraped throughout", f"{scrapes - unanswered} of {scrapes} scrapes answered", wrong)


def _alerts(soak: Soak) -> Check:
    required, allowed = _wanted_alerts(soak)
    try:
        found = fired(soak.series, soak.folder)
    except Unavailable as why:
        return Check("alerts", f"not checked: {why}")
    shown = ", ".join(" ".join(alert).strip() for alert in sorted(found))
    name = f"alerts {len(found & required.keys())} of {len(required)} that must fire"
    return Check(name, f"promtool: {shown}", tuple(judge_alerts(found, required, allowed)))


def _wanted_alerts(soak: Soak) -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """Alerts that must have fired, with the reason, and those that may."""
    required = {("WeftDeadLetters", stream): "it had bad messages" for stream in FORMATS}
    required |= {("WeftCrashLoop", part): "it was killed again and again" for part in soak.loops}
    required |= {("WeftStoppedForGood", part): "its topic was created again" for part in soak.refused}
    if soak.outages:
        required |= {("WeftOutage", stream): "the broker was away for minutes" for stream in FORMATS}
    often = {part for part, count in soak.disturbed.items() if count >= RESTARTS_OF_LOOP}
    return required, {("WeftCrashLoop", part) for part in often}


def check_events(tally: Mapping[str, int], wanted: Iterable[str], wrong: Iterable[str]) -> Check:
    """Every event has happened, and each step of it as expected."""
    missing = tuple(f"{name} has not happened" for name in wanted if not tally.get(name))
    shown = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(tally.items()))
    return Check("every event", shown, (*missing, *wrong))


def _report(soak: Soak) -> Iterator[str]:
    done = services_of(soak.table)
    sent = {stream: len(feed.sent) for stream, feed in soak.feeds.items()}
    yield f"{sum(sent.values())} messages {sent} in {', '.join(FORMATS.values())}"
    yield f"{soak.lanes.commits} commits, {done.compactions} compactions, {done.cleaned_files} files cleaned"
    yield f"killed: {', '.join(f'{part} {count}' for part, count in sorted(soak.kills.items()))}"
    steps = soak.amplification[:: max(1, len(soak.amplification) // 12)]
    yield f"read amplification: {' '.join(f'{value:.1f}' for _, value in steps)}"
    yield "resident memory:"
    yield from soak.memory.report()

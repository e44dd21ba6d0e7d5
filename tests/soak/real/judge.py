"""The verdict of the soak with a real broker: the table against the oracle, dead letters, memory, alerts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from storage import Table
from tests.deploy.tools import Unavailable
from tests.soak.lanes import services_of
from tests.soak.real.alerts import fired, judge_alerts
from tests.soak.real.feed import expected
from tests.soak.real.topics import FORMATS
from tests.soak.run import Verdict, differences

if TYPE_CHECKING:
    from tests.soak.real.run import Soak

MAX_AMPLIFICATION: Final = 20.0
"""Of this table of some hundred rows, whose base is smaller than a few log files."""


def judge(soak: Soak) -> Verdict:
    """Compare what is there with what must be there. ``weft run`` has ended."""
    wrong = [*soak.wrong, *soak.answers.wrong]
    if not soak.lag_zero:
        wrong.append("not every writer has reported lag 0")
    wanted = expected(soak.feeds, soak.changes)
    events = {stream: feed.events for stream, feed in soak.feeds.items()}
    soak.lanes.refresh()
    if soak.lanes.events() != events:
        wrong.append(f"live commits hold {soak.lanes.events()} events of {events} messages")
    table = Table.open(soak.table.uri)
    wrong += differences("the table", table.snapshot().to_arrow(), wanted)
    wrong += _letters(soak)
    wrong += _verified(soak)
    table.compact()
    wrong += differences("the compacted table", table.snapshot().to_arrow(), wanted)
    wrong += soak.memory.wrong()
    highest = max(soak.amplification, default=0.0)
    if highest > MAX_AMPLIFICATION:
        wrong.append(f"read amplification was {highest:.1f}, more than {MAX_AMPLIFICATION:.0f}")
    try:
        alerts = fired(soak.series, soak.folder)
    except Unavailable as why:
        shown = f"not checked: {why}"
    else:
        wrong += judge_alerts(alerts, *_wanted_alerts(soak))
        shown = ", ".join(" ".join(alert).strip() for alert in sorted(alerts))
    return Verdict(tuple(dict.fromkeys(wrong)), tuple(_report(soak, len(wanted), shown)))


def _wanted_alerts(soak: Soak) -> tuple[dict[tuple[str, str], str], set[str]]:
    """Alerts that must have fired, with the reason, and names of those that may."""
    required = {("WeftDeadLetters", stream): "it had bad messages" for stream in FORMATS}
    required |= {("WeftCrashLoop", part): "it was killed again and again" for part in soak.loops}
    shaken = soak.tally["recreate_topic"] or any(count > 1 for count in soak.kills.values())
    return required, {"WeftCrashLoop"} if shaken else set()


def _letters(soak: Soak) -> Iterator[str]:
    """Every bad message must be one dead letter, and nothing else."""
    folder = soak.folder / "table_dead_letters"
    found = Counter(json.loads(line)["key"] for file in folder.rglob("*.jsonl") for line in file.open(encoding="utf-8"))
    sent = Counter(key for feed in soak.feeds.values() for key in feed.bad)
    for key, count in sorted((sent - found).items(), key=str)[:5]:
        yield f"bad message {key} is missing in the dead letters ({count} times)"
    for key, count in sorted((found - sent).items(), key=str)[:5]:
        yield f"{key} is in the dead letters {count} times too often"


def _verified(soak: Soak) -> Iterator[str]:
    report = Table.open(soak.table.uri).verify()
    yield from (str(finding) for finding in (*report.errors, *report.warnings))


def _report(soak: Soak, rows: int, alerts: str) -> Iterator[str]:
    done = services_of(soak.table)
    sent = {stream: len(feed.sent) for stream, feed in soak.feeds.items()}
    bad = sum(len(feed.bad) for feed in soak.feeds.values())
    yield f"{sum(sent.values())} messages {sent}, {bad} of them bad; {rows} rows; seen: {dict(soak.tally)}"
    yield f"{soak.lanes.commits} commits, {done.compactions} compactions, {done.cleaned_files} files cleaned"
    yield f"{soak.answers.count} queries, {soak.answers.expired} of them of an expired snapshot"
    yield f"{soak.series.scrapes} scrapes; read amplification at most {max(soak.amplification, default=0.0):.1f}"
    yield f"alerts that fired: {alerts}"
    yield "resident memory in MiB:"
    yield from soak.memory.report()

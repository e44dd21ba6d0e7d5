"""The demo's verdict as one page: no network, no scripts; charts are inline SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from storage.plural import counted
from streams.demo.samples import Sample, freshness, lag, throughput

Line = Sequence[tuple[float, float]]

_WIDTH: Final = 880
_HEIGHT: Final = 220
_LEFT: Final = 70
_BOTTOM: Final = 28
_MARGIN: Final = 12
_TICKS: Final = 4
_DASHES: Final = ("", "7 4", "2 3", "10 3 2 3", "1 2")
"""Lines differ in their dashes, too: not everybody sees all colours."""
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>weft demo</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>
:root {{ --ink: #1c2733; --page: #fff; --dim: #5b6875; --line: #d5dce3; --yes: #0b6b3a; --no: #a8201a;
  --c0: #0b62a8; --c1: #b4540a; --c2: #0b6b3a; --c3: #7a3fa0; --c4: #8a6d00; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --page: #10161c; --dim: #9aa7b4; --line: #313c47;
  --yes: #4cc38a; --no: #ff8a80; --c0: #6cb6ff; --c1: #f0a060; --c2: #4cc38a; --c3: #c79bf2; --c4: #e3c34b; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 920px; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.yes {{ color: var(--yes); }} .no {{ color: var(--no); }} .dim {{ color: var(--dim); }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: var(--dim); font-size: 12px; }}
.axis {{ stroke: var(--line); }} .event {{ stroke: var(--dim); stroke-dasharray: 3 3; }}
.line {{ fill: none; stroke-width: 1.8; }} {lines}
table {{ border-collapse: collapse; }} th, td {{ text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid
  var(--line); font-weight: normal; }} th {{ color: var(--dim); }} td {{ overflow-wrap: anywhere; }}
</style></head><body>
{body}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page says.

    Attributes:
        equal: Whether the table equals Spark's join.
        verdict: The same in words.
        seconds: From the first message until the table had all, or until the run ended early.
        streams: Names of the streams.
        samples: What was measured meanwhile.
        events: What happened, with the seconds since the beginning.
        figures: Further results, by name.
        settings: Versions and settings, by name.
    """

    equal: bool
    verdict: str
    seconds: float
    streams: Sequence[str]
    samples: Sequence[Sample]
    events: Sequence[tuple[float, str]]
    figures: Mapping[str, str]
    settings: Mapping[str, str]


def report_html(facts: Facts) -> str:
    """The page."""
    charts = (
        ("Throughput", "messages a second, of each stream", throughput),
        ("Lag", "messages that the topic has and the table lacks", lag),
        ("Freshness", "seconds by which the table is behind the topic", freshness),
    )
    parts = [
        f'<h1 class="{"yes" if facts.equal else "no"}">{escape(facts.verdict)}</h1>',
        f'<p class="dim">{escape(_total(facts))}</p>',
    ]
    for title, unit, of in charts:
        lines = {name: of(facts.samples, name) for name in facts.streams}
        parts.append(f'<h2>{title} <span class="dim">{unit}</span></h2>')
        parts.append(chart(f"{title}: {unit}", lines, facts.events))
    parts.append(f"<h2>Results</h2>{_table(facts.figures)}")
    parts.append(f"<h2>Versions and settings</h2>{_table(facts.settings)}")
    styles = " ".join(
        f".s{number} {{ stroke: var(--c{number}); stroke-dasharray: {dash or 'none'}; }}"
        for number, dash in enumerate(_DASHES)
    )
    return _PAGE.format(lines=styles, body="\n".join(parts))


def chart(title: str, lines: Mapping[str, Line], events: Sequence[tuple[float, str]]) -> str:
    """Lines over the seconds since the beginning, as SVG.

    Args:
        title: For people who do not see it.
        lines: Points (seconds, value) by name.
        events: Vertical lines: (seconds, text).
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        return '<p class="dim">nothing was measured</p>'
    last = max(1.0, *(at for at, _ in points))
    top = _round_up(max(value for _, value in points))

    def x(at: float) -> float:
        return _LEFT + at / last * (_WIDTH - _LEFT - _MARGIN)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _MARGIN)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 24}" role="img" aria-label="{escape(title)}">']
    for tick in range(_TICKS + 1):
        value, at = top * tick / _TICKS, last * tick / _TICKS
        level = f"{y(value):.1f}"
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _MARGIN}" y1="{level}" y2="{level}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.10g}</text>')
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{at:.0f} s</text>')
    for at, text in events:
        if at <= last:
            place = f"{x(at):.1f}"
            parts.append(f'<line class="event" x1="{place}" x2="{place}" y1="{_MARGIN}" y2="{_HEIGHT - _BOTTOM}"/>')
            parts.append(f'<text x="{x(at) + 4:.1f}" y="{_MARGIN + 10}">{escape(text)}</text>')
    for number, (name, line) in enumerate(lines.items()):
        style, left = f"line s{number % len(_DASHES)}", _LEFT + number * 150
        drawn = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)
        parts.append(f'<polyline class="{style}" points="{drawn}"/>')
        parts.append(f'<line class="{style}" x1="{left}" x2="{left + 26}" y1="{_HEIGHT + 12}" y2="{_HEIGHT + 12}"/>')
        parts.append(f'<text x="{left + 32}" y="{_HEIGHT + 16}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _round_up(value: float) -> float:
    """A round number that is not smaller."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next(size * step for step in (1, 2, 4, 6, 8, 10) if size * step >= value)


def _total(facts: Facts) -> str:
    messages = sum(facts.samples[-1].committed.values()) if facts.samples else 0
    rate = messages / facts.seconds if facts.seconds > 0 else 0.0
    return f"{counted(messages, 'message')} in {facts.seconds:.1f} s, {rate:,.0f} a second"


def _table(values: Mapping[str, str]) -> str:
    rows = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in values.items())
    return f"<table>{''.join(rows)}</table>"

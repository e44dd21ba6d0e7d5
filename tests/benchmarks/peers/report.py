"""The figures as Markdown tables: seconds, and in brackets ratios to plain Parquet in the same process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.peers.cost import cpu_name
from tests.benchmarks.peers.task import HOUR, TABLE, WRITERS, Outcome

_MEGA: Final = 1_000_000
_TICK: Final = 0.01  # CPU seconds are not counted more finely
Figures = Mapping[str, Any]
Columns = Mapping[str, Callable[[Figures], str]]


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A table for each part that was asked for, with a row for each system, and lines about the machine."""
    tables = []
    for part, title, columns in ((TABLE, _TABLE_TITLE, _TABLE), (WRITERS, _WRITERS_TITLE, _WRITERS)):
        of_part = [outcome for outcome in outcomes if outcome.part == part]
        if of_part:
            tables.append(_table(title, columns, [(outcome, "", outcome.figures) for outcome in of_part]))
    hours = [outcome for outcome in outcomes if outcome.part == HOUR]
    if hours:
        rows = [
            (outcome, kind, figures) for outcome in hours for kind, figures in (outcome.figures or {"": {}}).items()
        ]
        tables.append(_table(_HOUR_TITLE, _HOUR, rows))
    notes = [f"{outcome.system}: not the newest release, {outcome.note}" for outcome in outcomes if outcome.note]
    return "\n\n".join([*tables, *dict.fromkeys(notes)])


def _table(title: str, columns: Columns, rows: Sequence[tuple[Outcome, str, Figures]]) -> str:
    lines = [title, "", f"| system | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for outcome, kind, figures in rows:
        if outcome.skipped or outcome.failed:
            why = f"SKIPPED: {outcome.skipped}" if outcome.skipped else f"FAILED: {outcome.failed}"
            cells = [_cell(why), *[""] * (len(columns) - 1)]
        else:
            cells = [column(figures) for column in columns.values()]
        lines.append(f"| {_system(outcome, kind)} | {' | '.join(cells)} |")
    loads = [value for outcome, _, _ in rows if not outcome.skipped for value in outcome.load_average]
    if loads:
        lines += ["", f"Load average of the machine: {min(loads):.1f} to {max(loads):.1f}."]
    return "\n".join(lines)


def _system(outcome: Outcome, kind: str) -> str:
    version = f" {outcome.version}, Spark {outcome.spark}" if outcome.version else ""
    return f"{outcome.system}{version}{': ' + kind if kind else ''}"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _seconds(name: str, plain: str) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        cpu = figures[cpu_name(name)] / max(_TICK, figures[cpu_name(plain)])
        return f"{figures[name]:.2f} s ({figures[name] / figures[plain]:.2f} x; CPU {cpu:.2f} x)"

    return cell


def _bytes(figures: Figures) -> str:
    sizes = [figures[f"bytes after {moment}"] / figures["plain bytes"] for moment in ("load", "commits", "clean")]
    return f"{figures['bytes after load'] / _MEGA:,.0f} MB ({'; '.join(f'{size:.2f}' for size in sizes)} x)"


def _number(name: str) -> Callable[[Figures], str]:
    return lambda figures: f"{figures[name]:,}"


def _megabytes(name: str) -> Callable[[Figures], str]:
    return lambda figures: f"{figures[name] / _MEGA:,.1f} MB"


_TABLE_TITLE: Final = (
    "## One table\n\nIn brackets: to plain Parquet of the same Spark in the same run; seconds, and CPU seconds."
)
_TABLE: Final[Columns] = {
    "load": _seconds("load", "plain load"),
    "commit": _seconds("commit", "plain append"),
    "dirty query": _seconds("dirty sums", "plain sums beside dirty"),
    "dirty, every row": _seconds("dirty rows", "plain rows beside dirty"),
    "compacted query": _seconds("compacted sums", "plain sums beside compacted"),
    "compacted, every row": _seconds("compacted rows", "plain rows beside compacted"),
    "compaction": _seconds("compaction", "plain load"),
    "bytes (loaded; with commits; compacted)": _bytes,
    "wrong rows (dirty; compacted)": lambda figures: (
        f"{figures['wrong rows dirty']:,}; {figures['wrong rows compacted']:,}"
    ),
}
_WRITERS_TITLE: Final = "## Two writers at the same time"
_WRITERS: Final[Columns] = {
    "failed commits": lambda figures: f"{figures['failed']} of {figures['commits']}",
    "failed when sent again, by themselves": _number("failed again"),
    "wrong rows": _number("wrong rows"),
    "cause": lambda figures: _cell("; ".join(figures["causes"])),
}
_HOUR_TITLE: Final = "## Compaction in an hour with one hot group"
_HOUR: Final[Columns] = {
    "table": _megabytes("bytes after load"),
    "committed": _megabytes("bytes committed"),
    "compactions": _number("compactions"),
    "written by compactions": lambda figures: (
        f"{_megabytes('bytes written')(figures)} ({figures['bytes written'] / figures['bytes committed']:.2f} x)"
    ),
    "query afterwards": _seconds("sums", "plain sums"),
    "after clean-up": _megabytes("bytes after clean"),
    "wrong rows": _number("wrong rows"),
}

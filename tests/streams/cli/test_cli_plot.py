"""``weft show --plot``: what a picture in the terminal says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.pipelines import weft, weft_output
from tests.streams.support.terminal import ESCAPE, run
from weft import Table
from weft.storage.services.inspect.inspect import Inspection, TimelineEntry
from weft.streams.cli.plot import _LEVELS, draw_plot


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    table.compact()
    append(table, orders(4))
    append(table, payments(1, 2), "payments")
    return table


def commit(at_ms: int, rows: int, lane: str = "orders", seq: int = 2) -> TimelineEntry:
    return TimelineEntry(at_ms, lane, seq, "DATA", rows, 1, 100, "", "")


def lines_of(text: str, title: str) -> dict[str, str]:
    """The lines of a section by the name at their beginning."""
    section = text.split(f"\n{title}\n")[1].split("\n\n", maxsplit=1)[0]
    return {line.split()[0]: line[15:] for line in section.splitlines() if line.strip()}


def test_a_picture_has_each_stream_and_what_waits(table: Table) -> None:
    text = weft_output("show", table.uri, "--plot")
    assert lines_of(text, "rows")["orders"].split()[-1] == "4"
    assert lines_of(text, "commits")["payments"].split()[-1] == "1"
    assert lines_of(text, "services")["compactions"].split()[-1] == "1"
    waiting = lines_of(text, "rows that wait for compaction now")
    assert (waiting["orders"].split()[-1], waiting["payments"].split()[-1]) == ("1", "2")
    assert max(map(len, text.splitlines())) <= 120


def test_columns_are_times_and_heights_are_rows(table: Table) -> None:
    """Ten rows at the beginning, 80 in the middle, none since."""
    inspected = Inspection(table.uri)
    entries = [commit(0, 10), commit(500_000, 80)]
    drawn = draw_plot(inspected.overview(), inspected.lanes(), entries, width=80, now_ms=1_000_000)
    text = "\n".join(line.plain for line in drawn)
    bars = lines_of(text, "rows")["orders"].rpartition(" ")[0]
    width = 80 - 14 - 24 - 2
    assert bars.rstrip() == _LEVELS[1] + " " * (width // 2 - 1) + _LEVELS[8]
    ages = lines_of(text, "age of the newest commit")["orders"]
    assert ages.endswith("8.3 min, most 8.3 min")
    assert ages[0] == ages[width // 2 + 1] == _LEVELS[1]  # just after a commit
    assert ages[width - 1] == _LEVELS[8]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_it_fits_the_terminal_and_needs_no_colours(table: Table, columns: int) -> None:
    shown = run([["show", table.uri, "--plot"]], columns=columns, output_too=True, given={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[\d;]*3\d", shown.errors)  # no colour
    lines = shown.words.split("\r\n")
    assert "rows that wait for compaction now" in lines
    assert max(map(len, lines)) <= columns
    coloured = run([["show", table.uri, "--plot"]], columns=columns, output_too=True)
    words = [re.sub(r"[▁-█]+", "#", line).split()[:1] for line in lines]
    assert [re.sub(r"[▁-█]+", "#", line).split()[:1] for line in coloured.words.split("\r\n")] == words
    assert ESCAPE in coloured.errors


def test_a_table_without_commits_says_so(tmp_path: Path) -> None:
    assert "nothing is committed yet" in weft_output("show", Table.create(tmp_path / "t", SHOP).uri, "--plot")


def test_a_picture_is_not_json(table: Table) -> None:
    assert weft("show", table.uri, "--plot", "--json").exit_code == 2
    assert weft("show", table.uri, "files", "--plot").exit_code == 2

"""Progress of commands: on a real terminal a bar with rate and remaining time; elsewhere nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.terminal import ESCAPE, Shown, run
from weft import Table, verify_table
from weft.storage.services.steps.progress import EVERY, Stage, counted

MANY = {**SHOP, "buckets": 64}


def make_table(folder: Path, *, rows: int = 20_000, commits: int = 80) -> str:
    """A table with enough log files and file groups that each command has several stages."""
    table = Table.create(folder / "wide", MANY)
    with table.writer("orders") as writer:
        writer.append(orders(*range(rows)))
        for number in range(commits):
            writer.append(orders(number, ts=2 + number))
    append(table, payments(*range(0, rows, 3)), "payments")
    table.compact()
    append(table, orders(*range(0, rows, 2), status="late", ts=1000))
    return table.uri


def commands(folder: Path, uri: str) -> list[Sequence[str | Path]]:
    keys, source = folder / "keys.csv", folder / "source.parquet"
    keys.write_text("id\n1\n2\n")
    pq.write_table(pa.table({"id": range(50_000), "at": range(50_000), "v": ["x"] * 50_000}), source)
    imported = str(folder / "imported")
    return [
        ["compact", uri, "--fold"],
        ["compact", uri],
        ["verify", uri],
        ["publish", uri, "--delta"],
        ["import", source, imported, "--key", "id", "--ordering", "at"],
        ["changes", uri, "--since", "earliest"],
        ["expire-rows", uri, "ots", "--before", "1", "--yes"],
        ["forget-deletes", uri, "order", "--before", "1", "--yes"],
        ["alter", "set-ttl", uri, "--rows", "3650 days"],
        ["apply-ttl", uri],
        ["clean", uri, "--retain", "0"],
        ["erase", uri, "--keys", keys, "--expire-snapshots", "--release-savepoints", "--yes"],
    ]


@pytest.fixture(scope="module")
def on_a_terminal(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("terminal")
    return run(commands(folder, make_table(folder)))


@pytest.mark.parametrize(
    ("what", "unit"),
    [
        ("folding", "[kM]?B"),
        ("compacting", "[kM]?B"),
        ("verifying", "objects"),
        ("publishing", "files"),
        ("importing", "rows"),
        ("rewriting", "[kM]?B"),
        ("looking for old rows", "objects"),
        ("cleaning", "objects"),
        ("reading back", "objects"),
    ],
)
def test_each_command_shows_how_much_how_fast_and_the_remaining_time(
    on_a_terminal: Shown, what: str, unit: str
) -> None:
    line = rf"{what} [━╸╺ ]+ [\d.,]+ ?({unit})?.* of [\d.,]+ {unit}, [\d.,]+( {unit})?/s, \d+:\d\d left"
    assert re.search(line, on_a_terminal.words), on_a_terminal.words[-4000:]


def test_what_has_no_known_end_shows_the_elapsed_time(on_a_terminal: Shown) -> None:
    assert re.search(r"looking for the keys [━╸╺ ]+ (\d+ objects, [\d,]+/s, )?\d+:\d\d", on_a_terminal.words)
    assert re.search(r"comparing [━╸╺ ]+ \d+:\d\d", on_a_terminal.words)


def test_no_bar_is_wider_than_the_terminal_and_each_is_removed(on_a_terminal: Shown) -> None:
    lines = re.split(r"[\r\n]+", on_a_terminal.words)
    assert max(map(len, lines)) <= 80
    assert on_a_terminal.errors.rstrip().endswith((f"{ESCAPE}[2K", f"{ESCAPE}[?25h"))


def test_results_are_the_same_as_in_a_pipe_where_nothing_is_shown(on_a_terminal: Shown, tmp_path: Path) -> None:
    piped = run(commands(tmp_path, make_table(tmp_path)), terminal=False)
    assert piped.errors == ""
    assert ESCAPE not in piped.output

    def told(text: str) -> list[str]:
        return [re.sub(r"[\d.,]+|cut:\S*|/\S+", "#", line) for line in text.splitlines() if "──" not in line]

    assert len(told(piped.output)) == len(told(on_a_terminal.output))
    assert ESCAPE not in on_a_terminal.output


def test_a_pipe_that_is_said_to_have_colours_has_no_bar(tmp_path: Path) -> None:
    uri = make_table(tmp_path, rows=1_000, commits=3)
    assert run([["compact", uri]], terminal=False, given={"FORCE_COLOR": "1"}).errors == ""


@pytest.mark.parametrize("given", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_nothing_is_shown_where_it_is_not_wanted(tmp_path: Path, given: dict[str, str]) -> None:
    uri = make_table(tmp_path, rows=1_000, commits=3)
    shown = run([["compact", uri], ["verify", uri]], given=given)
    assert shown.errors == ""
    assert "base files written" in shown.output


@pytest.mark.parametrize("flag", ["--quiet", "--no-progress"])
def test_a_flag_switches_it_off(tmp_path: Path, flag: str) -> None:
    uri = make_table(tmp_path, rows=1_000, commits=3)
    assert run([["compact", uri, flag], ["verify", uri, flag]]).errors == ""


def test_stages_of_the_core_are_plain_and_few(tmp_path: Path) -> None:
    """Whoever calls a service gets facts: each stage grows to its total, and reports are fewer than objects."""
    uri = make_table(tmp_path, rows=2_000, commits=3 * EVERY)
    table = Table.open(uri)
    stages: list[Stage] = []
    result = table.clean(progress=stages.append)
    objects = sum(tally.files for tally in (*result.deleted.values(), *result.kept.values()))
    assert stages[-1] == Stage("cleaning", objects, objects, "objects")
    assert [stage.done for stage in stages] == sorted(stage.done for stage in stages)
    assert 3 <= len(stages) <= objects / EVERY + 1
    stages.clear()
    table.erase([1, 2], expire_snapshots=True, progress=stages.append)
    assert list(dict.fromkeys(stage.what for stage in stages)) == [
        "looking for the keys",
        "rewriting",
        "cleaning",
        "reading back",
    ]
    assert verify_table(uri).ok
    assert all(stage.total is None or stage.done <= stage.total for stage in stages)


def test_counted_items_are_the_same_items() -> None:
    for number in (0, 1, EVERY, 3 * EVERY + 1):
        stages: list[Stage] = []
        assert list(counted(range(number), stages.append, "x", lambda: None)) == list(range(number))
        assert [stage.done for stage in stages[-1:]] == ([number] if number else [])

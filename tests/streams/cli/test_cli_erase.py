"""``weft erase``: key files, refusals, confirmation, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.support.shop import SHOP, append, contents, orders, payments
from tests.streams.support.pipelines import weft
from weft import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2, 3))
    append(table, payments(1), "payments")
    return table


def ids(table: Table) -> list[int]:
    return [row[0] for row in contents(table)]


def key_file(folder: Path, ending: str, name: str) -> str:
    file = folder / f"keys.{ending}"
    match ending:
        case "parquet":
            pq.write_table(pa.table({name: pa.array([1, 3], pa.int32()), "more": ["a", "b"]}), file)
        case "csv":
            file.write_text(f"more,{name}\na,1\nb,3\n")
        case _:
            file.write_text(f'{{"{name}": 1, "more": [1]}}\n{{"{name}": 3}}\n')
    return str(file)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_erase_removes_the_keys_of_a_file_and_reports_what_it_read_back(
    table: Table, tmp_path: Path, ending: str
) -> None:
    keys = key_file(tmp_path, ending, table.schema.key[0])
    done = weft("erase", table.uri, "--keys", keys, "--expire-snapshots", "--yes", "--note", "ticket 9")
    assert done.exit_code == 0
    assert "2 keys erased up to cut:" in done.stdout
    assert "read back: 1 base" in done.stdout
    assert "not part of the table: Kafka topics" in done.stdout
    assert ids(table) == [2]
    assert "erase of 2 keys: ticket 9" in (tmp_path / "wide").joinpath(
        f"_weft/timeline/table/{table.state().rewritten:020d}.json"
    ).read_text(encoding="utf-8")


def test_erase_is_refused_while_snapshots_have_the_keys(table: Table, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "csv", table.schema.key[0])
    table.savepoint("audit")
    refused = weft("erase", table.uri, "--keys", keys, "--yes")
    assert refused.exit_code == 1
    assert "savepoints audit" in refused.stderr
    assert "--expire-snapshots" in refused.stderr
    assert ids(table) == [1, 2, 3]
    facts = json.loads(
        weft("erase", table.uri, "--keys", keys, "--yes", "--expire-snapshots", "--release-savepoints", "--json").stdout
    )
    assert (facts["keys"], facts["remains"], facts["released"]) == (2, [], ["audit"])


def test_erase_needs_confirmation_and_a_file_that_it_can_read(table: Table, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "csv", table.schema.key[0])
    unconfirmed = weft("erase", table.uri, "--keys", keys, "--expire-snapshots")
    assert unconfirmed.exit_code == 2
    assert "Erase 2 keys from" in unconfirmed.stderr
    for name, text in (("keys.txt", "1"), ("other.csv", "other\n1\n"), ("absent.csv", None)):
        if text is not None:
            (tmp_path / name).write_text(text)
        wrong = weft("erase", table.uri, "--keys", str(tmp_path / name), "--expire-snapshots", "--yes")
        assert wrong.exit_code == 2, wrong.stdout
    assert ids(table) == [1, 2, 3]

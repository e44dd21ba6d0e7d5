"""``weft import``: a proposal, a copy, its report and progress, and refusals that change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tests.storage.imports.sources import ROWS, hudi, paimon, parquet
from tests.streams.support.pipelines import weft
from weft import Table

SEQUENCES = {
    "bucket": "2",
    "merge-engine": "partial-update",
    "fields.ts.sequence-group": "status",
    "fields.paid_ts.sequence-group": "paid",
}
DORIS = """CREATE TABLE orders (id BIGINT, status STRING, ts BIGINT, paid DOUBLE, paid_ts DATETIME)
UNIQUE KEY(id) DISTRIBUTED BY HASH(id) BUCKETS 2
PROPERTIES ("sequence_mapping.ts" = "status", "sequence_mapping.paid_ts" = "paid", "replication_num" = "1")"""


def rows_of(uri: Path) -> list[int]:
    return sorted(Table.open(uri).snapshot().to_arrow(["id"])["id"].to_pylist())


def test_a_dry_run_prints_a_configuration_that_the_import_takes(tmp_path: Path) -> None:
    location = paimon(tmp_path / "source", SEQUENCES)
    proposed = weft("import", location, "--from", "paimon", "--dry-run")
    assert proposed.exit_code == 0
    assert "# fields.ts.sequence-group = status: carried over (groups.ts, ordering: ts)\n" in proposed.stdout
    config = tmp_path / "table.yaml"
    changed = yaml.safe_load(proposed.stdout)
    changed["buckets"] = 4
    config.write_text(yaml.safe_dump(changed))
    done = weft("import", location, tmp_path / "wide", "--from", "paimon", "--config", config)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].endswith(f"are in file://{tmp_path}/wide: it shows 3 rows")
    assert Table.open(tmp_path / "wide").schema.bucket_bits == 2
    assert rows_of(tmp_path / "wide") == [1, 2, 3]
    again = weft("import", location, tmp_path / "wide", "--from", "paimon", "--config", config)
    assert (again.exit_code, "is imported already" in again.stdout) == (0, True)


def test_options_as_text_beside_files(tmp_path: Path) -> None:
    statement = tmp_path / "orders.sql"
    statement.write_text(DORIS)
    alone = weft("import", statement, "--dry-run", "--json")
    found = json.loads(alone.stdout)
    assert found["config"]["groups"]["ts"] == {"columns": ["status", "ts"], "ordering": ["ts"]}
    assert {line["option"]: line["fate"] for line in found["report"]}["replication_num"] == "not needed"
    location = parquet(tmp_path / "source")
    done = weft("import", location, tmp_path / "wide", "--options", statement, "--json")
    assert json.loads(done.stdout)["keys"] == 3
    assert [group.name for group in Table.open(tmp_path / "wide").schema.groups] == ["ts", "paid_ts"]


def test_rows_that_are_merged_and_left_out_are_told(tmp_path: Path) -> None:
    empty = pa.table({field.name: pa.array([9 if field.name == "id" else None], field.type) for field in ROWS.schema})
    location = parquet(tmp_path / "source", pa.concat_tables([ROWS, ROWS, empty]))
    key = ("--key", "id", "--ordering", "ts", "--leave-out", "paid,paid_ts")
    done = weft("import", location, tmp_path / "wide", *key)
    assert done.exit_code == 0, done.output
    assert "3 rows had a key that another row has, which won\n" in done.stdout
    assert "1 row had a key alone, without any value, and are left out\n" in done.stdout
    assert rows_of(tmp_path / "wide") == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{parquet}"], "the location of the new table is missing"),
        (["{parquet}", "{wide}"], "the source declares no primary key"),
        (["{parquet}", "{wide}", "--key", "nope"], "--key: the table has no column 'nope'"),
        (["{parquet}", "{wide}", "--config", "{wide}.yaml"], "cannot read"),
        (["{parquet}", "{wide}", "--config", "x.yaml", "--key", "id"], "--config defines the whole table"),
        (["{parquet}", "{wide}", "--from", "delta"], "the delta table at"),
        (["{wide}", "{wide}", "--key", "id"], "cannot be read: there is no such file or folder"),
        (["{statement}", "{wide}"], "is text without rows"),
        (["{parquet}", "{wide}", "--options", "{wide}.sql"], "cannot read"),
        (["{hudi}", "{wide}", "--from", "hudi", "--ordering", "paid"], "already say how its rows are ordered"),
    ],
)
def test_a_wrong_command_line_changes_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    statement = tmp_path / "orders.sql"
    statement.write_text(DORIS)
    places = {
        "parquet": parquet(tmp_path / "source"),
        "hudi": hudi(tmp_path / "hudi"),
        "wide": tmp_path / "wide",
        "statement": statement,
    }
    refused = weft("import", *(argument.format(**places) for argument in arguments))
    assert refused.exit_code == 2, refused.output
    assert message in refused.stderr
    assert not (tmp_path / "wide").exists()


def test_bad_rows_fail_with_exit_code_1_and_no_table(tmp_path: Path) -> None:
    location = parquet(tmp_path / "source", ROWS.set_column(0, "id", pa.array([1, None, 3], pa.int64())))
    failed = weft("import", location, tmp_path / "wide", "--key", "id")
    assert failed.exit_code == 1
    assert "column 'id': NULL in a key column in 1 of 3 rows" in failed.stderr
    assert weft("show", tmp_path / "wide").exit_code == 1


@pytest.mark.parametrize("key", [("--key", "id", "--key", "status"), ("--key", "id,status")])
def test_a_key_of_several_columns(key: tuple[str, ...], tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 1, 2], "status": ["a", "b", "b"], "paid": [1.0, 2.0, 3.0]})
    location = parquet(tmp_path / "source", rows)
    done = weft("import", location, tmp_path / "wide", *key)
    assert done.exit_code == 0, done.output
    assert Table.open(tmp_path / "wide").schema.key == ("id", "status")
    assert rows_of(tmp_path / "wide") == [1, 1, 2]
    other = weft("import", location, tmp_path / "wide", "--key", "status")
    assert other.exit_code == 1
    assert "was imported with another configuration: key id, status, ordering main: none\n" in other.stderr
    assert rows_of(tmp_path / "wide") == [1, 1, 2]


def test_the_help_names_the_extras() -> None:
    shown = " ".join(weft("import", "--help").stdout.split())
    assert "extra of the format: delta, iceberg, hudi or paimon." in shown

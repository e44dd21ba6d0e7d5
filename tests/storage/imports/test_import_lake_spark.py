"""Imports of Delta and Iceberg tables that Spark wrote: deletes that are stored beside files, and renamed columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests import lake_releases
from tests.storage.imports.foreign_spark import SHOW, Engine, Shown, tell
from tests.storage.imports.imported import check_import, check_read
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import ForeignTable, open_foreign
from weft.storage.imports.translate import Format

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

DELTA: Final = Engine(
    release=lake_releases.DELTA,
    settings={
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    },
    version="DESCRIBE HISTORY {table} LIMIT 1",
)
ICEBERG: Final = Engine(
    release=lake_releases.ICEBERG,
    settings={
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "{place}/lake",
    },
    version="SELECT snapshot_id FROM {table}.refs WHERE name = 'main'",
)
COLUMNS: Final = "id BIGINT, v STRING, x DOUBLE, ts BIGINT, day STRING"
VECTORS: Final = "'delta.enableDeletionVectors'='true'"
BESIDE: Final = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))


MERGE: Final = """MERGE INTO {} t USING (SELECT id, concat('m', id) v FROM range(10, 40)) s ON t.id = s.id
WHEN MATCHED AND s.id % 2 = 0 THEN UPDATE SET v = s.v WHEN MATCHED AND s.id = 11 THEN DELETE
WHEN NOT MATCHED THEN INSERT (id, v, x, ts, day) VALUES (s.id, s.v, 1.0D, 5L, 'd9')"""


def changes(table: str) -> list[str]:
    return [
        f"INSERT INTO {table} SELECT id, concat('a', id), id / 2D, 10L, concat('d', id % 3) FROM range(30)",
        SHOW,
        f"DELETE FROM {table} WHERE id IN (3, 7, 8)",
        SHOW,
        f"UPDATE {table} SET v = NULL, x = x + 100 WHERE id % 4 = 0",
        MERGE.format(table),
        SHOW,
    ]


def renamed(table: str) -> list[str]:
    """Columns get the names of others, which are dropped."""
    return [
        f"ALTER TABLE {table} RENAME COLUMN v TO w",
        f"ALTER TABLE {table} DROP COLUMN x",
        f"ALTER TABLE {table} ADD COLUMNS (x STRING, v INT)",
        f"INSERT INTO {table} (id, w, ts, day, x, v) VALUES (100, 'w', 1, 'd1', 'new', 5)",
        f"DELETE FROM {table} WHERE id = 12",
        SHOW,
    ]


def delta_stories(place: Path, *, every: bool) -> dict[str, list[str]]:
    def story(name: str, options: str, by: str = "", *more: str) -> None:
        partition = f"PARTITIONED BY ({by})" if by else ""
        where = f"LOCATION '{place / name}' TBLPROPERTIES ({options})"
        found[name] = [f"CREATE TABLE {name} ({COLUMNS}) USING delta {partition} {where}", *changes(name), *more]

    found: dict[str, list[str]] = {}
    mapped = VECTORS + ", 'delta.columnMapping.mode'='name'"
    story("some", mapped, "day", *renamed("some"))
    if not every:
        return found
    story("plain", "'a'='b'")
    story("vectors", VECTORS, "", "OPTIMIZE vectors", "DELETE FROM vectors WHERE id = 20", SHOW)
    story("by_name", mapped, "", *renamed("by_name"))
    story("by_id", VECTORS + ", 'delta.columnMapping.mode'='id'", "", *renamed("by_id"))
    story("tracked", VECTORS + ", 'delta.enableRowTracking'='true'")
    story("fed", VECTORS + ", 'delta.enableChangeDataFeed'='true'")
    story("checkpoints", VECTORS + ", 'delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2'")
    widened = "'delta.enableTypeWidening'='true'"
    story(
        "widened", widened, "", "ALTER TABLE widened ADD COLUMNS (i INT)", "INSERT INTO widened (id, i) VALUES (1, 1)"
    )
    found["widened"] += ["ALTER TABLE widened ALTER COLUMN i TYPE BIGINT", SHOW]
    return found


def iceberg_stories(*, every: bool) -> dict[str, list[str]]:
    def story(name: str, version: int, options: str, by: str = "") -> str:
        table = f"lake.d.{name}"
        partition = f"PARTITIONED BY ({by})" if by else ""
        properties = f"'format-version'='{version}', {options}"
        made = f"CREATE TABLE {table} ({COLUMNS}) USING iceberg {partition} TBLPROPERTIES ({properties})"
        found[table] = ["CREATE NAMESPACE IF NOT EXISTS lake.d", made, *changes(table)]
        return table

    found: dict[str, list[str]] = {}
    for name, version in (("positions", 2), ("vectors", 3)):
        table = story(name, version, BESIDE, "day")
        found[table] += renamed(table)
    if not every:
        return found
    for name, version in (("first", 1), ("rewritten", 2), ("third", 3)):
        story(name, version, "'a'='b'")
    story("buckets", 2, BESIDE, "bucket(4, id)")
    story("orc", 2, BESIDE + ", 'write.format.default'='orc'")
    story("avro", 2, BESIDE + ", 'write.format.default'='avro'")
    table = story("upgraded", 2, BESIDE)
    upgrade = f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')"
    found[table] += [upgrade, f"DELETE FROM {table} WHERE id = 1", f"DELETE FROM {table} WHERE id = 2", SHOW]
    table = story("partitions", 2, BESIDE, "day")
    found[table] += [
        f"ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)",
        f"DELETE FROM {table} WHERE id < 3",
        SHOW,
    ]
    table = story("branched", 2, BESIDE)
    found[table] += [f"ALTER TABLE {table} CREATE BRANCH b", f"DELETE FROM {table}.branch_b WHERE id < 9", SHOW]
    return found


REFUSED: Final = {"widened": "TypeWidening", "lake.d.avro": "Delete file format not supported"}
"""Tables that the libraries cannot read."""
EVERY: Final = [pytest.param(False, marks=pytest.mark.extended), pytest.param(True, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("every", EVERY)
def test_an_import_has_the_rows_that_deltas_reader_shows(tmp_path: Path, *, every: bool) -> None:
    for name, states in tell(DELTA, tmp_path, delta_stories(tmp_path, every=every)).items():
        _check("delta", name, str(tmp_path / name), states)


@pytest.mark.parametrize("every", EVERY)
def test_an_import_has_the_rows_that_icebergs_reader_shows(tmp_path: Path, *, every: bool) -> None:
    for table, states in tell(ICEBERG, tmp_path, iceberg_stories(every=every)).items():
        metadata = (tmp_path / "lake" / "d" / table.rsplit(".", 1)[1] / "metadata").glob("v*.metadata.json")
        newest = max(metadata, key=lambda file: int(file.name[1:].partition(".")[0]))
        _check("iceberg", table, str(newest), states)


def _check(kind: Format, name: str, location: str, states: Sequence[Shown]) -> None:
    if name in REFUSED:
        with pytest.raises(InvalidInput, match=REFUSED[name]):
            check_read(open_foreign(kind, location), states[-1].rows)
        return
    newest = open_foreign(kind, location)
    check_read(newest, states[-1].rows)
    check_import(newest, states[-1].rows, ["id"])
    for state in states[:-1]:
        old: ForeignTable = open_foreign(kind, location, version=state.version)
        check_read(old, state.rows)

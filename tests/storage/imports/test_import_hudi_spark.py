"""Imports of Hudi tables that Spark wrote with Hudi's jar: log files that are not compacted above all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests import lake_releases
from tests.storage.imports.foreign_spark import SHOW, Engine, Shown, in_order, tell
from tests.storage.imports.imported import check_import, check_read, read
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import open_foreign

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3_000)]

HUDI: Final = Engine(
    release=lake_releases.HUDI,
    settings={
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    },
)
COLUMNS: Final = "id bigint, v string, x double, ts bigint, day string"
PARTIAL: Final = "org.apache.hudi.common.model.PartialUpdateAvroPayload"
CLEAN: Final = """CALL run_clean(table => 'mor_cleaned', clean_policy => 'KEEP_LATEST_FILE_VERSIONS',
file_versions_retained => 1)"""
MERGE: Final = """MERGE INTO mor_merge t USING (SELECT * FROM VALUES {}) s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET {}, t.ts = s.ts"""
CRASHED: Final = ("mor", "mor_v6", "cow")
"""Tables whose last commit is taken back to what a writer leaves that dies just before it completes."""


def create(place: Path, name: str, kind: str, options: str = "", by: str = "", ordering: str = "ts") -> str:
    properties = [f"'type'='{kind}'", "'primaryKey'='id'", "'hoodie.compact.inline'='false'"]
    properties += [f"'orderingFields'='{ordering}'"] if ordering else []
    properties += [options] if options else []
    partition = f"PARTITIONED BY ({by})" if by else ""
    where = f"TBLPROPERTIES ({', '.join(properties)}) LOCATION '{place / name}'"
    return f"CREATE TABLE {name} ({COLUMNS}) USING hudi {partition} {where}"


def insert(name: str, ids: Iterable[int], value: str, ts: str = "20") -> str:
    """Rows ``(id, value || id, id / 2, ts, day)``; ``ts`` may depend on ``id``."""
    rows = f"SELECT CAST(col1 AS bigint) AS id FROM VALUES {', '.join(f'({number})' for number in ids)}"
    columns = f"id, concat('{value}', id) AS v, id / 2D AS x, CAST({ts} AS bigint) AS ts, concat('d', id % 3) AS day"
    return f"INSERT INTO {name} SELECT {columns} FROM ({rows})"


def changes(name: str) -> list[str]:
    """Inserts, updates of which some are late and lose, deletes, updates in place, and keys that come back."""
    return [
        insert(name, range(20), "a", "10"),
        insert(name, range(5, 15), "b", "IF(id % 2 = 0, 5, 20)"),
        SHOW,
        f"DELETE FROM {name} WHERE id IN (3, 7, 8)",
        SHOW,
        f"UPDATE {name} SET v = NULL, x = x + 100, ts = 30 WHERE id % 4 = 0",
        SHOW,
        insert(name, (7, 8, 40, 41), "c", "25"),
        SHOW,
    ]


def compacted(name: str) -> list[str]:
    """Commits between the plan of a compaction and its run, and after it."""
    return [
        f"CALL run_compaction(op => 'schedule', table => '{name}')",
        insert(name, (1, 2, 50), "e", "50"),
        f"DELETE FROM {name} WHERE id = 5",
        SHOW,
        f"CALL run_compaction(op => 'run', table => '{name}')",
        SHOW,
        f"UPDATE {name} SET v = 'after', ts = 60 WHERE id IN (1, 6)",
        SHOW,
    ]


def stories(place: Path, *, every: bool) -> dict[str, list[str]]:
    found = {
        "mor_some": [
            "SET hoodie.spark.sql.insert.into.operation=upsert",  # of the session, and so of all stories
            create(place, "mor_some", "mor", by="day"),
            *changes("mor_some"),
            *compacted("mor_some"),
        ],
    }
    if not every:
        return found
    kinds = {
        "cow": ("cow", "", "", "ts"),
        "cow_part": ("cow", "", "day", "ts"),
        "mor": ("mor", "", "", "ts"),
        "mor_v6": ("mor", "'hoodie.write.table.version'='6'", "day", "ts"),
        "mor_parquet": ("mor", "'hoodie.logfile.data.block.format'='parquet'", "", "ts"),
        "mor_listed": ("mor", "'hoodie.metadata.enable'='false'", "day", "ts"),
        "mor_cdc": ("mor", "'hoodie.table.cdc.enabled'='true'", "", "ts"),
        "mor_commit": ("mor", "'hoodie.write.record.merge.mode'='COMMIT_TIME_ORDERING'", "", ""),
        "mor_partial": ("mor", f"'payloadClass'='{PARTIAL}'", "", "ts"),
        "mor_bucket": (
            "mor",
            "'hoodie.index.type'='BUCKET','hoodie.index.bucket.engine'='SIMPLE','hoodie.bucket.index.num.buckets'='2'",
            "day",
            "ts",
        ),
    }
    for name, (kind, options, by, ordering) in kinds.items():
        found[name] = [create(place, name, kind, options, by, ordering), *changes(name)]
    found["mor"] += compacted("mor")
    found["mor_merge"] = [
        create(place, "mor_merge", "mor"),
        insert("mor_merge", range(10), "a", "10"),
        "SET hoodie.spark.sql.merge.into.partial.updates=true",
        MERGE.format("(1L, 'p', 20L), (2L, 'q', 5L) AS s(id, v, ts)", "t.v = s.v"),
        SHOW,
        MERGE.format("(1L, 30L), (3L, 25L) AS s(id, ts)", "t.x = 7.0D"),
        "SET hoodie.spark.sql.merge.into.partial.updates=false",
        SHOW,
    ]
    found["mor_replaced"] = [
        create(place, "mor_replaced", "mor", by="day"),
        insert("mor_replaced", range(9), "a", "10"),
        "INSERT OVERWRITE mor_replaced PARTITION (day = 'd1') SELECT 50L, 'o', 1.0D, 1L",
        SHOW,
        "ALTER TABLE mor_replaced DROP PARTITION (day = 'd2')",
        insert("mor_replaced", (0, 2), "u", "50"),
        SHOW,
    ]
    found["mor_clustered"] = [
        create(place, "mor_clustered", "mor"),
        insert("mor_clustered", range(9), "a", "10"),
        insert("mor_clustered", range(4), "b", "20"),
        "CALL run_clustering(table => 'mor_clustered', order => 'x')",
        SHOW,
        insert("mor_clustered", (1,), "after", "50"),
        SHOW,
    ]
    found["mor_cleaned"] = [
        create(place, "mor_cleaned", "mor"),
        *(statement for statement in changes("mor_cleaned") if statement != SHOW),
        "CALL run_compaction(op => 'schedule', table => 'mor_cleaned')",
        "CALL run_compaction(op => 'run', table => 'mor_cleaned')",
        CLEAN,
        SHOW,
    ]
    extended = (
        "SELECT CAST(col1 AS bigint) AS id, 'n' AS {}, 0D AS x, 90L AS ts, 'd' AS day, 'e' AS extra FROM VALUES {}"
    )
    for name, change in (("mor_evolved", "ALTER COLUMN extra COMMENT 'new'"), ("mor_renamed", "RENAME COLUMN v TO w")):
        column = "w" if name == "mor_renamed" else "v"
        found[name] = [
            create(place, name, "mor"),
            "SET hoodie.schema.on.read.enable=true",
            "SET hoodie.avro.schema.validate=false",
            "SET hoodie.datasource.write.schema.allow.auto.evolution.column.drop=true",
            insert(name, range(5), "a", "10"),
            f"ALTER TABLE {name} ADD COLUMNS (extra string)",
            f"INSERT INTO {name} {extended.format('v', '(1L), (9L)')}",
            f"ALTER TABLE {name} {change}",
            f"INSERT INTO {name} {extended.format(column, '(2L), (8L)')}",
            SHOW,
            "SET hoodie.schema.on.read.enable=false",
        ]
    old = f"'hoodie.write.table.version'='6', 'payloadClass'='{PARTIAL}'"
    found["mor_own_merger"] = [create(place, "mor_own_merger", "mor", old), *changes("mor_own_merger")]
    found["cow_dropped"] = [
        create(place, "cow_dropped", "cow", "'hoodie.datasource.write.drop.partition.columns'='true'", "day"),
        insert("cow_dropped", range(9), "a"),
        SHOW,
    ]
    return found


REFUSED: Final = {
    "mor_own_merger": "merges with a merger of its own",
    "mor_renamed": "renamed or dropped with schema-on-read, so hudi-rs would read old files wrongly: v -> w",
    "cow_dropped": "hoodie.datasource.write.drop.partition.columns",
}
"""Tables that hudi-rs cannot read as Hudi does."""


def timeline(table: Path) -> Path:
    newer = table / ".hoodie" / "timeline"
    return newer if newer.is_dir() else newer.parent


def instants(table: Path) -> list[str]:
    """Completed instants in the order of their completion, which new tables have in their names."""
    names = [file.name for file in timeline(table).iterdir()]
    done = [name for name in names if re.fullmatch(r"[0-9_]+\.(commit|deltacommit|replacecommit)", name)]
    return sorted(done, key=lambda name: name.split(".")[0].split("_")[-1])


@pytest.mark.parametrize(
    "every", [pytest.param(False, marks=pytest.mark.extended), pytest.param(True, marks=pytest.mark.nightly)]
)
def test_an_import_has_the_rows_that_hudis_reader_shows(tmp_path: Path, *, every: bool) -> None:
    shown = tell(HUDI, tmp_path, stories(tmp_path, every=every))
    for name, states in shown.items():
        if name in REFUSED:
            with pytest.raises(InvalidInput, match=REFUSED[name]) as refused:
                check_read(open_foreign("hudi", str(tmp_path / name)), states[-1].rows)
            assert "hoodie.read" not in str(refused.value)
            continue
        _check_states(tmp_path / name, states)
        check_import(open_foreign("hudi", str(tmp_path / name)), states[-1].rows)
    if every:
        _check_crashed(tmp_path, shown)
        first = re.split("[._]", instants(tmp_path / "mor_cleaned")[0])[0]
        with pytest.raises(InvalidInput, match=f"Hudi has cleaned files of {first} \\(1 file groups are gone"):
            open_foreign("hudi", str(tmp_path / "mor_cleaned"), version=first)
    with pytest.raises(InvalidInput, match="is older than the oldest commit in the timeline"):
        open_foreign("hudi", str(tmp_path / "mor_some"), version="20000101000000000")


def _check_states(table: Path, states: Sequence[Shown]) -> None:
    """The newest state, and each earlier one at the commit time of some instant, in their order."""
    source = open_foreign("hudi", str(table))
    check_read(source, states[-1].rows)
    names = source.schema.names
    times = [re.split("[._]", instant)[0] for instant in instants(table)]
    times = times[-1:] if table.name == "mor_cleaned" else times
    rows = [in_order(read(open_foreign("hudi", str(table), version=time), names), names) for time in times]
    at = 0
    for number, state in enumerate(states):
        wanted = in_order(state.rows, names)
        while at < len(rows) and rows[at] != wanted:
            at += 1
        assert at < len(rows), f"{table.name}: no instant has the rows of state {number}"


def _check_crashed(place: Path, shown: Mapping[str, Sequence[Shown]]) -> None:
    """What a commit has written that was never completed is not read."""
    for name in CRASHED:
        copy = place / "crashed" / name
        shutil.copytree(place / name, copy)
        (timeline(copy) / instants(copy)[-1]).unlink()
        check_read(open_foreign("hudi", str(copy)), shown[name][-2].rows)

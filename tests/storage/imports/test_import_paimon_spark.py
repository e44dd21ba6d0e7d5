"""Imports of Paimon tables that Spark wrote with Paimon's jar: levels that are not compacted above all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest

from tests.lake_releases import PAIMON_0_9
from tests.storage.imports.foreign_spark import SHOW, Engine, Shown, tell
from tests.storage.imports.imported import check_import, check_read
from weft.storage.errors import InvalidInput
from weft.storage.imports.foreign_table import open_foreign
from weft.storage.imports.translate import translate
from weft.storage.imports.translation import Fate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

PAIMON: Final = Engine(
    release=PAIMON_0_9,
    settings={
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.lake.warehouse": "file:{place}/lake",
    },
)
PLAIN: Final = "id BIGINT, v STRING, x DOUBLE, ts BIGINT, day STRING"
GROUPED: Final = "id BIGINT, a STRING, b DOUBLE, g1 BIGINT, c STRING, e BIGINT, g2 BIGINT, z STRING"
TWO_GROUPS: Final = {
    "merge-engine": "partial-update",
    "fields.g1.sequence-group": "a,b",
    "fields.g2.sequence-group": "c,e",
}
SUMS: Final = {
    "s": "sum",
    "mx": "max",
    "mn": "min",
    "la": "listagg",
    "lv": "last_value",
    "lnn": "last_non_null_value",
    "fv": "first_value",
    "fnn": "first_non_null_value",
    "ba": "bool_and",
    "bo": "bool_or",
}


def create(name: str, columns: str, options: Mapping[str, str], key: str = "id", by: str = "") -> list[str]:
    """A table whose files stay as they were written, unless ``options`` say otherwise."""
    given = {"primary-key": key, "bucket": "2", "write-only": "true", **options}
    properties = ", ".join(f"'{option}'='{value}'" for option, value in given.items())
    partition = f"PARTITIONED BY ({by})" if by else ""
    made = f"CREATE TABLE {name} ({columns}) {partition} TBLPROPERTIES ({properties})"
    return ["CREATE DATABASE IF NOT EXISTS lake.d", made]


def insert(name: str, ids: Sequence[int], columns: str) -> str:
    rows = ", ".join(f"({number}L)" for number in ids)
    return f"INSERT INTO {name} SELECT col1 AS id, {columns.replace('#', 'col1')} FROM VALUES {rows}"


def changes(name: str) -> list[str]:
    """Inserts, updates of which some are late, deletes, updates in place, and keys that come back."""
    day = "concat('d', # % 3)"
    return [
        insert(name, range(20), f"concat('a', #), # / 2D, 10L, {day}"),
        insert(name, range(5, 15), f"concat('b', #), CAST(# AS DOUBLE), IF(# % 2 = 0, 5L, 20L), {day}"),
        f"DELETE FROM {name} WHERE id IN (3, 7, 8)",
        f"UPDATE {name} SET v = NULL, x = x + 100 WHERE id % 4 = 0",
        insert(name, (7, 8, 40, 41), f"concat('c', #), -1D, 25L, {day}"),
        SHOW,
    ]


def updates_of_groups(name: str) -> list[str]:
    """Each group has newer and late values; some keys have one group only."""
    none, late = "CAST(NULL AS BIGINT)", "IF(# % 2 = 0, 20L, 5L)"
    return [
        insert(name, range(12), "concat('a', #), CAST(# AS DOUBLE), 10L, concat('c', #), #, 10L, 'z'"),
        insert(name, range(6), f"concat('A', #), NULL, {late}, NULL, {none}, {none}, NULL"),
        insert(name, range(3, 14), f"NULL, NULL, {none}, 'C', 99L, {late}, IF(# = 4, 'y', NULL)"),
        SHOW,
    ]


def aggregated(name: str) -> list[str]:
    columns = (
        "# + {k}, CAST(# * ({k} - 1) AS DOUBLE), CAST({k} - # AS INT), concat('l', {k}), IF({k} = 2, NULL, 'v{k}'), "
        "IF({k} = 2, NULL, 'v{k}'), IF({k} = 0, NULL, 'f{k}'), IF({k} = 0, NULL, 'f{k}'), # % 2 = 0, {k} = 1, 3L - {k}"
    )
    return [*(insert(name, range(k, 6), columns.replace("{k}", str(k))) for k in range(3)), SHOW]


def stories(*, every: bool) -> dict[str, list[str]]:
    def plain(name: str, options: Mapping[str, str], key: str = "id", by: str = "") -> None:
        found[f"lake.d.{name}"] = [*create(f"lake.d.{name}", PLAIN, options, key, by), *changes(f"lake.d.{name}")]

    def grouped(name: str, options: Mapping[str, str]) -> None:
        table = f"lake.d.{name}"
        found[table] = [*create(table, GROUPED, options), *updates_of_groups(table)]

    found: dict[str, list[str]] = {}
    plain("some", {"sequence.field": "ts"}, "id,day", "day")
    grouped("some_groups", TWO_GROUPS)
    grouped("some_vectors", TWO_GROUPS | {"deletion-vectors.enabled": "true", "write-only": "false"})
    if not every:
        return found
    plain("levels", {})
    plain("compacts", {"write-only": "false"})
    plain("dynamic", {"bucket": "-1"}, "id,day", "day")
    plain("cross", {"bucket": "-1"}, by="day")
    plain("vectors", {"deletion-vectors.enabled": "true", "write-only": "false"})
    plain("orc", {"file.format": "orc"})
    plain("parquet", {"file.format": "parquet"})
    plain("lookup", {"changelog-producer": "lookup", "write-only": "false"})
    found["lake.d.levels"] += ["CALL lake.sys.compact(table => 'd.levels')", SHOW]
    found["lake.d.levels"] += ["DELETE FROM lake.d.levels WHERE id = 1", SHOW]
    grouped("groups_compact", TWO_GROUPS | {"write-only": "false"})
    grouped("groups_of_two", {"merge-engine": "partial-update", "fields.g1,e.sequence-group": "a,b"})
    grouped("no_groups", {"merge-engine": "partial-update"})
    grouped("one_sequence", {"merge-engine": "partial-update", "sequence.field": "g1"})
    functions = {"fields.b.aggregate-function": "sum", "fields.e.aggregate-function": "max"}
    grouped("groups_with_sums", TWO_GROUPS | functions)
    kinds = TWO_GROUPS | {"rowkind.field": "z"}
    for name, more in (("retracted", {}), ("ignored", {"ignore-delete": "true"})):
        table = f"lake.d.{name}"
        found[table] = [
            *create(table, GROUPED, kinds | more),
            insert(table, range(8), "concat('a', #), CAST(# AS DOUBLE), 10L, concat('c', #), #, 10L, '+I'"),
            insert(table, range(3), "NULL, NULL, 20L, NULL, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), '-D'"),
            insert(table, range(2, 5), "NULL, NULL, 5L, NULL, CAST(NULL AS BIGINT), 20L, '-D'"),
            SHOW,
        ]
    every_sum = {f"fields.{name}.aggregate-function": function for name, function in SUMS.items()}
    columns = (
        "id BIGINT, s BIGINT, mx DOUBLE, mn INT, la STRING, lv STRING, lnn STRING, fv STRING, fnn STRING, ba BOOLEAN, "
        "bo BOOLEAN, ts BIGINT"
    )
    for name, more in (("sums", {}), ("sums_in_order", {"sequence.field": "ts"})):
        table = f"lake.d.{name}"
        options = {"merge-engine": "aggregation", **every_sum, **more}
        found[table] = [*create(table, columns, options), *aggregated(table)]
    table = "lake.d.evolved"
    found[table] = [
        *create(table, "id BIGINT, i INT, v STRING, ts BIGINT", {}),
        insert(table, range(6), "CAST(# AS INT), 'a', 1L"),
        f"ALTER TABLE {table} ADD COLUMNS (extra STRING)",
        f"ALTER TABLE {table} ALTER COLUMN i TYPE BIGINT",
        insert(table, range(1, 3), "5000000000L, 'b', 3L, 'e'"),
        f"ALTER TABLE {table} RENAME COLUMN v TO w",
        insert(table, range(2, 4), "7L, 'c', 4L, 'e'"),
        SHOW,
        f"ALTER TABLE {table} DROP COLUMN extra",
        f"ALTER TABLE {table} ADD COLUMNS (extra STRING)",
        insert(table, (5,), "7L, 'c', 5L, 'f'"),
        SHOW,
    ]
    table = "lake.d.replaced"
    found[table] = [
        *create(table, PLAIN, {}, "id,day", "day"),
        *changes(table)[:-1],
        f"INSERT OVERWRITE {table} PARTITION (day = 'd1') SELECT 50L, 'o', 1.0D, 1L",
        f"ALTER TABLE {table} DROP PARTITION (day = 'd2')",
        SHOW,
    ]
    plain("avro", {"file.format": "avro"})
    return found


REFUSED: Final = {"lake.d.avro": "Failed to build Avro RecordBatch"}
"""Tables that the Rust library cannot read."""

NOT_IMPORTED: Final = {
    "lake.d.one_sequence": "rows have values, but NULL in every ordering column",
    "lake.d.groups_with_sums": "sum of double depends on the order of events",
}
"""Tables that can be read, but not imported with the configuration that is proposed."""


@pytest.mark.parametrize(
    "every", [pytest.param(False, marks=pytest.mark.extended), pytest.param(True, marks=pytest.mark.nightly)]
)
def test_an_import_has_the_rows_that_paimons_reader_shows(tmp_path: Path, *, every: bool) -> None:
    for table, states in tell(PAIMON, tmp_path, stories(every=every)).items():
        location = str(tmp_path / "lake" / "d.db" / table.rsplit(".", 1)[1])
        if table in REFUSED:
            with pytest.raises(InvalidInput, match=REFUSED[table]):
                check_read(open_foreign("paimon", location), states[-1].rows)
            continue
        _check(location, states, NOT_IMPORTED.get(table))


def _check(location: str, states: Sequence[Shown], refusal: str | None) -> None:
    """The newest state: Paimon's earlier ones are not imported."""
    source = open_foreign("paimon", location)
    check_read(source, states[-1].rows)
    with nullcontext() if refusal is None else pytest.raises(InvalidInput, match=refusal):
        check_import(source, states[-1].rows)
    found = translate("paimon", source.declaration())
    fates = {line.option: line.fate for line in found.report}
    assert set(source.options) <= set(fates), "every option is reported"
    assert fates.get("fields.g1.sequence-group", Fate.CARRIED) is Fate.CARRIED

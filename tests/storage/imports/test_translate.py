"""Options of Paimon, Hudi and Doris as a table configuration, with a report of every option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from weft.storage.config.table_config import build_schema, load_config
from weft.storage.errors import InvalidInput
from weft.storage.imports.table_text import read_table_text
from weft.storage.imports.translate import to_yaml, translate
from weft.storage.imports.translation import Declaration, Fate, Translation

COLUMNS = {"id": "bigint", "a": "string", "b": "int", "c": "double", "ts": "bigint", "ts2": "bigint"}
PARTIAL = {"merge-engine": "partial-update"}


def paimon(options: Mapping[str, str], **changes: Any) -> Translation:
    found = translate("paimon", Declaration(**{"columns": COLUMNS, "key": ["id"], "options": options, **changes}))
    build_schema(load_config(found.config))
    return found


def hudi(options: Mapping[str, str], **changes: Any) -> Translation:
    found = translate("hudi", Declaration(**{"columns": COLUMNS, "key": ["id"], "options": options, **changes}))
    build_schema(load_config(found.config))
    return found


def fates(found: Translation) -> dict[str, Fate]:
    return {line.option: line.fate for line in found.report}


def merges(found: Translation) -> dict[str, tuple[str, Sequence[str]]]:
    """Merge mode and ordering columns of each group."""
    groups = found.config["groups"].items()
    return {name: (group.get("merge", "latest"), group.get("ordering", [])) for name, group in groups}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"main": ("latest", [])}),
        ({"sequence.field": "ts"}, {"main": ("latest", ["ts"])}),
        ({"sequence.field": "ts, ts2"}, {"main": ("latest", ["ts", "ts2"])}),
        (PARTIAL, {"main": ("latest_non_null", [])}),
        ({**PARTIAL, "sequence.field": "ts"}, {"main": ("latest_non_null", ["ts"])}),
        (
            {**PARTIAL, "fields.ts.sequence-group": "a,b", "fields.ts2.sequence-group": "c"},
            {"ts": ("latest", ["ts"]), "ts2": ("latest", ["ts2"])},
        ),
        (
            {**PARTIAL, "fields.ts,ts2.sequence-group": "a"},
            {"ts_ts2": ("latest", ["ts", "ts2"]), "main": ("latest_non_null", [])},
        ),
        ({"merge-engine": "aggregation"}, {"main": ("aggregate", [])}),
        ({"merge-engine": "first-row"}, {"main": ("aggregate", [])}),
    ],
)
def test_groups_of_paimon(options: Mapping[str, str], expected: dict[str, Any]) -> None:
    found = paimon(options)
    assert merges(found) == expected
    assert set(options) <= set(fates(found))


def test_functions_of_paimon() -> None:
    found = paimon(
        {
            **PARTIAL,
            "fields.ts.sequence-group": "a,b",
            "fields.b.aggregate-function": "sum",
            "fields.ts2.sequence-group": "c",
            "fields.c.aggregate-function": "hll_sketch",
        }
    )
    groups = found.config["groups"]
    assert groups["ts"]["functions"] == {"a": "last", "b": "sum"}
    assert groups["ts2"]["functions"] == {"c": "last"}
    told = fates(found)
    assert told["fields.b.aggregate-function"] == Fate.CARRIED
    assert told["fields.c.aggregate-function"] == Fate.MISSING
    assert told["column a"] == Fate.DIFFERS  # in Paimon its NULLs count


@pytest.mark.parametrize(
    ("function", "expected", "fate"),
    [
        ("sum", "sum", Fate.CARRIED),
        ("max", "max", Fate.CARRIED),
        ("last_non_null_value", "last", Fate.CARRIED),
        ("last_value", "last", Fate.DIFFERS),
        ("first_value", "first", Fate.DIFFERS),
        ("count", "sum", Fate.DIFFERS),
        ("product", "last", Fate.MISSING),
        ("merge_map", "last", Fate.MISSING),
    ],
)
def test_a_function_of_paimon(function: str, expected: str, fate: Fate) -> None:
    found = paimon({"merge-engine": "aggregation", "fields.b.aggregate-function": function})
    assert found.config["groups"]["main"]["functions"]["b"] == expected
    assert fates(found)["fields.b.aggregate-function"] == fate


def test_a_default_function_and_a_delimiter() -> None:
    found = paimon(
        {
            "merge-engine": "aggregation",
            "fields.default-aggregate-function": "max",
            "fields.a.aggregate-function": "listagg",
            "fields.a.list-agg-delimiter": ";",
            "fields.a.distinct": "true",
        }
    )
    functions = found.config["groups"]["main"]["functions"]
    assert (functions["a"], functions["b"]) == ({"listagg": {"delimiter": ";"}}, "max")
    assert fates(found)["fields.a.list-agg-delimiter"] == Fate.CARRIED
    assert fates(found)["fields.a.distinct"] == Fate.MISSING
    assert found.config["streams"]["main"]["on_delete"] == "ignore"  # listagg cannot take back


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "row"),
        ({"ignore-delete": "true"}, "ignore"),
        ({"ignore-delete": "false"}, "row"),
        ({**PARTIAL, "partial-update.ignore-delete": "true"}, "ignore"),
        (PARTIAL, "group"),
        ({**PARTIAL, "partial-update.remove-record-on-delete": "true"}, "row"),
    ],
)
def test_deletes_of_paimon(options: Mapping[str, str], expected: str) -> None:
    assert paimon(options).config["streams"]["main"].get("on_delete", "group") == expected


def test_a_delete_of_a_row_by_one_sequence_group() -> None:
    found = paimon(
        {
            **PARTIAL,
            "fields.ts.sequence-group": "a",
            "fields.ts2.sequence-group": "b,c",
            "partial-update.remove-record-on-sequence-group": "ts",
        }
    )
    assert found.config["streams"] == {"ts": {"groups": ["ts"], "on_delete": "row"}, "ts2": {"groups": ["ts2"]}}


@pytest.mark.parametrize(
    ("given", "expected", "fate"),
    [("4", 4, Fate.CARRIED), ("6", 8, Fate.DIFFERS), ("-1", None, Fate.UNUSED), ("1", 1, Fate.CARRIED)],
)
def test_buckets_are_a_power_of_two(given: str, expected: int | None, fate: Fate) -> None:
    found = paimon({"bucket": given})
    assert found.config.get("buckets") == expected
    assert fates(found)["bucket"] == fate


def test_a_partition_outside_the_key_has_no_counterpart() -> None:
    assert fates(paimon({}, partition_by=["a"]))["partition columns"] == Fate.MISSING
    inside = paimon({}, key=["id", "a"], partition_by=["a"])
    assert inside.config["partition_by"] == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence.field": "nope"}, "sequence.field: the table has no column 'nope'"),
        ({"fields.ts.sequence-group": "nope"}, r"fields.ts.sequence-group: the table has no column 'nope'"),
        ({"merge-engine": "upsert"}, "there is no merge engine 'upsert'"),
    ],
)
def test_a_wrong_option_of_paimon(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        paimon(options)


def test_a_table_without_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="declares no primary key"):
        paimon({}, key=[])
    assert translate("paimon", Declaration(COLUMNS), key=["id"]).config["key"] == ["id"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("latest", [])),
        ({"hoodie.table.precombine.field": "ts"}, ("latest", ["ts"])),
        ({"hoodie.table.ordering.fields": "ts,ts2"}, ("latest", ["ts", "ts2"])),
        ({"hoodie.datasource.write.precombine.field": "ts"}, ("latest", ["ts"])),
        (
            {"hoodie.table.ordering.fields": "ts", "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
            ("latest", []),
        ),
        (
            {"hoodie.table.ordering.fields": "ts", "hoodie.record.merge.mode": "EVENT_TIME_ORDERING"},
            ("latest", ["ts"]),
        ),
        (
            {
                "hoodie.table.precombine.field": "ts",
                "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
            },
            ("latest", []),
        ),
        (
            {
                "hoodie.table.precombine.field": "ts",
                "hoodie.compaction.payload.class": "org.apache.hudi.common.model.PartialUpdateAvroPayload",
            },
            ("latest_non_null", ["ts"]),
        ),
        (
            {
                "hoodie.table.precombine.field": "ts",
                "hoodie.datasource.write.payload.class": "x.OverwriteNonDefaultsWithLatestAvroPayload",
            },
            ("latest_non_null", []),
        ),
        (
            {"hoodie.table.ordering.fields": "ts", "hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"},
            ("latest_non_null", ["ts"]),
        ),
    ],
)
def test_the_merge_of_hudi(options: Mapping[str, str], expected: tuple[str, Sequence[str]]) -> None:
    found = hudi(options)
    assert merges(found) == {"main": expected}
    assert set(options) <= set(fates(found))


def test_keys_partitions_and_buckets_of_hudi() -> None:
    found = hudi(
        {
            "hoodie.table.recordkey.fields": "id,a",
            "hoodie.table.partition.fields": "a:SIMPLE",
            "hoodie.bucket.index.num.buckets": "16",
            "hoodie.table.name": "orders",
            "hoodie.compaction.payload.class": "com.example.OurPayload",
        },
        key=[],
        columns={"_hoodie_commit_time": "string", **COLUMNS},
    )
    assert (found.config["key"], found.config["partition_by"], found.config["buckets"]) == (["id", "a"], ["a"], 16)
    assert "_hoodie_commit_time" not in found.config["columns"]
    assert fates(found)["hoodie.table.name"] == Fate.UNUSED
    assert fates(found)["hoodie.compaction.payload.class"] == Fate.MISSING


def test_ordering_of_a_table_that_declares_none() -> None:
    found = translate("parquet", Declaration(COLUMNS), key=["id"], ordering=["ts"])
    assert merges(found) == {"main": ("latest", ["ts"])}
    with pytest.raises(InvalidInput, match="already say how its rows are ordered"):
        translate("paimon", Declaration(COLUMNS, ["id"], options={"sequence.field": "ts"}), ordering=["ts2"])
    with pytest.raises(InvalidInput, match="--ordering: the table has no column 'nope'"):
        translate("parquet", Declaration(COLUMNS), key=["id"], ordering=["nope"])


DORIS = """
-- a comment, with a ; and (
CREATE TABLE IF NOT EXISTS `shop`.`upsert_test` (
    `a`  bigint(20) NULL COMMENT "the key, of course",
    `b`  int(11)    NOT NULL,
    `c`  decimal(10, 2) NULL DEFAULT "0",
    `d`  varchar(64) NULL COMMENT 'it''s text',
    `e`  ARRAY<INT> NULL,
    `s1` int(11)    NULL,
    `s2` DATETIME(6) NULL,
    INDEX idx (`d`) USING INVERTED
) ENGINE=OLAP
UNIQUE KEY(`a`, `b`)
COMMENT "OLAP"
DISTRIBUTED BY HASH(`a`, `b`) BUCKETS 10
PROPERTIES (
    "replication_num" = "1",
    "sequence_mapping.s1" = "c,d",
    "sequence_mapping.s2" = "e"
);
"""


def test_a_statement_of_doris() -> None:
    text = read_table_text(DORIS)
    assert text.dialect == "doris"
    found = translate("doris", Declaration({}), text)
    build_schema(load_config(found.config))
    assert found.config == {
        "key": ["a", "b"],
        "buckets": 16,
        "columns": {
            "a": {"type": "bigint", "comment": "the key, of course"},
            "b": "int",
            "c": "decimal(10,2)",
            "d": {"type": "string", "comment": "it's text"},
            "e": "array<int>",
            "s1": "int",
            "s2": "timestamp_ntz",
        },
        "groups": {
            "s1": {"columns": ["c", "d", "s1"], "ordering": ["s1"]},
            "s2": {"columns": ["e", "s2"], "ordering": ["s2"]},
        },
        "streams": {"s1": {"groups": ["s1"]}, "s2": {"groups": ["s2"]}},
    }
    assert fates(found) == {
        "UNIQUE KEY": Fate.CARRIED,
        "sequence_mapping.s1": Fate.CARRIED,
        "sequence_mapping.s2": Fate.CARRIED,
        "BUCKETS": Fate.DIFFERS,
        "replication_num": Fate.UNUSED,
    }


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        ('UNIQUE KEY(k) PROPERTIES ("function_column.sequence_col" = "t")', ("latest", ["t"])),
        ('UNIQUE KEY(k) PROPERTIES ("function_column.sequence_type" = "bigint")', ("latest", [])),
        ("UNIQUE KEY(k) DISTRIBUTED BY HASH(k) BUCKETS AUTO", ("latest", [])),
    ],
)
def test_the_unique_model_of_doris(clauses: str, expected: tuple[str, Sequence[str]]) -> None:
    text = read_table_text(f"CREATE TABLE x (k INT, v INT, t BIGINT) {clauses}")
    assert merges(translate("doris", Declaration({}), text)) == {"main": expected}


@pytest.mark.parametrize(
    ("columns", "merge", "functions"),
    [
        ("v INT SUM, w INT MAX", "aggregate", {"v": "sum", "w": "max"}),
        ("v INT REPLACE, w INT REPLACE", "latest", None),
        ("v INT REPLACE_IF_NOT_NULL, w INT REPLACE_IF_NOT_NULL", "latest_non_null", None),
        ("v INT REPLACE_IF_NOT_NULL, w INT SUM", "aggregate", {"v": "last", "w": "sum"}),
    ],
)
def test_the_aggregate_model_of_doris(columns: str, merge: str, functions: dict[str, str] | None) -> None:
    found = translate("doris", Declaration({}), read_table_text(f"CREATE TABLE x (k INT, {columns}) AGGREGATE KEY(k)"))
    group = found.config["groups"]["main"]
    assert (group.get("merge", "latest"), group.get("functions")) == (merge, functions)
    build_schema(load_config(found.config))


def test_the_duplicate_model_of_doris_has_no_key() -> None:
    with pytest.raises(InvalidInput, match="rows of this table have no unique key"):
        translate("doris", Declaration({}), read_table_text("CREATE TABLE x (k INT, v INT) DUPLICATE KEY(k)"))


FLINK = """CREATE TABLE t (
  k INT, v MAP<STRING, ROW<x BIGINT, `y z` STRING>>, n TIMESTAMP_LTZ(3), m TIMESTAMP(3) WITHOUT TIME ZONE, g_1 INT,
  PRIMARY KEY (k) NOT ENFORCED
) PARTITIONED BY (k) WITH ('merge-engine' = 'partial-update', 'fields.g_1.sequence-group' = 'v')"""


def test_a_statement_of_flink_for_paimon() -> None:
    text = read_table_text(FLINK)
    assert text.dialect == "paimon"
    found = translate("paimon", Declaration({}), text)
    build_schema(load_config(found.config))
    assert found.config["columns"] == {
        "k": "int",
        "v": "map<string,struct<`x`:bigint,`y z`:string>>",
        "n": "timestamp",
        "m": "timestamp_ntz",
        "g_1": "int",
    }
    assert found.config["partition_by"] == ["k"]
    assert merges(found) == {"g_1": ("latest", ["g_1"]), "main": ("latest_non_null", [])}


def test_a_statement_of_spark_for_hudi_and_properties_beside_files() -> None:
    columns, properties = "id BIGINT, v STRING, ts BIGINT", "primaryKey = 'id', preCombineField = 'ts'"
    text = read_table_text(f"CREATE TABLE h ({columns}) USING hudi TBLPROPERTIES ({properties})")
    assert text.dialect == "hudi"
    assert merges(translate("hudi", Declaration({}), text)) == {"main": ("latest", ["ts"])}
    properties = read_table_text(
        "#comment\nmerge-engine = partial-update\nprimary-key: id\n\nfields.ts.sequence-group=a,b,c\n"
    )
    found = translate("parquet", Declaration(COLUMNS), properties)
    assert merges(found) == {"ts": ("latest", ["ts"]), "main": ("latest_non_null", [])}
    assert found.config["key"] == ["id"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 1", "line 1 is neither NAME = VALUE nor a part of CREATE TABLE"),
        ("CREATE TABLE x", "CREATE TABLE without columns"),
        ("CREATE TABLE x (a INT", "a parenthesis is not closed"),
        ("CREATE TABLE x (a)", "column 'a' has no type"),
        ("CREATE TABLE x (a INT) WITH ('b')", "is not NAME = VALUE"),
    ],
)
def test_a_text_that_is_no_table(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_table_text(text)


def test_the_printed_configuration_is_one() -> None:
    printed = to_yaml(paimon({"sequence.field": "ts", "bucket": "-1"}))
    assert printed.startswith(("# bucket", "# sequence.field"))
    assert yaml.safe_load(printed)["groups"]["main"]["ordering"] == ["ts"]


def test_comments_of_a_statement_and_of_a_source() -> None:
    text = read_table_text(
        "CREATE TABLE t (id BIGINT COMMENT 'it''s the order', a VARCHAR(10) NOT NULL DEFAULT 'x', "
        'b INT SUM COMMENT "n") '
        "AGGREGATE KEY (id) COMMENT 'all orders' DISTRIBUTED BY HASH(id) BUCKETS 4 PROPERTIES ('replication_num' = '1')"
    )
    assert (text.declaration.comments, text.declaration.comment) == ({"id": "it's the order", "b": "n"}, "all orders")
    found = translate(
        "parquet", Declaration({"id": "bigint", "a": "string", "b": "int"}, comments={"a": "A", "b": "B"}), text
    )
    assert found.config["comment"] == "all orders"
    assert found.config["columns"] == {
        "id": {"type": "bigint", "comment": "it's the order"},
        "a": {"type": "string", "comment": "A"},
        "b": {"type": "int", "comment": "n"},
    }
    assert build_schema(load_config(yaml.safe_load(to_yaml(found)))).column("a").comment == "A"

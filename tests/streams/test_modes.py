"""Every merge mode through Spark: frames, compaction on executors, the live view; conformance cases and a merger.

Frames contain the appends of `tests.conformance`; at each expectation a view must return the same rows as storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as LocalPath
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import weft
from tests.conformance.test_conformance import CASES, Run, value_of
from tests.mergers import BALANCE_STATE
from tests.strategies import BALANCE
from weft.storage import Table, mergers

SAMPLE = [
    "two_streams_own_ordering",
    "delete_then_older_insert_after_compaction",
    "owner_delete_hides_the_row",
    "non_null_update_does_not_depend_on_batching",
    "supplied_null_is_a_value",
    "aggregates_any_order",
    "commit_order_group",
    "require_makes_left_and_inner_joins",
    "default_for_an_absent_group_only",
    "reference_deleted_and_inserted_again",
]
RESERVED = {"_op": pa.string(), "_supplied": pa.list_(pa.string())}


class SparkRun(Run):
    """A conformance case in which Spark writes, compacts and reads."""

    def __init__(self, spark: SparkSession, case: Mapping[str, Any], folder: LocalPath) -> None:
        super().__init__(case, str(folder))
        self.spark = spark

    def append(self, append: Mapping[str, Any]) -> None:
        given = {name for row in append["rows"] for name in row}
        table = append.get("table", "")
        types = {name: t for name, t in {**self.input_types[table], **RESERVED}.items() if name in given}
        rows = pa.table({n: pa.array([value_of(row.get(n), t) for row in append["rows"]], t) for n, t in types.items()})
        # One partition, because the rows of a frame are in the order of its partitions.
        frame = self.spark.createDataFrame(rows).coalesce(1)
        weft.write_batch(frame, self.tables[table].uri, append["stream"], lane=append["lane"])

    def compact(self, _: object) -> None:
        for table in self.tables.values():
            weft.compact(self.spark, table.uri)

    def expect(self, expect: Mapping[str, Any]) -> None:
        as_of = self.labels[expect["as_of"]] if expect.get("as_of") else None
        require = expect.get("require")
        weft.create_view(self.spark, self.table.uri, "conformance", as_of=as_of, require=require)
        columns = expect.get("columns") or list(self.types)
        expected = self._table(expect["rows"], {name: self.types[name] for name in columns})
        for chosen in (columns, *([name] for name in columns)):
            listed = ", ".join(f"`{name}`" for name in chosen)
            got = self.spark.sql(f"SELECT {listed} FROM conformance").toArrow()
            assert bag(got) == bag(expected.select(chosen)), listed


def bag(table: pa.Table) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in table.to_pylist())


@pytest.mark.parametrize("name", SAMPLE)
def test_conformance_case(spark: SparkSession, name: str, tmp_path: LocalPath) -> None:
    case = CASES[name]
    run = SparkRun(spark, case, tmp_path)
    run.run([step for step in case["steps"] if "refused" not in step])
    final = case["steps"][-1]
    run.compact(None)
    if "expect" in final:
        run.expect(final["expect"])


def test_every_function_and_a_merger_on_executors(
    spark: SparkSession, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collections take elements, count takes any type; tasks get the allow-list of the driver."""
    monkeypatch.setattr(mergers, "_allowed", {"tests.mergers"})
    functions = {
        "total": "sum",
        "seen": "count",
        "low": "min",
        "high": "max",
        "oldest": "first",
        "newest": "last",
        "every": "bool_and",
        "some": "bool_or",
        "distinct": "collect_set",
        "all": "collect_list",
        "text": {"listagg": {"delimiter": "|"}},
    }
    types = {
        "total": "decimal(12,2)",
        "seen": "bigint",
        "low": "double",
        "high": "int",
        "oldest": "string",
        "newest": "date",
        "every": "boolean",
        "some": "boolean",
        "distinct": "array<int>",
        "all": "array<string>",
        "text": "string",
        "ts": "bigint",
        "own_n": "bigint",
        "own_t": "string",
    }
    config = {
        "key": ["id"],
        "buckets": 2,
        "columns": {"id": "bigint", **types},
        "groups": {
            "stats": {
                "columns": [*functions, "ts"],
                "ordering": ["ts"],
                "merge": "aggregate",
                "functions": functions,
            },
            "own": {"columns": ["own_n", "own_t"], "merge": BALANCE, "state": BALANCE_STATE},
        },
        "streams": {"stats": {"groups": ["stats"], "on_delete": "ignore"}, "owns": {"groups": ["own"]}},
    }
    table = Table.create(str(tmp_path / "table"), config)
    stats = """SELECT id, CAST(total AS decimal(12,2)) total, seen, low, high, oldest, newest, every, some, distinct,
                      all, text, ts
               FROM VALUES
        (1L, 1.50, 'x',  CAST('NaN' AS double), 3, 'second', DATE'2026-01-02', true,  false, 7, 'b', 'b', 2L),
        (1L, 2.25, NULL, 1.0D,                  9, 'first',  DATE'2026-01-01', false, false, 7, 'a', 'a', 1L),
        (2L, 0.10, 'y',  2.0D,               NULL, NULL,     NULL,             NULL,  true,  1, NULL, NULL, 5L)
               AS t(id, total, seen, low, high, oldest, newest, every, some, distinct, all, text, ts)"""
    more = """SELECT 1L id, CAST(1 AS decimal(12,2)) total, 'z' seen, 0.5D low, 1 high, 'third' oldest,
                     DATE'2026-01-03' newest, true every, true some, 3 distinct, 'c' all, 'c' text, 3L ts"""
    weft.write_batch(spark.sql(stats).coalesce(1), table.uri, "stats")
    weft.compact(spark, table.uri)
    weft.write_batch(spark.sql(more), table.uri, "stats")
    owns = "SELECT * FROM VALUES (1L, 5L, 'five', 'I'), (2L, 6L, 'six', 'I'), (2L, NULL, NULL, 'D')"
    weft.write_batch(spark.sql(f"{owns} AS t(id, own_n, own_t, _op)").coalesce(1), table.uri, "owns")
    weft.create_view(spark, table.uri, "modes")
    query = """SELECT id, total, seen, low, high, oldest, CAST(newest AS string) newest, every, some, distinct, all,
                      text, ts, own_n, own_t FROM modes ORDER BY id"""
    for _ in ("logs over a slice", "compacted"):
        first, second = spark.sql(query).collect()
        shown = (str(first.total), first.seen, first.low, first.high, first.oldest, first.newest, first.every)
        assert shown == ("4.75", 2, 0.5, 9, "first", "2026-01-03", False)
        assert (first.some, first.distinct, first["all"], first.text) == (True, [3, 7], ["a", "b", "c"], "a|b|c")
        assert (first.ts, first.own_n, first.own_t) == (3, 5, "five")
        assert (second.seen, second.every, second.distinct, second.own_n) == (1, None, [1], None)
        single = spark.sql("SELECT own_t FROM modes ORDER BY own_t DESC").collect()
        assert [row.own_t for row in single] == ["five", None]
        weft.compact(spark, table.uri)

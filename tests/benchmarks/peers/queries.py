"""The queries that are measured, and the comparison with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.benchmarks.peers.cost import Cost
from tests.benchmarks.peers.dataset import KEY, Dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMS: Final = "sums"
ROWS: Final = "rows"
_WARM_UP: Final = 1


def queries(data: Dataset) -> dict[str, str]:
    """SQL by name; ``{table}`` is the table.

    ``sums``: plain sums of up to two columns of each group, which a format may compute by itself. ``rows``: a hash over
    the same columns, for which Spark needs every row.
    """
    columns = [name for group in data.groups for name in data.numbers(group)]
    sums = ", ".join(f"sum({name})" for name in columns)
    return {
        SUMS: f"SELECT count({KEY}), {sums} FROM {{table}}",
        ROWS: f"SELECT bit_xor(xxhash64({KEY}, {', '.join(columns)})) FROM {{table}}",
    }


def measured_in_turns(
    spark: SparkSession, sql: str, tables: Mapping[str, str], rounds: int, refresh: Callable[[], None]
) -> dict[str, Cost]:
    """Median cost of a query by the name of the table, which take turns; the first round is not counted."""
    costs: dict[str, list[Cost]] = {name: [] for name in tables}
    for number in range(rounds + _WARM_UP):
        for name, table in tables.items():
            refresh()
            cost = Cost.of(partial(_collect, spark, sql.format(table=table)))
            if number >= _WARM_UP:
                costs[name].append(cost)
    return {name: Cost.median(values) for name, values in costs.items()}


def _collect(spark: SparkSession, sql: str) -> None:
    spark.sql(sql).collect()


def wrong_rows(spark: SparkSession, table: str, data: Dataset) -> int:
    """Number of keys whose row differs from the oracle in a group, is missing, or there twice."""
    hashes = {group: f"xxhash64({', '.join(columns)}) AS h_{group}" for group, columns in data.groups.items()}

    def digest(source: str) -> str:
        return f"(SELECT {KEY}, {', '.join(hashes.values())} FROM {source})"

    same = " AND ".join(f"t.h_{group} <=> o.h_{group}" for group in data.groups)
    wrong = spark.sql(
        f"SELECT count_if(NOT (t.{KEY} IS NOT NULL AND o.{KEY} IS NOT NULL AND {same})), count(*) "
        f"FROM {digest(table)} t FULL OUTER JOIN {digest(f'parquet.`{data.oracle}`')} o ON t.{KEY} = o.{KEY}"
    ).collect()[0]
    return int(wrong[0]) + max(0, int(wrong[1]) - data.keys)

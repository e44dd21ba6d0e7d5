"""The fallback without access to the JVM: the same rows through a plain Python data source.

Its limits come from Spark. Spark does not tell a Python data source which columns a query needs, so all are read. Spark
keeps the partitions that the first query over a relation planned (`PythonDataSourceV2.readInfo`), so a view over such a
source cannot be live: it has a fixed state, which is taken when the view is created. For the same reason no filter is
pushed down: the next query would use the partitions that were pruned for the first one.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from weft.streams.read.relation.join_frames import join_frames
from weft.streams.read.relation.planner_interface import Part, PinnedPlanner, Planner, ReadPlan
from weft.streams.read.relation.task_reader import TaskReader
from weft.streams.spark.data_sources import register_source
from weft.streams.spark.for_workers import Source

__all__ = ["fixed_dataframe"]

_numbers = itertools.count(1)


class _FixedSource(Source):
    """A data source with a fixed plan. Spark creates instances from the class, so each plan gets a subclass."""

    registered_name: ClassVar[str]
    plan: ClassVar[ReadPlan]
    columns: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        return cls.registered_name

    def schema(self) -> StructType:
        return self.columns

    def reader(self, schema: StructType) -> DataSourceReader:
        return TaskReader(self.plan.read, self.plan.tasks, schema)


def fixed_dataframe(spark: SparkSession, planner: Planner) -> DataFrame:
    """Create a DataFrame of all columns of the newest state; later changes of the tables are not visible in it."""
    state = planner()
    return join_frames(_of_table(spark, state), state.joins(), lambda join: _of_table(spark, state.joined(join.name)))


def _of_table(spark: SparkSession, state: PinnedPlanner) -> DataFrame:
    joined_names = {name for join in state.joins() for _, name in join.columns}
    schema = StructType([field for field in state.schema().fields if field.name not in joined_names])
    name = f"weft_fixed_{next(_numbers)}"
    members: dict[str, Any] = {
        "registered_name": name,
        "plan": state.plan(tuple(schema.names), (), Part.WHOLE),
        "columns": schema,
    }
    source = type("FixedSource", (_FixedSource,), members)
    register_source(spark, source)
    return spark.read.format(name).load()

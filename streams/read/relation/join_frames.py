"""Joins the DataFrame of a table with those of the tables that it refers to.

The join is a left join on the foreign key, so each row has at most one row of the other table. Spark prunes columns,
pushes filters down and broadcasts as in any join. It cannot know that the key is unique, so it reads the other table
even if the query uses none of its columns; the planner of the other table then returns no rows
(`weft.streams.read.reference_planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, functions

from weft.streams.read.relation.planner_interface import JoinedColumns

__all__ = ["join_frames"]


def join_frames(
    frame: DataFrame, joins: Sequence[JoinedColumns], frame_of: Callable[[JoinedColumns], DataFrame]
) -> DataFrame:
    """Add the columns of references to a DataFrame.

    Args:
        frame: The columns of the table.
        joins: The joins, in the order of their columns.
        frame_of: Returns the DataFrame of the other table of a join.
    """
    output: list[Column] = [_column(name) for name in frame.columns]
    for number, join in enumerate(joins):
        if join.error:
            failing = [
                functions.raise_error(functions.lit(join.error)).cast("string").alias(name) for _, name in join.columns
            ]
            output += failing
            if join.required:  # it is unknown which rows have a row of the other table, so every query must fail
                frame = frame.where(functions.raise_error(functions.lit(join.error)).cast("boolean"))
            continue
        keys = [f"__weft_join_{number}_{position}" for position in range(len(join.key))]
        pairs = [*zip(join.key, keys, strict=True), *join.columns]
        other = frame_of(join).select(*(_column(name).alias(alias) for name, alias in pairs))
        if join.small:
            other = other.hint("broadcast")
        condition = reduce(and_, (_column(name) == _column(key) for name, key in zip(join.on, keys, strict=True)))
        frame = frame.join(other, condition, "inner" if join.required else "left")
        output += [_column(name) for _, name in join.columns]
    return frame.select(*output)


def _column(name: str) -> Column:
    quoted = name.replace("`", "``")
    return functions.col(f"`{quoted}`")

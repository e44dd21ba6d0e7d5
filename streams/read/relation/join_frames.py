"""Joins the DataFrame of a table with those of the tables that it refers to.

A left join on the foreign key, which has at most one row of the other table for each row. Spark prunes, pushes filters
down and broadcasts as in any join. It cannot know that the key is unique, so it reads the other table even if no column
of it is used: then the planner of the other table gives it no rows (`weft.streams.read.reference_planner`).
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
    """The table with the columns of its references.

    Args:
        frame: The columns of the table.
        joins: What is joined with it.
        frame_of: The columns of the other table of a join.
    """
    output: list[Column] = [_column(name) for name in frame.columns]
    for number, join in enumerate(joins):
        if join.error:
            failing = [
                functions.raise_error(functions.lit(join.error)).cast("string").alias(name) for _, name in join.columns
            ]
            output += failing
            if join.required:  # which rows have a row of the other table is unknown, so no query can be answered
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

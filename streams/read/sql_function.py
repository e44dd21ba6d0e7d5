"""Spark SQL expressions as functions over Arrow arrays, for `weft.Table.rewrite`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput
from weft.streams.read.sql_query import short_message
from weft.streams.spark.session import temporary_session

_ROW: Final = "__row"


class SqlFunction:
    """A Spark SQL expression of one column, as a function over Arrow arrays. Runs in the process of the session."""

    def __init__(self, spark: SparkSession, column: str, expression: str, kind: pa.DataType) -> None:
        """Analyse the expression.

        Raises:
            InvalidInput: The expression is invalid, uses another column, or has a value that does not fit the column.
        """
        self._spark, self._column = spark, column
        self._sql = f"CAST(({expression}) AS {format_type(kind)}) AS `{column}`"
        self(pa.array([], kind))

    def __call__(self, values: pa.Array) -> pa.ChunkedArray:
        """Evaluate the expression for each value.

        Raises:
            InvalidInput: The expression fails, for example because of a cast.
        """
        rows = pa.table({self._column: values, _ROW: np.arange(len(values))})
        try:
            answer = self._spark.createDataFrame(rows).selectExpr(self._sql, _ROW).toArrow()
        except PySparkException as error:
            raise InvalidInput(short_message(error), hint=f"use only column {self._column} in the expression") from None
        return answer.sort_by(_ROW).column(self._column).cast(values.type)


@contextmanager
def sql_function(settings: Mapping[str, str], column: str, expression: str, kind: pa.DataType) -> Iterator[SqlFunction]:
    """Start Spark, analyse an expression, and stop Spark at the end of the block.

    Args:
        settings: Spark settings of the pipeline file.
        column: The only column that the expression may use.
        expression: The expression.
        kind: Type of the column.

    Raises:
        NotFound: Java is not installed.
        InvalidInput: See `SqlFunction`.
    """
    with temporary_session("weft rewrite", settings) as spark:
        yield SqlFunction(spark, column, expression, kind)

"""Formats that Python decodes, in Spark's workers: a batch of values at a time, from Arrow to Arrow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from weft.streams.formats.isolated_decoder import Decode, MayIsolate
from weft.streams.formats.message_format import MessageFormat
from weft.streams.spark.for_workers import for_workers


def in_workers(function: Decode, result: pa.DataType) -> Callable[[Column], Column]:
    """A function from an Arrow array to one of that type, as a function of columns that runs in Spark's workers."""
    guarded: Any = for_workers(function)
    guarded.__annotations__.clear()  # without type hints it is a function from an array to an array
    make: Any = arrow_udf  # its types leave out structs
    user_function: Callable[[Column], Column] = make(guarded, from_arrow_type(result))
    return user_function


class WorkerFormat(MessageFormat):
    """A format whose values a function decodes."""

    @abstractmethod
    def decoder(self, row_schema: pa.Schema) -> tuple[Decode, pa.DataType]:
        """The function that decodes the values of a batch, and the type of its result.

        The function is pickled, and takes binary values. Its result is a struct with as many rows, with the fields
        ``message``, a struct of the declared fields, and ``reason``. It must not fail for any value.

        Args:
            row_schema: Declared fields and their types.
        """

    def parse(self, value: Column, fields: StructType) -> Column:
        decode, result = self.decoder(to_arrow_schema(fields, timezone="UTC"))
        return in_workers(MayIsolate(decode, result), result)(value.cast("binary"))

    def message(self, parsed: Column) -> Column:
        return parsed["message"]

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return parsed["reason"]

"""Formats that Python decodes in Spark's workers, in batches from Arrow to Arrow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.isolated_decoder import Decode, MayIsolate
from weft.streams.formats.message_format import MessageFormat
from weft.streams.spark.for_workers import for_workers


def in_workers(function: Decode, result: pa.DataType) -> Callable[[Column], Column]:
    """Convert a function over Arrow arrays, whose result has the type, to a function of columns for Spark's workers."""
    guarded: Any = for_workers(function)
    guarded.__annotations__.clear()  # without type hints Spark calls it with one array and expects one array
    make: Any = arrow_udf  # its declared types lack structs
    user_function: Callable[[Column], Column] = make(guarded, from_arrow_type(result))
    return user_function


class WorkerFormat(MessageFormat):
    """A format whose values a Python function decodes."""

    @staticmethod
    @abstractmethod
    def decode(settings: FormatSettings, values: pa.Array) -> pa.Array:
        """Decode a batch of n binary values. The function is pickled.

        The result has n structs with the fields ``message``, a struct of the declared fields, and ``reason``. It must
        not fail for any value.
        """

    @staticmethod
    @abstractmethod
    def result(settings: FormatSettings) -> pa.DataType:
        """Return the type of the result of `decode`."""

    def parse(self, value: Column, fields: StructType) -> Column:
        settings = replace(self.settings, declared=to_arrow_schema(fields, timezone="UTC"))
        result = self.result(settings)
        return in_workers(MayIsolate(partial(self.decode, settings), result), result)(value.cast("binary"))

    def message(self, parsed: Column) -> Column:
        return parsed["message"]

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return parsed["reason"]

"""JSON: the value is the UTF-8 text of exactly one JSON object. `weft.streams.formats.json_reader` says how it is
read.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Self

from pyspark.sql import Column
from pyspark.sql.types import StructType

from weft.streams.formats.format_options import no_options
from weft.streams.formats.json_reader import read_json
from weft.streams.formats.message_format import FormatSettings, MessageFormat


class JsonFormat(MessageFormat):
    """One JSON object per message. A value with anything after the object is undecodable."""

    def __init__(self, exact: AbstractSet[str] = frozenset()) -> None:
        """Round nothing of these fields."""
        self._exact = exact

    @classmethod
    def create(cls, settings: FormatSettings) -> Self:
        no_options(settings.options)
        return cls(settings.exact)

    def parse(self, value: Column, fields: StructType) -> Column:
        return read_json(value, fields, exact=self._exact)

    def message(self, parsed: Column) -> Column:
        return parsed["value"]

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return parsed["reason"]

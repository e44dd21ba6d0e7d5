"""JSON: the value is the UTF-8 text of exactly one JSON object; see `weft.streams.formats.json_reader`."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import StructType

from weft.streams.formats.json_reader import read_json
from weft.streams.formats.message_format import MessageFormat


class JsonFormat(MessageFormat):
    """The format for messages that are one JSON object. A value with anything after the object is undecodable."""

    def parse(self, value: Column, fields: StructType) -> Column:
        return read_json(value, fields, exact=self.settings.exact)

    def message(self, parsed: Column) -> Column:
        return parsed["value"]

    def reason(self, parsed: Column, value: Column, fields: StructType) -> Column:
        return parsed["reason"]

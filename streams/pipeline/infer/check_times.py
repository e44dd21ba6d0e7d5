"""Finds numbers in messages that would be read as times in another unit than they have.

A number of JSON in a field that is declared ``timestamp`` counts as seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.infer.infer_key import EPOCH_RANGE, EPOCHS
from weft.streams.pipeline.infer.nested_fields import nested_fields, value_of

_READ_AS: Final = "timestamp_seconds"


def misread_times(writer: WriterSpec, rows: Sequence[Mapping[str, Any]], source: str) -> Iterator[InvalidInput]:
    """One error for each field with numbers that look like milliseconds or microseconds.

    Args:
        writer: The writer.
        rows: Messages, as values by field.
        source: Where they are from, in words.
    """
    if writer.message is None or writer.message_format != "json" or writer.file_format not in {None, "json"}:
        return  # other formats say what their numbers are
    for name, kind in {**writer.message, **nested_fields(writer.message)}.items():
        if kind.strip().lower() not in {"timestamp", "timestamp_ltz"}:
            continue
        values = [value for row in rows if isinstance(value := value_of(row, name), int | float)]
        for function, (units, unit) in EPOCHS.items():
            first, last = EPOCH_RANGE
            count = sum(first * units <= value < last * units for value in values)
            if count and function != _READ_AS:
                yield InvalidInput(
                    f"writers.{writer.name}.schema.{name}: in {count:,} of {counted(len(rows), 'message')} it is a "
                    f"number that looks like {unit}, and is read as seconds ({source})",
                    hint=f"declare it bigint, and select {function}({name})",
                )

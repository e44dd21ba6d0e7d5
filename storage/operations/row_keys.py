"""Parses keys of rows that commands and procedures take as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput


def parse_key(schema: TableSchema, texts: Sequence[str], argument: str) -> dict[str, Any]:
    """Parse the key of a row: its values by column.

    Args:
        schema: The schema of the table.
        texts: ``COLUMN=VALUE`` for each key column; for a key of one column also the value alone. Binaries are
            hexadecimal.
        argument: Name of the argument, for messages.

    Raises:
        InvalidInput: A column is missing, unknown or set twice, or a value does not have its type.
    """
    shape = ", ".join(f"{name} {format_type(schema.column(name).type)}" for name in schema.key)
    key_values: dict[str, Any] = {}
    for text in texts:
        name, value = split_key(schema.key, text)
        if not name:
            raise InvalidInput(
                f"{argument} {text!r} does not name a key column", hint=f"{argument} COLUMN=VALUE; the key is ({shape})"
            )
        if name in key_values:
            raise InvalidInput(f"{argument} has column {name!r} twice", hint=f"the key is ({shape})")
        kind = schema.column(name).type
        try:
            key_values[name] = bytes.fromhex(value) if pa.types.is_binary(kind) else pa.scalar(value).cast(kind).as_py()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise InvalidInput(
                f"{argument} {text!r}: {value!r} is not a {format_type(kind)}", hint=f"the key is ({shape})"
            ) from error
    missing = [name for name in schema.key if name not in key_values]
    if missing:
        raise InvalidInput(f"{argument} has no value for column {', '.join(missing)}", hint=f"the key is ({shape})")
    return key_values


def split_key(key: Sequence[str], text: str) -> tuple[str, str]:
    """Split a text of `parse_key` into column and value; the column is "" if it is missing and the key has several."""
    name, separator, value = text.partition("=")
    if separator and name in key:
        return name, value
    return ("", text) if len(key) > 1 else (key[0], text)


def split_keys(key: Sequence[str], text: str) -> list[str]:
    """Split ``COLUMN=VALUE, COLUMN=VALUE`` into the texts of `parse_key`; a key of one column takes the whole text.

    A value ends where a comma, optional spaces and ``COLUMN=`` follow, or at the end of the text.
    """
    if len(key) == 1:
        return [text]
    names = "|".join(map(re.escape, sorted(key, key=len, reverse=True)))
    return re.split(rf",\s*(?=(?:{names})=)", text)

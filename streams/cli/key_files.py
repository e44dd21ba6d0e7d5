"""Reads files with keys of rows, for ``weft erase --keys``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput

_FORMATS: Final = ".parquet, .csv (with a header) or .jsonl (one object a line)"


def read_keys(file: Path, schema: TableSchema) -> pa.Table:
    """Read the key columns of a file.

    Args:
        file: A file in Parquet, CSV with a header, or JSON lines.
        schema: Schema of the table, which determines the names and types of the key columns.

    Returns:
        The key columns in the types of the table, except for Parquet, whose columns keep their types.

    Raises:
        InvalidInput: The file cannot be read, has another format, or lacks a key column.
    """
    names = list(schema.key)
    types = {name: schema.column_by_name[name].type for name in names}
    try:
        match file.suffix:
            case ".parquet":
                return pq.read_table(file, columns=names)
            case ".csv":
                options = pc.ConvertOptions(column_types=types, include_columns=names, strings_can_be_null=False)
                lines = pc.ParseOptions(newlines_in_values=True)
                return pc.read_csv(file, parse_options=lines, convert_options=options)
            case ".jsonl" | ".ndjson":
                parsing = pj.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore")
                return pj.read_json(file, parse_options=parsing)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the keys in {file} cannot be read: {error}", hint=f"give a file with the columns {', '.join(names)}"
        ) from error
    raise InvalidInput(f"{file} has an unknown format", hint=f"give a file that ends with {_FORMATS}")

"""Log files in register form: writes the registers of some file groups as one file.

Such a file is cut into blocks, indexed and read like any other log file (`storage.files.log_file`); its rows are
registers with the columns of slices, see `storage.core.merge.registers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from storage.core.keys import Indices
from storage.core.log.file_refs import FileGroup, LogFile
from storage.core.merge.registers import RegisterRows, register_rows
from storage.core.merge.stitch import LogState
from storage.core.names import Path
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.files.log_file import SortedRows, put_log_file


def write_register_file(
    env: Environment, schema: TableSchema, path: Path, states: Iterable[tuple[FileGroup, LogState]]
) -> LogFile | None:
    """Write the registers of some file groups as one file, durably. Returns None if there are no registers.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        path: Path of the file, which no other writer uses.
        states: Registers with all columns, in order of file group; all file groups have the same bits.
    """
    collapsed = list(states)
    carried = {group for _, state in collapsed for group in state.registers}
    groups = tuple(group for group in schema.groups if group.id in carried)
    parts = [(file_group, register_rows(schema, groups, state)) for file_group, state in collapsed]
    parts = [(file_group, rows) for file_group, rows in parts if len(rows)]
    if not parts:
        return None
    partitions = sorted({file_group.partition for file_group, _ in parts})
    sizes = [len(rows) for _, rows in parts]
    content = SortedRows(
        form="register",
        groups=groups,
        rows=_table(schema, [rows for _, rows in parts]),
        partitions=partitions,
        partition=_each([partitions.index(file_group.partition) for file_group, _ in parts], sizes),
        bits=parts[0][0].bits,
        bucket=_each([file_group.bucket for file_group, _ in parts], sizes),
        deletes=np.concatenate([rows.deletes for _, rows in parts]),
    )
    return put_log_file(env, schema, path, content)


def _each(values: Sequence[int], sizes: Sequence[int]) -> Indices:
    return np.repeat(np.array(values, np.int64), sizes)


def _table(schema: TableSchema, parts: Sequence[RegisterRows]) -> pa.Table:
    """All rows, one chunk for each file group; columns in the order of the slice schema."""
    file_schema = pa.schema([field for field in schema.slice if field.name in parts[0].columns])
    batches = [
        pa.RecordBatch.from_arrays([rows.columns[name] for name in file_schema.names], schema=file_schema)
        for rows in parts
    ]
    return pa.Table.from_batches(batches, file_schema)

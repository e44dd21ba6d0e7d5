"""Log files in register form: writes the registers of some file groups as one file.

Such a file is cut into blocks, indexed and read like any other log file (`weft.storage.files.log_file`); its rows are
registers with the columns of slices, see `weft.storage.core.merge.registers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.keys import Indices
from weft.storage.core.log.file_refs import FileGroup, LogFile
from weft.storage.core.merge.registers import RegisterRows, register_rows
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.names import Path
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.log_file import SortedRows, put_log_file


def write_register_file(
    env: Environment, schema: TableSchema, path: Path, states: Iterable[tuple[Sequence[FileGroup], LogState]]
) -> LogFile | None:
    """Write the registers of some file groups as one file, durably. Returns None if there are no registers.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        path: Path of the file, which no other writer uses.
        states: Runs of file groups (or single ones), and their registers with all columns; in order of file group. All
            file groups have the same bits.
    """
    collapsed = list(states)
    group_ids = {group for _, state in collapsed for group in state.registers}
    groups = tuple(group for group in schema.groups if group.id in group_ids)
    parts = [(run, register_rows(schema, groups, state)) for run, state in collapsed]
    parts = [(run, rows) for run, rows in parts if len(rows)]
    if not parts:
        return None
    partitions = sorted({run[i].partition for run, rows in parts for i in np.unique(_ordinals(rows)).tolist()})
    number_of = {partition: number for number, partition in enumerate(partitions)}
    content = SortedRows(
        form="register",
        groups=groups,
        rows=_table(schema, [rows for _, rows in parts]),
        partitions=partitions,
        partition=_value_by_row(parts, lambda file_group: number_of.get(file_group.partition, -1)),
        bits=parts[0][0][0].bits,
        bucket=_value_by_row(parts, lambda file_group: file_group.bucket),
        deletes=np.concatenate([rows.deletes for _, rows in parts]),
    )
    return put_log_file(env, schema, path, content)


def _value_by_row(
    parts: Sequence[tuple[Sequence[FileGroup], RegisterRows]], value_of: Callable[[FileGroup], int]
) -> Indices:
    """For every row, a value of its file group."""
    values = [np.array([value_of(file_group) for file_group in run], np.int64) for run, _ in parts]
    return np.concatenate([run_values[_ordinals(rows)] for run_values, (_, rows) in zip(values, parts, strict=True)])


def _ordinals(rows: RegisterRows) -> Indices:
    """For every row, the position of its file group in the run."""
    return np.asarray(rows.columns.get(names.SLICE_ORDINAL, np.zeros(len(rows), np.int64)))


def _table(schema: TableSchema, parts: Sequence[RegisterRows]) -> pa.Table:
    """All rows, one chunk for each run; columns in the order of the slice schema."""
    file_schema = pa.schema([field for field in schema.slice if field.name in parts[0].columns])
    batches = [
        pa.RecordBatch.from_arrays([rows.columns[name] for name in file_schema.names], schema=file_schema)
        for rows in parts
    ]
    return pa.Table.from_batches(batches, file_schema)

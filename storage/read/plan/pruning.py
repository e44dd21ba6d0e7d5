"""Pruning: finds data that a read can skip because it cannot contain rows of the result.

There are three steps. Each may keep too much, but no step drops rows that could match:

- file groups are selected by the keys that the filter allows, and by their partition folders;
- log ranges are selected by the key ranges of their blocks, if the keys are known;
- row groups of base files are selected by key range and by the statistics of all columns. A row group whose rows do not
  match is still read if the logs contain keys of its range that may match then, because the filter applies to merged
  rows (`weft.storage.read.plan.touched_keys`).
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Never, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from weft.storage.core import keys, names
from weft.storage.core.keys import KeyVector
from weft.storage.core.merge.locate_keys import key_columns, locate_keys, partition_text
from weft.storage.core.plan.key_ranges import KeyRange
from weft.storage.core.plan.slices import RANGE_COLUMNS, FileSlice, FileSlices, LiveFile
from weft.storage.core.predicate import ColumnRange, Condition, RangeLookup, may_hold, possible_values
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalars
from weft.storage.errors import InvalidInput
from weft.storage.read.plan.touched_keys import TouchedKeys
from weft.storage.read.request.scan_request import Keys

MAX_KEYS: Final = 10_000  # if a filter allows more keys, it is treated like a condition on other columns

KeyRows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[Any]
"""Keys that a caller passes: key values, tuples for a key of several columns, or rows with the key columns."""


def keys_in(schema: TableSchema, predicate: Condition | None, levels: Collection[int]) -> Keys | None:
    """All keys that rows of the result can have; None if the filter allows more than `MAX_KEYS` keys.

    Args:
        schema: The schema of the snapshot.
        predicate: The filter; None without a filter, or if it could not be parsed.
        levels: The bits of the file groups of the snapshot.
    """
    if predicate is None:
        return None
    values: list[list[Any]] = []
    for name in schema.key:
        possible = possible_values(predicate, name, schema.column_by_name[name].type)
        if possible is None:
            return None
        values.append(list(possible))
    if math.prod(map(len, values)) > MAX_KEYS:
        return None
    return locate_keys(schema, key_columns(schema, key_table(schema, list(itertools.product(*values)))), levels)


def key_table(schema: TableSchema, key_rows: KeyRows) -> pa.Table:
    """Convert keys of a caller to the key columns, with the types of the schema.

    Args:
        schema: The schema of the table.
        key_rows: Values of the key column; tuples if the key has several columns; or a table or batch with key columns.

    Raises:
        InvalidInput: A key has another type or number of columns, or contains null.
    """
    types = [schema.column_by_name[name].type for name in schema.key]
    try:
        if isinstance(key_rows, pa.Table | pa.RecordBatch):
            columns = [
                _cast(key_rows.column(name), arrow_type) for name, arrow_type in zip(schema.key, types, strict=True)
            ]
        else:
            rows = [key if isinstance(key, tuple) else (key,) for key in _check_list(key_rows)]
            columns = [
                _cast(pa.array([row[i] for row in rows if len(row) == len(types) or _refuse(row)]), arrow_type)
                for i, arrow_type in enumerate(types)
            ]
    except (pa.ArrowException, KeyError, TypeError, OverflowError, ValueError) as error:
        shape = ", ".join(f"{name} {arrow_type}" for name, arrow_type in zip(schema.key, types, strict=True))
        raise InvalidInput(f"the keys do not fit the table: {error}", hint=f"its key is ({shape})") from error
    if any(column.null_count for column in columns):
        raise InvalidInput("a key contains null", hint="leave it out: keys of rows are never null")
    return pa.table(columns, names=list(schema.key))


def _cast(values: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast keys. Refuses casts that Arrow allows although they change keys, such as that of a time to its date."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    families = {_family(kind), _family(target)}
    if pa.types.is_null(kind) or len(families) == 1:
        return values.cast(target)
    column = values.cast(target) if families == {"date", "time"} else None
    if column is None or not column.cast(kind).equals(values):
        raise TypeError(f"{kind} is not {target}")
    return column


_FAMILIES: Final = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "date": (pa.types.is_date,),
    "time": (pa.types.is_timestamp,),
}


def _family(kind: pa.DataType) -> str:
    """The family of a type, or the name of any other type. Arrow checks that casts within a family keep values."""
    families = (name for name, tests in _FAMILIES.items() if any(is_kind(kind) for is_kind in tests))
    return next(families, str(kind))


def _check_list(key_rows: Iterable[Any]) -> Iterable[Any]:
    if isinstance(key_rows, str | bytes | Mapping):  # iterating over these yields characters or names, not keys
        raise TypeError(f"a {type(key_rows).__name__} is not a list of keys")
    return key_rows


def _refuse(row: tuple[Any, ...]) -> Never:
    raise ValueError(f"{row!r} has {len(row)} values")


def prune_file_groups(
    schema: TableSchema, slices: FileSlices, predicate: Condition | None, requested_keys: Keys | None
) -> FileSlices:
    """The file groups that can have rows of the result, in the order of ``slices``."""
    if requested_keys is not None:
        return slices.select([number for number, group in enumerate(slices.groups) if group in requested_keys])
    if predicate is None or not schema.partition_by:
        return slices
    folders = _folders_in(schema, predicate)
    partitions = {group.partition for group in slices.groups}
    matching_partitions = {
        partition for partition in partitions if _partition_may_match(schema, partition, predicate, folders)
    }
    return slices.select(
        [number for number, group in enumerate(slices.groups) if group.partition in matching_partitions]
    )


def partitions_in(schema: TableSchema, predicate: Condition | None) -> list[str] | None:
    """The folders of all partitions that a filter allows; None if it does not limit them to a few."""
    if predicate is None or not schema.partition_by:
        return None
    named = _folders_in(schema, predicate)
    if named.keys() != set(schema.partition_by) or math.prod(map(len, named.values())) > MAX_KEYS:
        return None
    return ["/".join(folders) for folders in itertools.product(*(named[name] for name in schema.partition_by))]


def _folders_in(schema: TableSchema, predicate: Condition) -> Mapping[str, frozenset[str]]:
    """Folders of the partition values that a filter allows, by partition column; columns without a limit are left out.

    Computed once for each read: a filter may allow many values, and there may be many partitions.
    """
    result = {}
    for name in schema.partition_by:
        arrow_type = schema.column_by_name[name].type
        values = possible_values(predicate, name, arrow_type)
        if values is not None:
            result[name] = frozenset(_folder(name, value, arrow_type) for value in values)
    return result


def _partition_may_match(
    schema: TableSchema, partition: str, predicate: Condition, allowed_folders: Mapping[str, frozenset[str]]
) -> bool:
    folders = dict(zip(schema.partition_by, partition.split("/"), strict=True))
    if any(folders[name] not in allowed for name, allowed in allowed_folders.items()):
        return False
    return may_hold(
        predicate,
        lambda name: _value_of_folder(folders[name], schema.column_by_name[name].type) if name in folders else None,
    )


def _folder(name: str, value: Any, arrow_type: pa.DataType) -> str:
    return names.encode_partition(name, partition_text(pa.scalar(value, arrow_type)))


def _value_of_folder(folder: str, arrow_type: pa.DataType) -> ColumnRange | None:
    """Parse the value of a partition column from its folder; None for long and empty values, which are not in it."""
    text = unquote(folder.partition("=")[2])
    value: Any = None
    if "~" in folder or text == "__empty__":
        return None
    if pa.types.is_integer(arrow_type):
        value = int(text)
    elif pa.types.is_string(arrow_type):
        value = text
    elif pa.types.is_date(arrow_type):
        value = dt.date.fromisoformat(text)
    return None if value is None else ColumnRange(arrow_type, value, value, nulls=0, rows=1)


def narrow_log_ranges(
    schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile], vector: KeyVector
) -> FileSlice:
    """Reduce a file group to the log ranges that can contain these keys."""
    if len(file_slice.rows) == 0 or len(vector) == 0:
        return replace(file_slice, **{name: getattr(file_slice, name)[:0] for name in RANGE_COLUMNS})
    least, largest = block_keys(schema, file_slice, files)
    keep = keys.lower_bound(vector, least) < keys.upper_bounds(vector, largest)
    return replace(file_slice, **{name: getattr(file_slice, name)[keep] for name in RANGE_COLUMNS})


def block_keys(schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile]) -> tuple[KeyVector, KeyVector]:
    """The smallest and the largest key of the block of each log range; other file groups may share the block."""
    arrow_type = schema.slice.field(schema.sort_column).type
    blocks = [
        (files[file].index.blocks, block)
        for file, block in zip(file_slice.file.tolist(), file_slice.block.tolist(), strict=True)
    ]
    least = decode_scalars([of_file.key_min[block] for of_file, block in blocks], arrow_type)
    largest = decode_scalars([of_file.key_max[block] for of_file, block in blocks], arrow_type)
    return key_values(schema, least), key_values(schema, largest)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Selects the row groups of base files to read.

    Attributes:
        schema: The schema of the snapshot.
        predicate: The filter as a condition on merged rows; None without a filter, or if it could not be parsed.
        requested_keys: The keys to read; None for all.
        touched: The keys in the logs; None without logs, or without a filter.
        within: The range of keys to read; None for all.
    """

    schema: TableSchema
    predicate: Condition | None
    requested_keys: KeyVector | None
    touched: TouchedKeys | None
    within: KeyRange | None = None

    def may_match(self, ranges: RangeLookup) -> bool:
        """Whether the merged rows of a row group can be in the result."""
        if self.predicate is None and self.requested_keys is None and self.within is None:
            return True
        span = ranges(self.schema.sort_column)
        bounds = None
        if span is not None and span.least is not None:
            bounds = key_values(self.schema, [span.least, span.largest])
        if self.within is not None and bounds is not None and not self.within.may_contain(bounds):
            return False
        if self.requested_keys is not None and bounds is not None and not keys.any_within(self.requested_keys, bounds):
            return False
        if self.predicate is None or may_hold(self.predicate, ranges):
            return True
        return self.touched is not None and (bounds is None or self.touched.may_match(ranges, bounds))


def key_values(schema: TableSchema, values: Sequence[Any]) -> KeyVector:
    """Values of the sort column, such as those of statistics, as a key vector."""
    return keys.key_vector(pa.array(values, schema.slice.field(schema.sort_column).type))

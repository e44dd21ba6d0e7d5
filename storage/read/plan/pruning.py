"""Pruning: finds data that a read can skip because it cannot contain rows of the result.

There are three steps. Each may keep too much, but none drops rows that could match:

- file groups are chosen by the keys that the filter allows, and by their partition folders;
- log ranges are chosen by the key ranges of their blocks, if keys are known;
- row groups of base files are chosen by key range and by the statistics of all columns. A row group whose rows do not
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
from weft.storage.core.predicate import ColumnRange, Condition, Known, may_hold, possible_values
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalars
from weft.storage.errors import InvalidInput
from weft.storage.read.plan.touched_keys import TouchedKeys
from weft.storage.read.request.scan_request import Keys

MAX_KEYS: Final = 10_000  # if a filter allows more keys, it is treated like a condition on other columns

KeyRows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[Any]
"""Keys as a caller gives them: key values, tuples for a key of several columns, or rows with the key columns."""


def keys_in(schema: TableSchema, predicate: Condition | None, levels: Collection[int]) -> Keys | None:
    """All keys that rows of the result can have; None if the filter allows more than `MAX_KEYS`.

    Args:
        schema: The schema of the snapshot.
        predicate: The filter; None if there is none, or if it could not be read.
        levels: The bits of the file groups of the snapshot.
    """
    if predicate is None:
        return None
    values: list[list[Any]] = []
    for name in schema.key:
        found = possible_values(predicate, name, schema.column_by_name[name].type)
        if found is None:
            return None
        values.append(list(found))
    if math.prod(map(len, values)) > MAX_KEYS:
        return None
    return locate_keys(schema, key_columns(schema, key_table(schema, list(itertools.product(*values)))), levels)


def key_table(schema: TableSchema, given: KeyRows) -> pa.Table:
    """The key columns of given keys, with the types of the schema.

    Args:
        schema: The schema of the table.
        given: Values of the key column; tuples if the key has several columns; or a table or batch with key columns.

    Raises:
        InvalidInput: A key has another type or number of columns, or contains null.
    """
    types = [schema.column_by_name[name].type for name in schema.key]
    try:
        if isinstance(given, pa.Table | pa.RecordBatch):
            columns = [_cast(given.column(name), kind) for name, kind in zip(schema.key, types, strict=True)]
        else:
            rows = [key if isinstance(key, tuple) else (key,) for key in _listed(given)]
            columns = [
                _cast(pa.array([row[i] for row in rows if len(row) == len(types) or _refuse(row)]), kind)
                for i, kind in enumerate(types)
            ]
    except (pa.ArrowException, KeyError, TypeError, OverflowError, ValueError) as error:
        shape = ", ".join(f"{name} {kind}" for name, kind in zip(schema.key, types, strict=True))
        raise InvalidInput(f"the keys do not fit the table: {error}", hint=f"its key is ({shape})") from error
    if any(column.null_count for column in columns):
        raise InvalidInput("a key contains null", hint="no row has such a key: leave it out")
    return pa.table(columns, names=list(schema.key))


def _cast(given: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast keys. Refuses casts that Arrow allows and that change a key, as that of a time to its date."""
    kind = given.type.value_type if pa.types.is_dictionary(given.type) else given.type
    families = {_family(kind), _family(wanted)}
    if pa.types.is_null(kind) or len(families) == 1:
        return given.cast(wanted)
    column = given.cast(wanted) if families == {"date", "time"} else None
    if column is None or not column.cast(kind).equals(given):
        raise TypeError(f"{kind} was given for {wanted}")
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
    """Which values a type has; of any other type its name. Arrow checks that no value changes within a family."""
    families = (name for name, tests in _FAMILIES.items() if any(is_kind(kind) for is_kind in tests))
    return next(families, str(kind))


def _listed(given: Iterable[Any]) -> Iterable[Any]:
    if isinstance(given, str | bytes | Mapping):  # iterating over these gives characters or names, not keys
        raise TypeError(f"a {type(given).__name__} is not a list of keys")
    return given


def _refuse(row: tuple[Any, ...]) -> Never:
    raise ValueError(f"{row!r} has {len(row)} values")


def matching(schema: TableSchema, slices: FileSlices, predicate: Condition | None, wanted: Keys | None) -> FileSlices:
    """The file groups that can have rows of the result, in the given order."""
    if wanted is not None:
        return slices.chosen([number for number, group in enumerate(slices.groups) if group in wanted])
    if predicate is None or not schema.partition_by:
        return slices
    named = _folders_in(schema, predicate)
    partitions = {group.partition for group in slices.groups}
    kept = {partition for partition in partitions if _partition_may_match(schema, partition, predicate, named)}
    return slices.chosen([number for number, group in enumerate(slices.groups) if group.partition in kept])


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
    schema: TableSchema, partition: str, predicate: Condition, named: Mapping[str, frozenset[str]]
) -> bool:
    folders = dict(zip(schema.partition_by, partition.split("/"), strict=True))
    if any(folders[name] not in found for name, found in named.items()):
        return False
    return may_hold(
        predicate,
        lambda name: _value_of_folder(folders[name], schema.column_by_name[name].type) if name in folders else None,
    )


def _folder(name: str, value: Any, arrow_type: pa.DataType) -> str:
    return names.encode_partition(name, partition_text(pa.scalar(value, arrow_type)))


def _value_of_folder(folder: str, arrow_type: pa.DataType) -> ColumnRange | None:
    """The value of a partition column, from its folder; None for long and empty values, which are not in the name."""
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


def narrowed(schema: TableSchema, file_slice: FileSlice, files: Sequence[LiveFile], wanted: KeyVector) -> FileSlice:
    """A file group reduced to the log ranges that can contain wanted keys."""
    if len(file_slice.rows) == 0 or len(wanted) == 0:
        return replace(file_slice, **{name: getattr(file_slice, name)[:0] for name in RANGE_COLUMNS})
    least, largest = block_keys(schema, file_slice, files)
    keep = keys.lower_bound(wanted, least) < keys.upper_bounds(wanted, largest)
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
    """Chooses the row groups of base files to read.

    Attributes:
        schema: The schema of the snapshot.
        predicate: The filter as a condition on merged rows; None if there is no filter, or if it could not be read.
        wanted: The wanted keys; None for all.
        touched: The keys in the logs; None if there are no logs, or no filter.
        within: The wanted range of keys; None for all.
    """

    schema: TableSchema
    predicate: Condition | None
    wanted: KeyVector | None
    touched: TouchedKeys | None
    within: KeyRange | None = None

    def may_match(self, known: Known) -> bool:
        """Whether the merged rows of a row group can be in the result."""
        if self.predicate is None and self.wanted is None and self.within is None:
            return True
        span = known(self.schema.sort_column)
        bounds = None
        if span is not None and span.least is not None:
            bounds = key_values(self.schema, [span.least, span.largest])
        if self.within is not None and bounds is not None and not self.within.may_contain(bounds):
            return False
        if self.wanted is not None and bounds is not None and not keys.any_within(self.wanted, bounds):
            return False
        if self.predicate is None or may_hold(self.predicate, known):
            return True
        return self.touched is not None and (bounds is None or self.touched.may_match(known, bounds))


def key_values(schema: TableSchema, values: Sequence[Any]) -> KeyVector:
    """Values of the sort column, such as those of statistics, as a key vector."""
    return keys.key_vector(pa.array(values, schema.slice.field(schema.sort_column).type))

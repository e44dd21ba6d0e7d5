"""Converts input rows to events, and checks every rule about the content of a batch.

A batch is accepted or refused as a whole. Columns and types are checked first (`InvalidInput`), then rows (`Problem`,
so that a caller can set bad rows aside). The result is an *event batch*: key columns, columns of column groups, and the
operation as a number, with the stream's delete policy applied (MERGE.md, "Deletes" and "Input types").
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import names, ordering
from weft.storage.core.arrays import list_lengths, list_rows
from weft.storage.core.keys import Mask
from weft.storage.core.model import Group, Op, Stream
from weft.storage.core.modes import mode_of
from weft.storage.core.modes.functions import find_function
from weft.storage.core.schema.casting import cast_column
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput

OP_COLUMN: Final = "_op"
SUPPLIED_COLUMN: Final = "_supplied"
MAX_EXAMPLES: Final = 3

_UPSERT_WORDS: Final = ("upsert", "I", "U", "+I", "+U", "c", "u", "r", "insert", "update")
_DELETE_WORDS: Final = ("delete", "D", "-D", "d")
_BEFORE_WORDS: Final = ("-U", "update_before")
_FIRST_MOMENT: Final = dt.datetime.min.replace(tzinfo=dt.UTC)
_LAST_MOMENT: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
_CALENDAR: Final[Mapping[pa.DataType, tuple[dt.date, dt.date]]] = {
    pa.date32(): (dt.date.min, dt.date.max),
    pa.timestamp("us"): (_FIRST_MOMENT, _LAST_MOMENT),
    pa.timestamp("us", tz="UTC"): (_FIRST_MOMENT, _LAST_MOMENT),
}
"""Times with a text form in SQL and in Python; statistics, partition folders and messages need one."""
_UNITS: Final = {"milliseconds": (1_000, "timestamp_millis"), "microseconds": (1_000_000, "timestamp_micros")}
"""Units in which a number may be a time: units per second, and Spark's function for them."""
_LIKELY_SECONDS: Final = (946_684_800, 4_102_444_800)  # the years 2000 to 2100
_LOW_58: Final = np.uint64(2**58 - 1)
_INVERSE: Final = np.uint64(pow(15_625, -1, 2**58))
_UNKNOWN: Final = -1
_NO_COLUMN: Final = -1
_CODES: Final = {
    **dict.fromkeys(_UPSERT_WORDS, int(Op.UPSERT)),
    **dict.fromkeys(_DELETE_WORDS, int(Op.DELETE_GROUP)),
    **dict.fromkeys(_BEFORE_WORDS, int(Op.RETRACT)),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why some rows of a batch are refused.

    Attributes:
        column: The column with the problem.
        reason: What is wrong.
        hint: What to do.
        rows: Mask over the rows of the input batch.
        examples: A few of the rows, as text.
        advises: Whether the hint is about these rows in particular; then dead letters have it, too.
    """

    column: str
    reason: str
    hint: str
    rows: Mask
    examples: tuple[str, ...]
    advises: bool = False

    @property
    def error(self) -> InvalidInput:
        """The error that refuses the whole batch."""
        count = int(self.rows.sum())
        examples = f", for example {'; '.join(self.examples)}" if self.examples else ""
        return InvalidInput(
            f"column {self.column!r}: {self.reason} in {count} of {len(self.rows)} rows{examples}", hint=self.hint
        )


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of one stream.

    Attributes:
        rows: Key columns, columns of ``groups`` and `names.OP`, in input order.
        groups: The column groups of the batch.
        ignored: Number of input rows that were dropped because they have no effect.
        unordered: Number of ignored rows that are upserts without any ordering value; the others are ignored deletes.
    """

    rows: pa.Table
    groups: tuple[Group, ...]
    ignored: int
    unordered: int = 0


def prepare(table: pa.Table, schema: TableSchema, stream: Stream) -> EventBatch:
    """Convert a batch whose rows must all be valid to events.

    Args:
        table: The input rows.
        schema: The table's schema.
        stream: The stream that writes them.

    Raises:
        InvalidInput: The batch has a wrong column or type, or a bad row.
    """
    groups = present_groups(table.schema.names, schema, stream)
    columns = _cast(table, schema, stream, groups)
    codes, problems = _find_problems(table, columns, schema, stream, groups)
    if problems:
        raise problems[0].error
    return _events(columns, codes, schema, stream, groups)


def prepare_good(table: pa.Table, schema: TableSchema, stream: Stream) -> tuple[EventBatch, tuple[Problem, ...]]:
    """Convert the valid rows of a batch to events; returns them and the problems of the other rows.

    Spark's writes use this function. It also refuses rows with a time that is a number in another unit; `prepare`
    stores such times, because a program may have meant them.

    Args:
        table: The input rows.
        schema: The table's schema.
        stream: The stream that writes them.

    Raises:
        InvalidInput: The batch has a wrong column or type, so none of its rows can be valid.
    """
    groups = present_groups(table.schema.names, schema, stream)
    columns = _cast(table, schema, stream, groups)
    codes, problems = _find_problems(table, columns, schema, stream, groups)
    problems += _find_misread_times(columns, schema, groups)
    if problems:
        good = ~np.logical_or.reduce([problem.rows for problem in problems])
        keep = pa.array(good)
        columns = {name: column.filter(keep) for name, column in columns.items()}
        codes = codes[good]
    return _events(columns, codes, schema, stream, groups), tuple(problems)


def present_groups(column_names: Sequence[str], schema: TableSchema, stream: Stream) -> tuple[Group, ...]:
    """The column groups that a batch with these columns writes. Columns that were added to a group may be missing.

    Raises:
        InvalidInput: A column is unknown or belongs to another stream, a key column is missing, a group is incomplete,
            or the batch has no group.
    """
    allowed = schema.stream_columns(stream)
    for name in column_names:
        if column_names.count(name) > 1:
            raise InvalidInput(f"column {name!r} is in the batch twice", hint="keep one of them")
        if name in allowed or name == OP_COLUMN:
            continue
        if name == SUPPLIED_COLUMN and _takes_parts(schema, stream):
            continue
        if name in schema.group_of_column:
            raise InvalidInput(
                f"column {name!r} belongs to group {schema.group_of_column[name].name!r}, which stream "
                f"{stream.name!r} does not write",
                hint=f"columns of this stream: {', '.join(allowed)}",
            )
        raise InvalidInput(f"the table has no column {name!r}", hint=f"columns of this stream: {', '.join(allowed)}")
    for name in schema.key:
        if name not in column_names:
            raise InvalidInput(
                f"key column {name!r} is missing",
                hint=f"include all key columns in every event: {', '.join(schema.key)}",
            )
    groups = []
    for group_name in stream.groups:
        group = schema.group_by_name[group_name]
        missing = [name for name in group.columns if name not in column_names]
        if len(missing) == len(group.columns):
            continue
        whole = group.ordering if mode_of(group).accepts_partial else group.columns
        # Writers that started before a column was added do not have it.
        required = [name for name in whole if name not in schema.added]
        missing_names = [repr(name) for name in required if name in missing]
        if missing_names:
            raise InvalidInput(
                f"group {group.name!r} is incomplete: column {', '.join(missing_names)} is missing",
                hint=f"include all of {', '.join(required)}, or no column of the group",
            )
        groups.append(group)
    if not groups:
        raise InvalidInput(
            f"the batch has no column group of stream {stream.name!r}",
            hint=f"columns of this stream: {', '.join(allowed)}",
        )
    return tuple(groups)


def _takes_parts(schema: TableSchema, stream: Stream) -> bool:
    return any(mode_of(schema.group_by_name[name]).accepts_partial for name in stream.groups)


def _cast(table: pa.Table, schema: TableSchema, stream: Stream, groups: tuple[Group, ...]) -> dict[str, pa.Array]:
    used = set(schema.key).union(*(group.columns for group in groups))
    counts = {f.column for group in groups for f in group.functions if find_function(f.name).takes == "anything"}
    columns = {}
    for name in schema.stream_columns(stream):
        if name not in used or name not in table.schema.names:
            continue
        column = table.column(name)
        if name in counts:
            # Any type can be counted, because only NULL or not NULL matters.
            column = pc.if_else(column.is_valid(), pa.scalar(1, pa.int8()), pa.scalar(None, pa.int8()))
        columns[name] = cast_column(name, column, schema.event_types[name])
    for group in groups:
        for name in group.ordering:
            if pa.types.is_float64(columns[name].type):
                # -0.0 and 0.0 are equal but differ in bytes. Only 0.0 is stored: x + 0.0 never gives -0.0.
                columns[name] = pc.add(columns[name], 0.0)
    if SUPPLIED_COLUMN in table.schema.names:
        columns[names.SUPPLIED] = _supplied_ids(table.column(SUPPLIED_COLUMN), groups, schema)
    return columns


def _supplied_ids(supplied: pa.ChunkedArray, groups: Sequence[Group], schema: TableSchema) -> pa.Array:
    """Ids of the columns whose NULL is a value, one list per row. They may include columns that the batch omits.

    `_NO_COLUMN` stands for NULL, and for a name that is not a column of the batch's groups.

    Raises:
        InvalidInput: The column is not a list of strings.
    """
    columns = {name: schema.column_by_name[name].id for group in groups for name in group.columns}
    lists = cast_column(SUPPLIED_COLUMN, supplied, pa.list_(pa.string()))
    words = lists.flatten().dictionary_encode()
    ids = [columns.get(name, _NO_COLUMN) for name in words.dictionary.to_pylist()]
    flat = pa.array([*ids, _NO_COLUMN], pa.int32()).take(words.indices.fill_null(len(ids)))
    offsets = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(list_lengths(lists))]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, flat, type=schema.event_schema([names.SUPPLIED]).field(0).type)


def _find_unknown_supplied(
    table: pa.Table, columns: Mapping[str, pa.Array], groups: tuple[Group, ...]
) -> Iterator[Problem]:
    """Find rows whose `_supplied` has a name that is not a column of the batch's groups."""
    unknown = supplied_mask(columns.get(names.SUPPLIED), _NO_COLUMN, len(table))
    if unknown.any():
        group_columns = [name for group in groups for name in group.columns]
        names_of_rows = table.column(SUPPLIED_COLUMN).filter(pa.array(unknown)).slice(0, MAX_EXAMPLES)
        examples = tuple(
            repr(name) for supplied in names_of_rows.to_pylist() for name in supplied if name not in group_columns
        )
        reason = "a name that is not a column of a group in this batch"
        hint = f"columns: {', '.join(group_columns)}"
        yield Problem(SUPPLIED_COLUMN, reason, hint, unknown, examples[:MAX_EXAMPLES])


def supplied_mask(ids: pa.Array | None, column_id: int, rows: int) -> Mask:
    """Mask of the rows of a log file in which the NULL of one column is a value; ``ids`` is its `names.SUPPLIED`."""
    mask = np.zeros(rows, np.bool_)
    if ids is not None:
        mask[list_rows(ids)[np.asarray(ids.flatten()) == column_id]] = True
    return mask


def _find_problems(
    table: pa.Table, columns: Mapping[str, pa.Array], schema: TableSchema, stream: Stream, groups: tuple[Group, ...]
) -> tuple[np.ndarray, list[Problem]]:
    problems = [
        _problem(columns, schema, name, "NULL in a key column", "set the key in every event", columns[name].is_null())
        for name in schema.key
        if columns[name].null_count
    ]
    for group in groups:
        for name in group.ordering:
            if pa.types.is_float64(columns[name].type):
                nan = pc.is_nan(columns[name]).fill_null(False)
                if pc.any(nan).as_py():
                    hint = "NaN cannot be ordered: send NULL, or a number"
                    problems.append(_problem(columns, schema, name, "NaN in an ordering column", hint, nan))
    problems.extend(_find_unstorable(columns, schema, groups))
    problems.extend(_find_unknown_supplied(table, columns, groups))
    codes, problem = _operations(table)
    if problem is not None:
        problems.append(problem)
    if stream.on_delete != "ignore":
        problems.extend(_find_lost_deletes(columns, codes, schema, groups))
    return codes, problems


def _find_lost_deletes(
    columns: Mapping[str, pa.Array], codes: np.ndarray, schema: TableSchema, groups: tuple[Group, ...]
) -> Iterator[Problem]:
    """Find deletes and retractions that would have no effect because they have no ordering value."""
    retracting = tuple(group for group in groups if mode_of(group).retracts)
    for is_delete, touched in ((codes == Op.DELETE_GROUP, groups), (codes == Op.RETRACT, retracting)):
        untouched = _find_untouched_rows(columns, touched) if touched and is_delete.any() else None
        if untouched is not None and (is_lost := untouched & is_delete).any():
            ordering_names = " and ".join(name for group in touched for name in group.ordering)
            hint = "set the ordering value of the delete: it is newer than events with smaller values"
            reason = "NULL in every ordering column of a delete"
            yield _problem(columns, schema, ordering_names, reason, hint, is_lost)


def _find_unstorable(
    columns: Mapping[str, pa.Array], schema: TableSchema, groups: tuple[Group, ...]
) -> Iterator[Problem]:
    """Find values that readers cannot use: text that is not UTF-8; times of keys and ordering values out of range."""
    for name in (*schema.key, *(name for group in groups for name in group.ordering)):
        if (limits := _CALENDAR.get(columns[name].type)) is not None:
            low, high = (pa.scalar(limit, columns[name].type) for limit in limits)
            outside = pc.or_(pc.less(columns[name], low), pc.greater(columns[name], high)).fill_null(False)
            if pc.any(outside).as_py():
                for reason, advice, rows in _explain_times(columns[name], np.asarray(outside)):
                    hint = "keys and ordering values are in the years 1 to 9999: send NULL, or a time in this range"
                    yield replace(_problem(columns, schema, name, reason, advice or hint, rows), advises=bool(advice))
    for name, column in columns.items():
        if pa.types.is_string(column.type) or pa.types.is_nested(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                broken = np.array([not _is_valid(column.take(pa.array([i]))) for i in range(len(column))], np.bool_)
                hint = "decode the bytes with the right encoding, or declare the column binary"
                if broken.any():
                    yield _problem(columns, schema, name, "text that is not UTF-8", hint, broken)


def _explain_times(column: pa.Array, outside: Mask) -> Iterator[tuple[str, str, Mask]]:
    """Explain times outside the calendar: yields the problem, advice or "", and the mask of the rows.

    A likely reason is a number in another unit.
    """
    reason = "a time outside the calendar"
    rest = outside.copy()
    if pa.types.is_timestamp(column.type):
        ticks = np.asarray(column.view(pa.int64()).fill_null(0)).view(np.uint64)
        # The number was multiplied by a million, as if it were seconds; a number of microseconds lost its upper bits.
        # Multiplying with the inverse of the factor divides the product exactly: of 15625, after 6 bits are removed.
        numbers = (ticks >> np.uint64(6)) * _INVERSE & _LOW_58
        for unit, (factor, function) in _UNITS.items():
            low, high = (np.uint64(year * factor) for year in _LIKELY_SECONDS)
            like = rest & (ticks & np.uint64(63) == 0) & (low <= numbers) & (numbers <= high)
            if like.any():
                rest &= ~like
                advice = f"in a pipeline declare the field bigint in schema, and select {function}(FIELD)"
                yield f"{reason}: the number looks like {unit}, and was read as seconds", advice, like
    if rest.any():
        yield reason, "", rest


def _find_misread_times(
    columns: Mapping[str, pa.Array], schema: TableSchema, groups: tuple[Group, ...]
) -> list[Problem]:
    """Find numbers that were read as times in another unit. `_find_unstorable` checks keys and ordering columns."""
    checked_columns = {*schema.key, *(name for group in groups for name in group.ordering)}
    problems = []
    for name, column in columns.items():
        if (
            name not in checked_columns
            and pa.types.is_timestamp(column.type)
            and (limits := _CALENDAR.get(column.type))
        ):
            range_of = pc.min_max(column)
            low, high = (pa.scalar(limit, column.type) for limit in limits)
            ends = range_of["min"], range_of["max"]
            if ends[0].is_valid and (ends[0].value < low.value or ends[1].value > high.value):
                outside = pc.or_(pc.less(column, low), pc.greater(column, high)).fill_null(False)
                for reason, advice, rows in _explain_times(column, np.asarray(outside)):
                    if advice:
                        problem = _problem(columns, schema, name, reason, advice, rows)
                        problems.append(replace(problem, advises=True))
    return problems


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _operations(table: pa.Table) -> tuple[np.ndarray, Problem | None]:
    """Operation code of every row: deletes as DELETE_GROUP, unknown words as `_UNKNOWN`; and the problem or None."""
    if OP_COLUMN not in table.schema.names:
        return np.zeros(len(table), np.int8), None
    words = cast_column(OP_COLUMN, table.column(OP_COLUMN), pa.string()).dictionary_encode()
    distinct_words = words.dictionary.to_pylist()
    by_index = np.array([_CODES.get(word, _UNKNOWN) for word in distinct_words], np.int8)
    indices = np.asarray(words.indices.fill_null(len(distinct_words)))
    codes = np.append(by_index, np.int8(Op.UPSERT))[indices]
    unknown = codes == _UNKNOWN
    if not unknown.any():
        return codes, None
    examples = tuple(repr(word) for word in distinct_words if word not in _CODES)[:MAX_EXAMPLES]
    hint = f"{', '.join(_UPSERT_WORDS)}, {', '.join(_DELETE_WORDS)}, {', '.join(_BEFORE_WORDS)}, or NULL for an upsert"
    return codes, Problem(OP_COLUMN, "not an operation", hint, unknown, examples)


def _find_untouched_rows(columns: Mapping[str, pa.Array], groups: tuple[Group, ...]) -> Mask | None:
    """Mask of the rows without effect on any group, as they have no ordering value; None if every row has an effect."""
    result: Mask | None = None
    for group in groups:
        if not group.ordering:
            return None
        missing = ordering.all_null([columns[name] for name in group.ordering])
        if missing is None:
            return None
        result = missing if result is None else result & missing
    return result


def count_unordered(table: pa.Table, schema: TableSchema, stream: Stream) -> dict[str, int]:
    """Count upserts whose values of a group are dropped because all ordering columns of the group are NULL.

    If the batch has several groups, an upsert counts only where it has a value in the group.

    Returns:
        The number of upserts by the name of the group; groups without such upserts are left out.

    Raises:
        InvalidInput: The batch has a wrong column or type.
    """
    groups = present_groups(table.schema.names, schema, stream)
    columns = _cast(table, schema, stream, groups)
    upserts = _operations(table)[0] == Op.UPSERT
    counts = {}
    for group in groups:
        lost = _find_untouched_rows(columns, (group,))
        if lost is None:
            continue
        if len(groups) > 1:
            masks = [np.asarray(columns[name].is_valid()) for name in group.values if name in columns]
            lost = lost & np.logical_or.reduce(masks, axis=0, initial=np.False_) if masks else np.zeros_like(lost)
        if count := int((lost & upserts).sum()):
            counts[group.name] = count
    return counts


def _events(
    columns: Mapping[str, pa.Array], codes: np.ndarray, schema: TableSchema, stream: Stream, groups: tuple[Group, ...]
) -> EventBatch:
    is_dropped = np.zeros(len(codes), np.bool_)
    deletes, retracts = codes == Op.DELETE_GROUP, codes == Op.RETRACT
    if stream.on_delete == "ignore":
        is_dropped |= deletes
    if stream.on_delete == "ignore" or not any(mode_of(group).retracts for group in groups):
        is_dropped |= retracts
    if stream.on_delete == "row":
        codes = np.where(deletes, np.int8(Op.DELETE_ROW), codes)
    declined = int(is_dropped.sum())
    untouched = _find_untouched_rows(columns, groups)
    if untouched is not None:
        is_dropped |= untouched
    arrays = [*columns.values(), pa.array(codes, pa.int8())]
    rows = pa.Table.from_arrays(arrays, schema=schema.event_schema((*columns, names.OP)).remove_metadata())
    ignored = int(is_dropped.sum())
    return EventBatch(rows.filter(pa.array(~is_dropped)) if ignored else rows, groups, ignored, ignored - declined)


def _problem(
    columns: Mapping[str, pa.Array], schema: TableSchema, column: str, reason: str, hint: str, rows: pa.Array | Mask
) -> Problem:
    mask = np.asarray(rows)
    examples = tuple(
        f"row {i} (" + ", ".join(f"{name}={_format_value(columns[name][i])}" for name in schema.key) + ")"
        for i in np.flatnonzero(mask)[:MAX_EXAMPLES].tolist()
    )
    return Problem(column, reason, hint, mask, examples)


def _format_value(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):
        return f"not a {value.type}"  # this value may be the reason why the row is refused

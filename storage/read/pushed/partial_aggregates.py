"""Partial aggregates: counts, sums, minima and maxima of the rows of one task, by group.

A task returns partial results, and an engine adds them up: it sums counts and sums, and takes the least minimum and the
greatest maximum. A group may occur in several partial results, of one task too, so memory has a bound: when there are
too many groups, what there is so far is returned, and a new state begins. Without GROUP BY a task returns at least one
row, also if it has read none: then the counts are 0, and the others null.

Results are those of Spark SQL for every value:

* Null is a group of its own. Counts of a column, sums, minima and maxima leave nulls out.
* NaN is greater than every number. The two zeros are equal, so either one may be a minimum or a maximum. As keys of
  groups they are apart here, as NaNs of different bits are; the engine unites them.
* A sum of integers is a bigint, of floats a double, and of decimals has the type of the column. No partial sum
  overflows: rows whose sum might are returned in several partial results, or one by one. So the engine meets the
  overflow itself, if there is one in the order in which it adds, and does what its settings say.
* Doubles are added in another order than Spark would, which also depends on how Spark divides the rows.
* Texts and binaries are ordered by their bytes.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_GROUPS: Final = 65_536
"""Partial results are returned when a state has more groups than this."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The same for the bytes of a state."""
FEW_DUPLICATES: Final = 0.5
"""Groups of a batch for each of its rows, from which on keeping them for the next batch is not worth it."""

_BIGINT_MAX: Final = 2**63 - 1
_EXACT: Final = decimal.Context(prec=100)


class AggregateKind(Enum):
    """An aggregate function."""

    COUNT_ROWS = "count(*)"
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate; ``column`` is empty for `AggregateKind.COUNT_ROWS`."""

    kind: AggregateKind
    column: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}({self.column})" if self.column else self.kind.value


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What is computed for each group of rows.

    Attributes:
        groups: The columns of GROUP BY; none for one group of all rows.
        aggregates: The aggregates; none for the distinct groups alone.
    """

    groups: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are needed, each once."""
        return tuple(dict.fromkeys((*self.groups, *(each.column for each in self.aggregates if each.column))))

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names that the columns of GROUP BY have in the results, in their order."""
        return tuple(f"group_{number}" for number in range(len(self.groups)))

    def __str__(self) -> str:
        """As Spark's own sources say it in EXPLAIN."""
        groups = f", PushedGroupBy: [{', '.join(self.groups)}]" if self.groups else ""
        return f"PushedAggregates: [{', '.join(map(str, self.aggregates))}]{groups}"

    def result(self, schema: pa.Schema) -> pa.Schema | None:
        """The schema of the partial results; None if there is none, or no exact one for these types.

        Args:
            schema: The columns of the rows.
        """
        fields = []
        for column, name in zip(self.groups, self.group_names, strict=True):
            of_group = schema.field(column).type
            if pa.types.is_nested(of_group):
                return None
            fields.append(pa.field(name, of_group))
        for number, each in enumerate(self.aggregates):
            found = _result_type(each, schema.field(each.column).type if each.column else pa.null())
            if found is None:
                return None
            fields.append(pa.field(f"aggregate_{number}", found))
        return pa.schema(fields) if fields else None


def _result_type(aggregate: Aggregate, of_column: pa.DataType) -> pa.DataType | None:
    if aggregate.kind is AggregateKind.COUNT_ROWS:
        return pa.int64()
    if pa.types.is_nested(of_column):
        return None
    if aggregate.kind is AggregateKind.COUNT:
        return pa.int64()
    if aggregate.kind is not AggregateKind.SUM:
        return of_column
    if pa.types.is_integer(of_column):
        return pa.int64()
    if pa.types.is_floating(of_column):
        return pa.float64()
    return of_column if pa.types.is_decimal128(of_column) else None


def aggregate_batches(
    batches: Iterable[pa.RecordBatch], aggregation: Aggregation, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Partial results of the rows of ``batches``.

    Args:
        batches: Rows; they have at least the columns of the aggregation.
        aggregation: What is computed.
        schema: The columns of the batches.

    Yields:
        Batches with the schema of `Aggregation.result`, which must not be None.
    """
    result = aggregation.result(schema)
    assert result is not None, "the caller has checked the types"
    state = _State(_Steps(aggregation, result))
    for batch in batches:
        if batch.num_rows:
            for found in state.add(batch):
                yield from _batches(found, result)
    for found in state.finish(schema):
        yield from _batches(found, result)


def _batches(found: pa.Table, result: pa.Schema) -> list[pa.RecordBatch]:
    columns = [
        _from_ordered(column, field.type)
        if pa.types.is_floating(field.type) and pa.types.is_integer(column.type)
        else column.cast(field.type)
        for column, field in zip(found.columns, result, strict=True)
    ]
    return list(pa.table(columns, schema=result).combine_chunks().to_batches())


class _Steps:
    """The steps of an aggregation, in terms of Arrow: rows, partial results of rows, and of partial results."""

    def __init__(self, aggregation: Aggregation, result: pa.Schema) -> None:
        self.aggregation = aggregation
        self.names = result.names
        self.keys = self.names[: len(aggregation.groups)]
        self.sums = {
            name: result.field(name).type
            for name, each in zip(self.names[len(self.keys) :], aggregation.aggregates, strict=True)
            if each.kind is AggregateKind.SUM and not pa.types.is_floating(result.field(name).type)
        }
        self._calls = list(zip(self.names[len(self.keys) :], aggregation.aggregates, strict=True))

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Keys and arguments of the aggregates, under the names of the result."""
        columns: dict[str, pa.Array] = {
            key: batch.column(name) for key, name in zip(self.keys, self.aggregation.groups, strict=True)
        }
        for name, each in self._calls:
            if each.column:
                columns[name] = _argument(each.kind, batch.column(each.column))
        return pa.table(columns or {"rows": pa.nulls(batch.num_rows)})

    def of_rows(self, rows: pa.Table, *more_keys: str) -> pa.Table:
        """Partial results of rows; those with different values of further keys are apart."""
        if not self.keys and not more_keys:  # twice as fast as grouping by nothing
            found = (_of_all(each.kind, rows, name) for name, each in self._calls)
            return pa.table([pa.repeat(value, 1) for value in found], names=self.names)
        calls = [
            ([], "count_all") if each.kind is AggregateKind.COUNT_ROWS else (name, each.kind.value)
            for name, each in self._calls
        ]
        return self._named(rows.group_by([*self.keys, *more_keys], use_threads=False).aggregate(calls), len(more_keys))

    def of_partials(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Partial results united."""
        counts = (AggregateKind.COUNT_ROWS, AggregateKind.COUNT)
        calls = [(name, "sum" if each.kind in counts else each.kind.value) for name, each in self._calls]
        united = pa.concat_tables(partials, promote_options="permissive")
        return self._named(united.group_by(self.keys, use_threads=False).aggregate(calls))

    def one_by_one(self, rows: pa.Table) -> pa.Table:
        """A partial result of each row alone."""
        columns = [rows.column(key) for key in self.keys]
        for name, each in self._calls:
            if each.kind is AggregateKind.COUNT_ROWS:
                columns.append(pa.array(np.ones(rows.num_rows, np.int64)))
            elif each.kind is AggregateKind.COUNT:
                columns.append(rows.column(name).is_valid().cast(pa.int64()))
            else:
                columns.append(rows.column(name))
        return pa.table(columns, names=self.names)

    def _named(self, found: pa.Table, more_keys: int = 0) -> pa.Table:
        """Without the further keys, which are behind the others, and with the names of the result."""
        count = len(self.keys)
        return pa.table([*found.columns[:count], *found.columns[count + more_keys :]], names=self.names)


class _State:
    """Partial results of some batches that are not returned yet."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._partials: list[pa.Table] = []
        self._size = (0, 0)  # rows and bytes of the partial results
        self._sums = dict.fromkeys(steps.sums, 0)  # no sum of the united partial results is larger than this

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add rows; returns partial results for which there is no room or use."""
        steps, rows = self._steps, self._steps.rows(batch)
        longest = min((_fitting(rows.column(name), most) for name, most in self._arithmetic()), default=rows.num_rows)
        found = steps.of_rows(rows) if longest >= rows.num_rows else None
        sums = {name: _largest(found.column(name)) for name in steps.sums} if found is not None else {}
        if found is None or any(sums[name] > _most(of_sum) for name, of_sum in steps.sums.items()):
            yield self._in_parts(rows)
        elif steps.keys and found.num_rows > rows.num_rows * FEW_DUPLICATES:
            yield found
        else:
            if any(self._sums[name] + sums[name] > _most(of_sum) for name, of_sum in steps.sums.items()):
                yield from self._flush()
            self._keep(found)
            for name, largest in sums.items():
                self._sums[name] += largest
            if self._is_large():
                united = steps.of_partials(self._partials)
                self._forget()
                self._keep(united)
                if self._is_large(share=0.5):
                    yield from self._flush()

    def finish(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Return what is left."""
        if not self._partials and not self._steps.keys:
            nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            self._partials.append(self._steps.of_rows(self._steps.rows(nothing)))
        yield from self._flush()

    def _arithmetic(self) -> list[tuple[str, int]]:
        """The sums, and up to which value Arrow adds without an overflow."""
        return [
            (name, _BIGINT_MAX if pa.types.is_integer(of_sum) else 10**38 - 1)
            for name, of_sum in self._steps.sums.items()
        ]

    def _in_parts(self, rows: pa.Table) -> pa.Table:
        """Partial results of so few rows each that no sum is too large."""
        sums = self._steps.sums.items()
        longest = min(_fitting(rows.column(name), _most(of_sum)) for name, of_sum in sums)
        if longest < 2:
            return self._steps.one_by_one(rows)
        part = pa.array(np.arange(rows.num_rows) // longest)
        return self._steps.of_rows(rows.append_column("part", part), "part")

    def _keep(self, partial: pa.Table) -> None:
        rows, size = self._size
        self._partials.append(partial)
        self._size = rows + partial.num_rows, size + partial.nbytes

    def _forget(self) -> None:
        self._partials, self._size = [], (0, 0)

    def _is_large(self, share: float = 1.0) -> bool:
        rows, size = self._size
        return rows > MOST_GROUPS * share or size > MOST_BYTES * share

    def _flush(self) -> Iterator[pa.Table]:
        if self._partials:
            yield self._partials[0] if len(self._partials) == 1 else self._steps.of_partials(self._partials)
        self._forget()
        self._sums = dict.fromkeys(self._sums, 0)


def _argument(kind: AggregateKind, column: pa.Array) -> pa.Array:
    """The values that Arrow aggregates to the result of Spark."""
    if kind is AggregateKind.SUM and pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if kind in (AggregateKind.MIN, AggregateKind.MAX) and pa.types.is_floating(column.type):
        return ordered_floats(column)
    return column


def ordered_floats(column: pa.Array) -> pa.Array:
    """Integers in the order that Spark has for floats: NaN is the greatest, and the zeros are next to each other."""
    numbers = np.asarray(column.fill_null(0.0))
    numbers = np.where(np.isnan(numbers), numbers.dtype.type("nan"), numbers)  # one NaN, and a positive one
    bits = numbers.view(f"i{numbers.itemsize}")
    last = bits.itemsize * 8 - 1
    ordered = bits ^ ((bits >> last) & bits.dtype.type(2**last - 1))
    return pa.array(ordered, mask=np.asarray(column.is_null()))


def _from_ordered(column: pa.ChunkedArray, of_float: pa.DataType) -> pa.ChunkedArray:
    """The inverse of `ordered_floats`."""
    integers = np.asarray(column.fill_null(0))
    last = integers.itemsize * 8 - 1
    bits = integers ^ ((integers >> last) & integers.dtype.type(2**last - 1))
    numbers = bits.view(of_float.to_pandas_dtype())
    return pa.chunked_array([pa.array(numbers, of_float, mask=np.asarray(column.is_null()))])


def _of_all(kind: AggregateKind, rows: pa.Table, name: str) -> pa.Scalar:
    if kind is AggregateKind.COUNT_ROWS:
        return pa.scalar(rows.num_rows, pa.int64())
    return pc.call_function(kind.value, [rows.column(name)])


def _most(of_sum: pa.DataType) -> int:
    """The largest partial sum, as an integer without a scale."""
    return _BIGINT_MAX if pa.types.is_integer(of_sum) else int(10**of_sum.precision - 1)


def _largest(column: pa.ChunkedArray) -> int:
    """The largest absolute value, as an integer without a scale; 0 if there is none."""
    if pa.types.is_int64(column.type) and len(column) and not column.null_count:  # several times as fast as Arrow
        return max(max(-int(part.min()), int(part.max())) for part in map(np.asarray, column.chunks) if len(part))
    ends = pc.min_max(column).as_py()
    return max((_unscaled(value, column.type) for value in ends.values() if value is not None), default=0)


def _unscaled(value: int | decimal.Decimal, of_value: pa.DataType) -> int:
    if isinstance(value, int):
        return abs(value)
    return int(value.copy_abs().scaleb(of_value.scale, _EXACT))


def _fitting(column: pa.ChunkedArray, most: int) -> int:
    """How many of these values can be added in any order without a sum above ``most``."""
    largest = _largest(column)
    return most // largest if largest else len(column)

"""Partial aggregates: counts, sums, minima and maxima of the rows of one task, by group.

A task returns partial results, and an engine adds them up: it sums counts and sums, and takes the least minimum and the
greatest maximum. A group may occur in several partial results, also of one task, so memory is bounded: when there are
too many groups, the current state is returned, and a new state begins. Without GROUP BY a task returns at least one
row: if it has read no rows, counts are 0, and other aggregates null.

Results are those of Spark SQL for every value:

* Null is a separate group. Counts of a column, sums, minima and maxima ignore nulls.
* NaN is greater than every number. The two zeros are equal, so either one may be a minimum or a maximum. As keys of
  groups they are different here, as are NaNs of different bits; the engine combines them.
* A sum of integers is a bigint, of floats a double, and of decimals has the type of the column. No partial sum
  overflows: rows whose sum might overflow are returned in several partial results, or one by one. So an overflow
  occurs only in the engine, if it occurs in the order in which the engine adds, and its settings decide what happens.
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
"""Partial results are returned when a state has more bytes than this."""
FEW_DUPLICATES: Final = 0.5
"""Groups per row of a batch above which keeping them for the next batch is not worth it."""

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
    """The aggregates to compute for each group of rows.

    Attributes:
        groups: The columns of GROUP BY; empty for one group of all rows.
        aggregates: The aggregates; empty for the distinct groups alone.
    """

    groups: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, without duplicates."""
        columns = (aggregate.column for aggregate in self.aggregates if aggregate.column)
        return tuple(dict.fromkeys((*self.groups, *columns)))

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names that the columns of GROUP BY have in the results, in their order."""
        return tuple(f"group_{number}" for number in range(len(self.groups)))

    def __str__(self) -> str:
        """The text that Spark's own sources show in EXPLAIN."""
        groups = f", PushedGroupBy: [{', '.join(self.groups)}]" if self.groups else ""
        return f"PushedAggregates: [{', '.join(map(str, self.aggregates))}]{groups}"

    def result(self, schema: pa.Schema) -> pa.Schema | None:
        """The schema of the partial results; None if it has no columns, or if these types cannot be aggregated exactly.

        Args:
            schema: The columns of the rows.
        """
        fields = []
        for column, name in zip(self.groups, self.group_names, strict=True):
            group_type = schema.field(column).type
            if pa.types.is_nested(group_type):
                return None
            fields.append(pa.field(name, group_type))
        for number, aggregate in enumerate(self.aggregates):
            result_type = _result_type(
                aggregate, schema.field(aggregate.column).type if aggregate.column else pa.null()
            )
            if result_type is None:
                return None
            fields.append(pa.field(f"aggregate_{number}", result_type))
        return pa.schema(fields) if fields else None


def _result_type(aggregate: Aggregate, column_type: pa.DataType) -> pa.DataType | None:
    if aggregate.kind is AggregateKind.COUNT_ROWS:
        return pa.int64()
    if pa.types.is_nested(column_type):
        return None
    if aggregate.kind is AggregateKind.COUNT:
        return pa.int64()
    if aggregate.kind is not AggregateKind.SUM:
        return column_type
    if pa.types.is_integer(column_type):
        return pa.int64()
    if pa.types.is_floating(column_type):
        return pa.float64()
    return column_type if pa.types.is_decimal128(column_type) else None


def aggregate_batches(
    batches: Iterable[pa.RecordBatch], aggregation: Aggregation, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Compute partial results of the rows of ``batches``.

    Args:
        batches: Rows; they have at least the columns of the aggregation.
        aggregation: The aggregates to compute.
        schema: The columns of the batches.

    Yields:
        Batches with the schema of `Aggregation.result`, which must not be None.
    """
    result = aggregation.result(schema)
    assert result is not None, "the caller has checked the types"
    state = _State(_Steps(aggregation, result))
    for batch in batches:
        if batch.num_rows:
            for partial in state.add(batch):
                yield from _batches(partial, result)
    for partial in state.finish(schema):
        yield from _batches(partial, result)


def _batches(partial: pa.Table, result: pa.Schema) -> list[pa.RecordBatch]:
    columns = [
        _from_ordered(column, field.type)
        if pa.types.is_floating(field.type) and pa.types.is_integer(column.type)
        else column.cast(field.type)
        for column, field in zip(partial.columns, result, strict=True)
    ]
    return list(pa.table(columns, schema=result).combine_chunks().to_batches())


class _Steps:
    """The steps of an aggregation with Arrow: select arguments, aggregate rows, and combine partial results."""

    def __init__(self, aggregation: Aggregation, result: pa.Schema) -> None:
        self.aggregation = aggregation
        self.names = result.names
        self.keys = self.names[: len(aggregation.groups)]
        self.sums = {
            name: result.field(name).type
            for name, aggregate in zip(self.names[len(self.keys) :], aggregation.aggregates, strict=True)
            if aggregate.kind is AggregateKind.SUM and not pa.types.is_floating(result.field(name).type)
        }
        self._calls = list(zip(self.names[len(self.keys) :], aggregation.aggregates, strict=True))

    def rows(self, batch: pa.RecordBatch) -> pa.Table:
        """Keys and arguments of the aggregates, with the names of the result."""
        columns: dict[str, pa.Array] = {
            key: batch.column(name) for key, name in zip(self.keys, self.aggregation.groups, strict=True)
        }
        for name, aggregate in self._calls:
            if aggregate.column:
                columns[name] = _argument(aggregate.kind, batch.column(aggregate.column))
        return pa.table(columns or {"rows": pa.nulls(batch.num_rows)})

    def aggregate_rows(self, rows: pa.Table, *more_keys: str) -> pa.Table:
        """Partial results of rows; rows with different values of further keys are not combined."""
        if not self.keys and not more_keys:  # twice as fast as grouping by nothing
            values = (_aggregate_column(aggregate.kind, rows, name) for name, aggregate in self._calls)
            return pa.table([pa.repeat(value, 1) for value in values], names=self.names)
        calls = [
            ([], "count_all") if aggregate.kind is AggregateKind.COUNT_ROWS else (name, aggregate.kind.value)
            for name, aggregate in self._calls
        ]
        return self._with_result_names(
            rows.group_by([*self.keys, *more_keys], use_threads=False).aggregate(calls), len(more_keys)
        )

    def combine(self, partials: Sequence[pa.Table]) -> pa.Table:
        """Combine partial results."""
        counts = (AggregateKind.COUNT_ROWS, AggregateKind.COUNT)
        calls = [(name, "sum" if aggregate.kind in counts else aggregate.kind.value) for name, aggregate in self._calls]
        rows = pa.concat_tables(partials, promote_options="permissive")
        return self._with_result_names(rows.group_by(self.keys, use_threads=False).aggregate(calls))

    def one_by_one(self, rows: pa.Table) -> pa.Table:
        """One partial result for each row."""
        columns = [rows.column(key) for key in self.keys]
        for name, aggregate in self._calls:
            if aggregate.kind is AggregateKind.COUNT_ROWS:
                columns.append(pa.array(np.ones(rows.num_rows, np.int64)))
            elif aggregate.kind is AggregateKind.COUNT:
                columns.append(rows.column(name).is_valid().cast(pa.int64()))
            else:
                columns.append(rows.column(name))
        return pa.table(columns, names=self.names)

    def _with_result_names(self, table: pa.Table, more_keys: int = 0) -> pa.Table:
        """Drop the further keys, which come after the others, and set the names of the result."""
        count = len(self.keys)
        return pa.table([*table.columns[:count], *table.columns[count + more_keys :]], names=self.names)


class _State:
    """Partial results of some batches that are not returned yet."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._partials: list[pa.Table] = []
        self._size = (0, 0)  # rows and bytes of the partial results
        self._sums = dict.fromkeys(steps.sums, 0)  # no sum of the combined partial results is larger than this

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add rows; yields the partial results that the state does not keep."""
        steps, rows = self._steps, self._steps.rows(batch)
        longest = min(
            (_count_that_fits(rows.column(name), most) for name, most in self._overflow_limits()), default=rows.num_rows
        )
        partial = steps.aggregate_rows(rows) if longest >= rows.num_rows else None
        sums = {name: _largest(partial.column(name)) for name in steps.sums} if partial is not None else {}
        if partial is None or any(sums[name] > _largest_sum(sum_type) for name, sum_type in steps.sums.items()):
            yield self._aggregate_parts(rows)
        elif steps.keys and partial.num_rows > rows.num_rows * FEW_DUPLICATES:
            yield partial
        else:
            if any(self._sums[name] + sums[name] > _largest_sum(sum_type) for name, sum_type in steps.sums.items()):
                yield from self._flush()
            self._keep(partial)
            for name, largest in sums.items():
                self._sums[name] += largest
            if self._is_large():
                combined = steps.combine(self._partials)
                self._clear()
                self._keep(combined)
                if self._is_large(share=0.5):
                    yield from self._flush()

    def finish(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the remaining partial results."""
        if not self._partials and not self._steps.keys:
            no_rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            self._partials.append(self._steps.aggregate_rows(self._steps.rows(no_rows)))
        yield from self._flush()

    def _overflow_limits(self) -> list[tuple[str, int]]:
        """The sums, with the largest value up to which Arrow adds without an overflow."""
        return [
            (name, _BIGINT_MAX if pa.types.is_integer(sum_type) else 10**38 - 1)
            for name, sum_type in self._steps.sums.items()
        ]

    def _aggregate_parts(self, rows: pa.Table) -> pa.Table:
        """Partial results of parts of the rows that are so short that no sum is too large."""
        sums = self._steps.sums.items()
        longest = min(_count_that_fits(rows.column(name), _largest_sum(sum_type)) for name, sum_type in sums)
        if longest < 2:
            return self._steps.one_by_one(rows)
        part = pa.array(np.arange(rows.num_rows) // longest)
        return self._steps.aggregate_rows(rows.append_column("part", part), "part")

    def _keep(self, partial: pa.Table) -> None:
        rows, size = self._size
        self._partials.append(partial)
        self._size = rows + partial.num_rows, size + partial.nbytes

    def _clear(self) -> None:
        self._partials, self._size = [], (0, 0)

    def _is_large(self, share: float = 1.0) -> bool:
        rows, size = self._size
        return rows > MOST_GROUPS * share or size > MOST_BYTES * share

    def _flush(self) -> Iterator[pa.Table]:
        if self._partials:
            yield self._partials[0] if len(self._partials) == 1 else self._steps.combine(self._partials)
        self._clear()
        self._sums = dict.fromkeys(self._sums, 0)


def _argument(kind: AggregateKind, column: pa.Array) -> pa.Array:
    """Convert values so that Arrow aggregates them to the result of Spark."""
    if kind is AggregateKind.SUM and pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if kind in (AggregateKind.MIN, AggregateKind.MAX) and pa.types.is_floating(column.type):
        return ordered_floats(column)
    return column


def ordered_floats(column: pa.Array) -> pa.Array:
    """Convert floats to integers in Spark's order of floats: NaN is the greatest, and the zeros are neighbours."""
    numbers = np.asarray(column.fill_null(0.0))
    numbers = np.where(np.isnan(numbers), numbers.dtype.type("nan"), numbers)  # one NaN, and a positive one
    bits = numbers.view(f"i{numbers.itemsize}")
    last = bits.itemsize * 8 - 1
    ordered = bits ^ ((bits >> last) & bits.dtype.type(2**last - 1))
    return pa.array(ordered, mask=np.asarray(column.is_null()))


def _from_ordered(column: pa.ChunkedArray, float_type: pa.DataType) -> pa.ChunkedArray:
    """The inverse of `ordered_floats`."""
    integers = np.asarray(column.fill_null(0))
    last = integers.itemsize * 8 - 1
    bits = integers ^ ((integers >> last) & integers.dtype.type(2**last - 1))
    numbers = bits.view(float_type.to_pandas_dtype())
    return pa.chunked_array([pa.array(numbers, float_type, mask=np.asarray(column.is_null()))])


def _aggregate_column(kind: AggregateKind, rows: pa.Table, name: str) -> pa.Scalar:
    if kind is AggregateKind.COUNT_ROWS:
        return pa.scalar(rows.num_rows, pa.int64())
    return pc.call_function(kind.value, [rows.column(name)])


def _largest_sum(sum_type: pa.DataType) -> int:
    """The largest partial sum, as an integer without a scale."""
    return _BIGINT_MAX if pa.types.is_integer(sum_type) else int(10**sum_type.precision - 1)


def _largest(column: pa.ChunkedArray) -> int:
    """The largest absolute value, as an integer without a scale; 0 without values."""
    if pa.types.is_int64(column.type) and len(column) and not column.null_count:  # several times as fast as Arrow
        return max(max(-int(part.min()), int(part.max())) for part in map(np.asarray, column.chunks) if len(part))
    ends = pc.min_max(column).as_py()
    return max((_unscaled(value, column.type) for value in ends.values() if value is not None), default=0)


def _unscaled(value: int | decimal.Decimal, value_type: pa.DataType) -> int:
    if isinstance(value, int):
        return abs(value)
    return int(value.copy_abs().scaleb(value_type.scale, _EXACT))


def _count_that_fits(column: pa.ChunkedArray, most: int) -> int:
    """The number of these values that can be added in any order without a sum above ``most``."""
    largest = _largest(column)
    return most // largest if largest else len(column)

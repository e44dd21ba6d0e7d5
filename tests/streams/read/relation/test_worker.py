"""The worker's side of the live view: batches match the plan, or an error names the difference."""

from __future__ import annotations

import pyarrow as pa
import pytest

from weft.streams.read.relation.worker import RelationReadError, conform, conform_batches


def test_conform_selects_orders_and_casts() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"b": pa.array(["x"], pa.large_string()), "z": [1], "a": pa.array([7], pa.int32())}
    )
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert conform(batch, schema) == pa.RecordBatch.from_pydict({"a": [7], "b": ["x"]}, schema=schema)


def test_conform_without_columns_keeps_the_number_of_rows() -> None:
    assert conform(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}), pa.schema([])).num_rows == 3


def test_conform_names_a_missing_and_a_wrong_column() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1 << 40])})
    with pytest.raises(RelationReadError, match="column 'b' was planned, but read returned"):
        conform(batch, pa.schema([("b", pa.int64())]))
    with pytest.raises(RelationReadError, match="column 'a' was planned as int32"):
        conform(batch, pa.schema([("a", pa.int32())]))


def test_large_batches_are_split_and_empty_ones_dropped() -> None:
    schema = pa.schema([("a", pa.int64())])
    batches = [pa.RecordBatch.from_pydict({"a": list(range(count))}, schema=schema) for count in (0, 5, 2)]
    assert [batch.num_rows for batch in conform_batches(batches, schema, batch_rows=2)] == [2, 2, 1, 2]


@pytest.mark.parametrize("same_order", [True, False])
def test_nulls_in_a_column_without_nulls_are_refused(*, same_order: bool) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    names = ["k", "v"] if same_order else ["v", "k"]
    fields = [schema.field(name) for name in names]
    good = pa.record_batch({"k": pa.array([1, 2]), "v": pa.array([None, 3], pa.int64())}).select(names)
    good = pa.RecordBatch.from_arrays(good.columns, schema=pa.schema(fields))
    assert [batch.to_pydict() for batch in conform_batches([good], schema)] == [{"k": [1, 2], "v": [None, 3]}]
    bad = pa.record_batch({"k": pa.array([1, None]), "v": pa.array([2, 3])}).select(names)
    bad = pa.RecordBatch.from_arrays(bad.columns, schema=pa.schema(fields))
    with pytest.raises(RelationReadError, match="'k' was planned without nulls"):
        list(conform_batches([bad], schema))

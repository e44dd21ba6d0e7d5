"""Encodings of base files: columns without repeated values get no dictionary, and values of every type round-trip."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weft.storage.files.column_encoding import choose_encodings
from weft.storage.files.footers import Footer
from weft.storage.files.text_columns import dictionary_columns, without_dictionary

ROWS = 10_000
DAY = dt.date(2000, 1, 1)
DISTINCT = {
    "whole": pa.array(range(ROWS), pa.int64()),
    "small": pa.array([i % 30_000 for i in range(ROWS)], pa.int16()),
    "day": pa.array([DAY + dt.timedelta(i) for i in range(ROWS)]),
    "moment": pa.array(range(ROWS), pa.timestamp("us", tz="UTC")),
    "price": pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
    "float": pa.array([i * 0.1 for i in range(ROWS)]),
    "single": pa.array([i * 0.5 for i in range(ROWS)], pa.float32()),
    "large": pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(38, 2)),
    "text": pa.array([f"t{i}" for i in range(ROWS)]),
    "bytes": pa.array([f"t{i}".encode() for i in range(ROWS)]),
    "flag": pa.array([i % 2 == 0 for i in range(ROWS)]),
    "a.b": pa.array(range(ROWS), pa.int64()),
    "list": pa.array([[i, None] for i in range(ROWS)]),
    "map": pa.array([[("a", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": i, "y": {"z": [str(i)]}} for i in range(ROWS)]),
    "null": pa.nulls(ROWS, pa.int32()),
}
EXPECTED = {
    "whole": "DELTA_BINARY_PACKED",
    "small": "DELTA_BINARY_PACKED",
    "day": "DELTA_BINARY_PACKED",
    "moment": "DELTA_BINARY_PACKED",
    "price": "DELTA_BINARY_PACKED",
    "a.b": "DELTA_BINARY_PACKED",
    "float": "BYTE_STREAM_SPLIT",
    "single": "BYTE_STREAM_SPLIT",
    "large": "PLAIN",
    "text": "PLAIN",
    "bytes": "PLAIN",
}


def written(rows: pa.Table) -> pq.ParquetFile:
    chosen = choose_encodings(rows)
    sink = io.BytesIO()
    pq.write_table(
        rows,
        sink,
        use_dictionary=chosen.use_dictionary,
        column_encoding=chosen.column_encoding,
        store_decimal_as_integer=True,
    )
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


def encodings(parquet: pq.ParquetFile) -> dict[str, tuple[str, ...]]:
    group = parquet.metadata.row_group(0)
    return {(column := group.column(i)).path_in_schema: column.encodings for i in range(group.num_columns)}


def test_values_that_do_not_repeat_get_the_encoding_of_their_type() -> None:
    parquet = written(pa.table(DISTINCT))
    assert parquet.read().equals(pa.table(DISTINCT))
    found = encodings(parquet)
    assert {name: encoding for name, encoding in EXPECTED.items() if encoding not in found[name]} == {}
    assert [name for name in EXPECTED if "RLE_DICTIONARY" in found[name]] == []
    assert "RLE_DICTIONARY" in found["map.key_value.key"]
    assert "RLE_DICTIONARY" in found["struct.y.z.list.element"]


@pytest.mark.parametrize("rows", [1, 2, 5, ROWS])
def test_values_that_repeat_get_a_dictionary(rows: int) -> None:
    same = {name: column.take(pa.array([1] * ROWS)).slice(0, rows) for name, column in DISTINCT.items()}
    parquet = written(pa.table(same))
    assert parquet.read().equals(pa.table(same))
    if rows == ROWS:
        assert "RLE_DICTIONARY" in encodings(parquet)["whole"]
        assert "RLE_DICTIONARY" in encodings(parquet)["text"]


@pytest.mark.parametrize("name", ["s.x", "l.list.element", "m.key_value.value"])
def test_a_column_may_have_the_name_of_a_nested_path(name: str) -> None:
    rows = pa.table(
        {
            "s": pa.array([{"x": f"t{i}"} for i in range(ROWS)]),
            "l": pa.array([[f"t{i}"] for i in range(ROWS)]),
            "m": pa.array([[("a", f"t{i}")] for i in range(ROWS)], pa.map_(pa.string(), pa.string())),
            name: DISTINCT["whole"],
        }
    )
    assert written(rows).read().equals(rows)


def test_texts_with_a_short_dictionary_are_decoded_by_way_of_it() -> None:
    values = [None if i % 7 == 0 else f"word {i % 50}" for i in range(ROWS)]
    rows = pa.table(
        {
            "repeated": pa.array(values),
            "bytes": pa.array(values).cast(pa.binary()),
            "distinct": DISTINCT["text"],
            "too long": pa.array([f"{i % 1500:01000}" for i in range(ROWS)]),
            "number": pa.array([i % 3 for i in range(ROWS)]),
            "list": pa.array([[value] for value in values]),
        }
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink, use_dictionary=["repeated", "bytes", "too long", "number"], row_group_size=3_000)
    footer = Footer.of(pq.read_metadata(sink))
    chosen = dictionary_columns(footer, [*rows.schema.names, "unknown"])
    assert chosen == ["repeated", "bytes"]
    with pq.ParquetFile(sink, read_dictionary=chosen) as file:
        found = file.read()
    assert pa.types.is_dictionary(found.schema.field("repeated").type)
    for name in rows.schema.names:
        assert without_dictionary(found.column(name)).equals(rows.column(name))

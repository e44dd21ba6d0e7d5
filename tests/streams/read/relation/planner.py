"""An implementation of the planner interface of the live view over Parquet files, which records its calls.

The planner and its tasks record the requested columns and filters, so that tests can distinguish a pruned scan from one
that merely gives the right rows.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from weft.storage.core.predicate import Condition
from weft.streams.read.relation.live_view import ParquetFile, Part, PinnedPlanner, ReadPlan

# Pickled by value, because the tests are not on the path of Spark's Python workers.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows(start: int, count: int) -> pa.Table:
    """Rows with nulls in every column except the first, at a different interval in each column."""

    def maybe(every: int, index: int, value: Any) -> Any:
        return None if index % every == 0 else value

    numbers = range(start, start + count)
    columns: dict[str, list[Any]] = {
        "id": list(numbers),
        "small": [maybe(5, i, i % 10) for i in numbers],
        "name": [maybe(7, i, f"name {i % 13}") for i in numbers],
        "price": [maybe(6, i, decimal.Decimal(i * 25) / 100) for i in numbers],
        "ratio": [maybe(9, i, float("nan") if i % 11 == 0 else i / 4) for i in numbers],
        "flag": [maybe(8, i, i % 3 == 0) for i in numbers],
        "day": [maybe(10, i, dt.date(1066 if i % 13 == 0 else 2024, 1, 1) + dt.timedelta(days=i)) for i in numbers],
        "at": [
            maybe(11, i, dt.datetime(1500 if i % 13 == 0 else 2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i))
            for i in numbers
        ],
        "place": [maybe(4, i, {"city": f"c{i % 3}", "zip": i}) for i in numbers],
        "tags": [maybe(3, i, ["x"] * (i % 4)) for i in numbers],
    }
    return pa.table(columns, schema=SCHEMA)


class Files:
    """A table of Parquet files in which every `add` creates a new state."""

    def __init__(self, folder: Path, *, native: bool = False) -> None:
        self.folder = folder
        self.native = native
        self.paths: list[Path] = []
        self.pins = 0
        self.plans: list[tuple[tuple[str, ...], tuple[Condition, ...]]] = []
        self.exact: Callable[[Sequence[Condition]], Sequence[int]] = lambda _filters: ()
        self.on_pin: Callable[[], None] = lambda: None
        self.on_plan: Callable[[], None] = lambda: None
        self.read: Callable[[Any], Iterator[pa.RecordBatch]] = read_file
        folder.mkdir(parents=True)

    def add(self, table: pa.Table) -> None:
        path = self.folder / f"{len(self.paths):04}.parquet"
        pq.write_table(table, path, row_group_size=16)
        self.paths.append(path)

    def __call__(self) -> State:
        self.on_pin()
        self.pins += 1
        return State(self, tuple(self.paths))

    def columns_read(self) -> set[tuple[str, ...]]:
        """The reads of the tasks since the last call."""
        notes = list(self.folder.glob("*.read"))
        read = {tuple(json.loads(note.read_text())) for note in notes}
        for note in notes:
            note.unlink()
        return read


class State(PinnedPlanner):
    def __init__(self, files: Files, paths: tuple[Path, ...]) -> None:
        self._files = files
        self._paths = paths

    def schema(self) -> StructType:
        return from_arrow_schema(pq.read_schema(self._paths[-1])) if self._paths else from_arrow_schema(SCHEMA)

    def exact(self, filters: Sequence[Condition], _part: Part) -> Sequence[int]:
        return self._files.exact(filters)

    def plan(self, columns: Sequence[str], filters: Sequence[Condition], _part: Part) -> ReadPlan:
        self._files.on_plan()
        self._files.plans.append((tuple(columns), tuple(filters)))
        return ReadPlan(
            description=f"{len(self._paths)} files of the test",
            tasks=[(str(path), tuple(columns)) for path in self._paths],
            read=self._files.read,
            parquet_files=[ParquetFile(f"file://{path}", path.stat().st_size) for path in self._paths]
            if self._files.native
            else None,
        )


def read_file(task: tuple[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    path, columns = task
    note = Path(path).with_name(f"{uuid.uuid4().hex}.read")
    note.write_text(json.dumps(columns))
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        if not columns:
            count = file.metadata.row_group(group).num_rows
            yield pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
            continue
        table = file.read_row_group(group, columns=list(columns))
        missing = [name for name in columns if name not in table.column_names]
        for name in missing:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.int64()))
        yield from table.select(list(columns)).to_batches()


def only_ids_below_ten(task: tuple[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    path, columns = task
    for batch in read_file((path, columns)):
        ids = pq.read_table(path, columns=["id"])["id"].to_pylist()[: batch.num_rows]
        yield batch.filter(pa.array([number < 10 for number in ids]))


def answer(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())

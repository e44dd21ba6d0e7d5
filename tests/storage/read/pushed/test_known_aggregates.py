"""Aggregates that are known without reading rows, united with those of rows that are read, are those of all rows."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.errors import CorruptData
from weft.storage.files.base_file import SliceReader
from weft.storage.read.pushed import known_aggregates as module
from weft.storage.read.pushed.aggregated_scan import AggregatedScan
from weft.storage.read.pushed.known_aggregates import known_aggregates
from weft.storage.read.pushed.partial_aggregates import Aggregate, AggregateKind, Aggregation
from weft.storage.read.request.filter_input import parse_filter
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.divide_scan import divide
from weft.storage.read.scan.scan import Scan

COUNT, MIN, MAX, SUM = AggregateKind.COUNT, AggregateKind.MIN, AggregateKind.MAX, AggregateKind.SUM
VALUES: dict[str, tuple[str, list[Any]]] = {
    "tiny": ("tinyint", [127, -128, 3, None]),
    "long": ("bigint", [2**62, -(2**62), 5, None]),
    "flag": ("boolean", [True, False, None]),
    "day": ("date", [dt.date(1066, 1, 1), dt.date(2026, 1, 1), None]),
    "at": ("timestamp", [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 1, 1, tzinfo=dt.UTC), None]),
    "local": (
        "timestamp_ntz",
        [dt.datetime.fromisoformat("1500-01-01"), dt.datetime.fromisoformat("2026-01-01"), None],
    ),
    "price": ("decimal(7,2)", [decimal.Decimal("1.25"), decimal.Decimal("-7.5"), None]),
    "double": ("double", [float("nan"), -0.0, 1.5, None]),
    "text": ("string", ["", "a" * 100, None]),
}
EXACT = ("tiny", "long", "flag", "day", "at", "local")
ORDERING = {"g": "g_ts", "h": "h_ts"}
CONFIG: dict[str, Any] = {
    "key": ["p", "id"],
    "partition_by": ["p"],
    "buckets": 2,
    "columns": {"p": "int", "id": "bigint"}
    | {name: kind for name, (kind, _) in VALUES.items()}
    | dict.fromkeys(ORDERING.values(), "bigint"),
    "groups": {
        "g": {"columns": ["tiny", "long", "text", "double", "g_ts"], "ordering": ["g_ts"]},
        "h": {"columns": ["flag", "day", "at", "local", "price", "h_ts"], "ordering": ["h_ts"]},
    },
    "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "u": {"groups": ["h"]}},
    "overlays": True,
}
EVERY = [
    Aggregate(AggregateKind.COUNT_ROWS),
    *(Aggregate(COUNT, name) for name in ("id", *VALUES)),
    *(Aggregate(kind, name) for kind in (MIN, MAX) for name in ("p", "id", *EXACT)),
]


def write(table: Table, source: random.Random, moment: int, partition: int) -> None:
    """Upserts and deletes of one group in one partition."""
    ids = source.sample(range(12), 6)
    stream, group = source.choice([("s", "g"), ("s", "g"), ("u", "h")])
    names = [name for name in CONFIG["groups"][group]["columns"] if name in VALUES]
    schema = table.snapshot().schema
    nulls = source.random() < 0.2
    columns = {
        name: pa.array([None if nulls else source.choice(VALUES[name][1]) for _ in ids], schema.field(name).type)
        for name in names
    }
    ops = [source.choice("IIIID") if stream == "s" else "I" for _ in ids]
    rows = {"p": pa.array([partition] * 6, pa.int32()), "id": ids, **columns, ORDERING[group]: [moment] * 6, "_op": ops}
    with table.writer(stream) as writer:
        writer.append(pa.table(rows))


def small_table(folder: Path, **tuning: Any) -> Table:
    table = Table.create(folder, CONFIG)
    return Table(table.env.tuned(overlay_percent=1000, **tuning), table._table_log.stamps)


def scan_of(table: Table, aggregation: Aggregation, **request: Any) -> tuple[Scan, pa.RecordBatch | None]:
    request["filter"] = parse_filter(request.get("filter"))
    return known_aggregates(table.snapshot().choose_slices(ScanRequest(aggregation.columns, **request)), aggregation)


def answer(table: Table, aggregation: Aggregation, **request: Any) -> list[Any]:
    """What an engine makes of the results of all tasks."""
    rest, known = scan_of(table, aggregation, **request)
    read = AggregatedScan(divide(rest, table.snapshot().files, 2), aggregation, known)
    found = [batch for task in read.tasks for batch in read.without_tasks().read(task)]
    assert all(batch.schema == aggregation.result(rest.arrow) for batch in found)
    united: list[Any] = []
    for number, each in enumerate(aggregation.aggregates):
        values = [value for batch in found for value in batch.column(number).to_pylist() if value is not None]
        if each.kind in (MIN, MAX):
            united.append((min if each.kind is MIN else max)(values, default=None))
        else:
            united.append(sum(values))
    return united


def expected(table: Table, aggregation: Aggregation, **request: Any) -> list[Any]:
    rows = table.snapshot().to_arrow(**request)
    result: list[Any] = []
    for each in aggregation.aggregates:
        values = [value for value in rows.column(each.column).to_pylist() if value is not None] if each.column else []
        if each.kind in (MIN, MAX):
            result.append((min if each.kind is MIN else max)(values, default=None))
        else:
            result.append(len(values) if each.column else rows.num_rows)
    return result


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2, 12))])
def test_known_and_read_aggregates_are_those_of_all_rows(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    small = source.choice([{"small_group_bytes": 0}, {}])  # a file for each file group, or shared files
    table = small_table(tmp_path / "t", row_group_rows=4, **small)
    seen = set()
    for moment in range(1, 10):
        for partition in range(3):
            if source.random() < 0.5:
                write(table, source, moment, partition)
        if source.random() < 0.7:
            chosen = {f"p={partition}" for partition in range(3) if source.random() < 0.7}
            table.compact(lambda part, chosen=chosen: str(part.group.partition) in chosen)
        if moment == 5:
            table.add_column("g", "later", "int", default=source.choice([None, 7]))
        later = [Aggregate(MAX, "later"), Aggregate(COUNT, "later")] if moment >= 5 else []
        for aggregates in ([EVERY[0]], [EVERY[0], *later], source.sample(EVERY, 3), EVERY):
            aggregation = Aggregation((), tuple(aggregates))
            assert answer(table, aggregation) == expected(table, aggregation), (moment, str(aggregation))
            rest, known = scan_of(table, aggregation)
            seen.add((known is not None, bool(rest.slices)))
            assert (known is not None) is (len(rest.slices) < len(table.snapshot().slices))
    assert seen == {(True, True), (False, True), (True, False)} or {(True, True)} <= seen


@pytest.fixture
def compacted(tmp_path: Path) -> Table:
    table = small_table(tmp_path / "t", small_group_bytes=0)
    source = random.Random(1)
    for moment in range(1, 9):
        for partition in range(2):
            write(table, source, moment, partition)
    table.compact()
    return table


def test_nothing_is_read_of_a_compacted_table(compacted: Table) -> None:
    for aggregates in (EVERY[:1], EVERY):
        aggregation = Aggregation((), tuple(aggregates))
        right = expected(compacted, aggregation)
        with mock.patch.object(SliceReader, "file", side_effect=AssertionError("rows are read")):
            assert answer(compacted, aggregation) == right
    with mock.patch.object(module, "read_footers", side_effect=AssertionError("a footer is read")):
        rest, known = scan_of(compacted, Aggregation((), (EVERY[0],)))
    assert (known is not None, rest.slices) == (True, ())


def test_a_missing_file_is_not_noticed_by_a_count_of_rows_alone(compacted: Table) -> None:
    count, counts = Aggregation((), (EVERY[0],)), Aggregation((), (EVERY[0], Aggregate(COUNT, "id")))
    right = answer(compacted, count)
    base = next(part.slice.base for part in compacted.snapshot().slices if part.slice is not None)
    assert base is not None
    Path(compacted.uri.removeprefix("file://"), base.path).unlink()
    missing = Table.open(compacted.uri)
    assert answer(missing, count) == right, "known from the log: no request is sent for it"
    with pytest.raises(CorruptData, match="missing"):
        answer(missing, counts)
    with pytest.raises(CorruptData, match="missing"):
        missing.snapshot().to_arrow(["id"])
    assert any(base.path in str(finding) for finding in missing.verify(deep=False).findings)


@pytest.mark.parametrize(
    "aggregates",
    [
        *((Aggregate(kind, name),) for kind in (MIN, MAX) for name in ("price", "double", "text")),
        (Aggregate(SUM, "long"),),
        (EVERY[0], Aggregate(MAX, "double")),
        (Aggregate(COUNT, "_arrival_g"),),
        (Aggregate(MAX, "_present_h"),),
    ],
    ids=lambda aggregates: ", ".join(map(str, aggregates)),
)
def test_what_statistics_do_not_say_exactly_is_read(compacted: Table, aggregates: tuple[Aggregate, ...]) -> None:
    rest, known = scan_of(compacted, Aggregation((), aggregates))
    assert (known, len(rest.slices)) == (None, len(compacted.snapshot().slices))


def test_groups_filters_required_groups_and_keys_are_read(compacted: Table) -> None:
    count = Aggregation((), (EVERY[0],))
    for request in ({"filter": [("long", ">", 5)]}, {"filter": [("id", "=", 3)]}, {"require": ["h"]}):
        rest, known = scan_of(compacted, count, **request)
        assert (known, bool(rest.slices)) == (None, True), request
        assert answer(compacted, count, **request) == expected(compacted, count, **request)
    assert scan_of(compacted, Aggregation(("flag",), (EVERY[0],)))[1] is None


def test_many_files_are_left_to_tasks(compacted: Table) -> None:
    with mock.patch.object(module, "MOST_FOOTERS", 3):
        assert scan_of(compacted, Aggregation((), (Aggregate(MAX, "id"),)))[1] is None
        assert scan_of(compacted, Aggregation((), (EVERY[0],)))[1] is not None
    with mock.patch.object(module, "MOST_FOOTERS", 4):
        assert scan_of(compacted, Aggregation((), (Aggregate(MAX, "id"),)))[1] is not None


def test_without_rows_there_is_one_result_and_with_groups_none(tmp_path: Path) -> None:
    table = small_table(tmp_path / "t")
    assert answer(table, Aggregation((), tuple(EVERY))) == [0] * 11 + [None] * 16
    scan = AggregatedScan(table.snapshot().scan(["flag"]), Aggregation(("flag",), (EVERY[0],)))
    assert scan.tasks == ()

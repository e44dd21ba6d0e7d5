"""A copy of a foreign table: the same rows, all or none, and the same import again has no effect."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.imports.sources import ROWS, hudi, paimon, parquet
from tests.storage.support.published_types import table_with_unused_rows
from tests.storage.support.shop import new_uri
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.environment import Environment, open_environment
from weft.storage.errors import Conflict, CorruptData, InvalidInput, NotFound
from weft.storage.imports.foreign_table import ForeignTable, open_foreign
from weft.storage.imports.import_table import LANE, ImportResult, import_into, import_table
from weft.storage.imports.translate import Format, translate
from weft.storage.publish.targets import DeltaTarget
from weft.storage.store.open_store import open_store

GROUPS = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "status": "string", "ts": "bigint", "paid": "double", "paid_ts": "timestamp_ntz"},
    "groups": {
        "order": {"columns": ["status", "ts"], "ordering": ["ts"]},
        "payment": {"columns": ["paid", "paid_ts"], "ordering": ["paid_ts"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}


def copied(
    source: ForeignTable,
    uri: str,
    config: Mapping[str, Any] | None = None,
    *,
    key: Sequence[str] | None = None,
    **arguments: Any,
) -> ImportResult:
    chosen = config or translate(source.kind, source.declaration(), key=key).config
    return import_table(uri, source, chosen, **arguments)


def rows_of(uri: str) -> list[dict[str, Any]]:
    rows = Table.open(uri).snapshot().to_arrow().to_pylist()
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=lambda row: row["id"])


def expected(rows: pa.Table = ROWS) -> list[dict[str, Any]]:
    return [{name: row[name] for name in sorted(row)} for row in rows.to_pylist()]


def is_no_table(uri: str) -> bool:
    try:
        Table.open(uri)
    except NotFound:
        return True
    return False


def delta(folder: Path) -> str:
    """A table with a deletion: of row 4, in a file of its own or by a rewrite, as deltalake does it."""
    more = pa.concat_tables([ROWS, ROWS.slice(0, 1).set_column(0, "id", pa.array([4], pa.int64()))])
    write_deltalake(folder, more.set_column(4, "paid_ts", more["paid_ts"].cast(pa.timestamp("us"))))
    DeltaTable(folder).delete("id = 4")
    return str(folder)


def iceberg(folder: Path) -> str:
    folder.mkdir()
    catalog = SqlCatalog("source", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("shop")
    kinds = [LongType(), StringType(), LongType(), DoubleType(), TimestampType()]
    fields = [
        NestedField(i, name, kind, required=i == 1)
        for i, (name, kind) in enumerate(zip(ROWS.column_names, kinds, strict=True), start=1)
    ]
    made = catalog.create_table("shop.orders", Schema(*fields, identifier_field_ids=[1]))
    made.append(ROWS.cast(made.schema().as_arrow()))
    location = made.metadata_location
    catalog.close()
    return location


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg", "hudi", "paimon"])
def test_a_copy_has_the_rows_of_its_source(kind: Format, tmp_path: Path) -> None:
    if kind == "paimon":
        location = paimon(tmp_path / "source", {"bucket": "2", "sequence.field": "ts"})
    else:
        location = {"parquet": parquet, "delta": delta, "iceberg": iceberg, "hudi": hudi}[kind](tmp_path / "source")
    source = open_foreign(kind, location)
    uri = new_uri()
    done = copied(source, uri, key=["id"] if kind in {"parquet", "delta"} else None)
    assert (done.rows, done.keys, done.merged, done.rows_ignored, done.imported) == (3, 3, 0, 0, True)
    found = [{**row, "paid_ts": row["paid_ts"] and row["paid_ts"].replace(tzinfo=None)} for row in rows_of(uri)]
    assert found == expected()  # Hudi's column is an instant
    table = Table.open(uri)
    assert table.verify().ok
    assert table.state().lanes[LANE].closed is not None


def test_paimon_merges_by_sequence_group_and_weft_goes_on(tmp_path: Path) -> None:
    """Paimon's reader merges two commits by its rules; after the import weft has the same rules, group by group."""
    options = {
        "bucket": "1",
        "merge-engine": "partial-update",
        "fields.ts.sequence-group": "status",
        "fields.paid_ts.sequence-group": "paid",
    }
    late = ROWS.slice(0, 2).set_column(1, "status", pa.array(["late", "later"]))
    late = late.set_column(2, "ts", pa.array([9, 21], pa.int64()))
    late = late.set_column(3, "paid", pa.array([7.0, 8.0])).set_column(
        4, "paid_ts", pa.array([6, 1], pa.timestamp("ms"))
    )
    location = paimon(tmp_path, options, [ROWS, late], options_of_writes={"bucket": "1"})
    source = open_foreign("paimon", location)
    uri = new_uri()
    copied(source, uri)
    table = Table.open(uri)
    with table.writer("ts") as writer:
        writer.append(pa.table({"id": [1, 2], "status": ["older", "newer"], "ts": [9, 22]}))
    seen = [(row["id"], row["status"], row["ts"], row["paid"]) for row in rows_of(uri)]
    assert seen == [(1, "new", 10, 7.0), (2, "newer", 22, 2.5), (3, "sent", 30, None)]


def test_many_batches_and_files_and_progress(tmp_path: Path) -> None:
    many = pa.table({"id": pa.array(range(300_000)), "v": pa.array(range(300_000), pa.uint64())})
    source = open_foreign("parquet", parquet(tmp_path / "source", many, files=3))
    seen: list[int] = []
    uri = str(tmp_path / "wide")
    env = open_environment(uri).tuned(log_file_bytes=1 << 20)
    done = import_into(
        env,
        source,
        translate("parquet", source.declaration(), key=["id"]).config,
        progress=lambda stage: seen.append(stage.done),
    )
    assert (done.rows, done.keys) == (300_000, 300_000)
    assert seen == sorted(seen)
    assert seen[-1] == 300_000
    assert len(seen) > 3
    assert len(Table.open(uri).snapshot().files) > 3


def test_folders_with_values_become_columns(tmp_path: Path) -> None:
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / "source" / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1], "v": [day[-1]]}), tmp_path / "source" / f"day={day}" / "a.parquet")
    source = open_foreign("parquet", str(tmp_path / "source"))
    found = translate("parquet", source.declaration(), key=["day", "id"])
    assert found.config["partition_by"] == ["day"]
    uri = new_uri()
    assert copied(source, uri, found.config).keys == 2


def test_groups_without_values_stay_absent(tmp_path: Path) -> None:
    only_key = pa.concat_tables([ROWS, ROWS.slice(0, 1).set_column(0, "id", pa.array([9], pa.int64()))])
    nothing = {
        name: pa.array([None if name != "id" else 9], only_key.schema.field(name).type) for name in ROWS.column_names
    }
    source = open_foreign("parquet", parquet(tmp_path / "source", pa.concat_tables([ROWS, pa.table(nothing)])))
    uri = new_uri()
    done = copied(source, uri, GROUPS)
    assert (done.rows, done.rows_ignored, done.keys) == (4, 1, 3)
    assert Table.open(uri).snapshot().to_arrow(["id"], require=["payment"]).num_rows == 2


def test_rows_with_equal_keys_are_counted(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source", pa.concat_tables([ROWS, ROWS])))
    done = copied(source, new_uri(), GROUPS)
    assert (done.rows, done.keys, done.merged) == (6, 3, 3)


def _config(**changes: Any) -> dict[str, Any]:
    return {**GROUPS, **changes}


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        (ROWS.set_column(0, "id", pa.array([1, None, 3], pa.int64())), GROUPS, "NULL in a key column in 1 of 3 rows"),
        (
            ROWS.set_column(2, "ts", pa.array([None, 20, 30], pa.int64())),
            GROUPS,
            r"group 'order': 1 of 3 rows have values, but NULL in every ordering column \(ts\), for example id=1",
        ),
        (ROWS.drop_columns(["paid"]), GROUPS, "the source has no column 'paid'"),
        (ROWS.set_column(3, "paid", pa.array(["1", "2", "3"])), GROUPS, "column 'paid' has type string"),
        (
            ROWS.set_column(4, "paid_ts", pa.array([1, 2, 3], pa.timestamp("ns"))),
            GROUPS,
            "column 'paid_ts': a value does not fit",
        ),
        (ROWS, _config(key=["nope"]), "key: there is no 'nope'"),
        (ROWS, _config(streams={**GROUPS["streams"], "import": {"groups": ["order"]}}), "does not write all groups"),
        (
            ROWS,
            _config(columns={**GROUPS["columns"], "paid_ts": "timestamp"}),
            "column 'paid_ts' has type timestamp.ms., but in the table it is timestamp",
        ),
    ],
)
def test_bad_input_creates_no_table(rows: pa.Table, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source", rows))
    uri = str(tmp_path / "wide")
    with pytest.raises(InvalidInput, match=message):
        copied(source, uri, config)
    assert is_no_table(uri)
    assert [path for path in Path(uri).rglob("*") if path.is_file()] == []


def test_a_count_cannot_be_imported(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source", pa.table({"id": [1], "n": [5]})))
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "n": "bigint"},
        "groups": {"g": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "count"}}},
        "streams": {"s": {"groups": ["g"]}},
    }
    with pytest.raises(InvalidInput, match="count would count a value once"):
        copied(source, new_uri(), config)
    config["groups"]["g"]["functions"] = {"n": "sum"}  # type: ignore[index]
    uri = new_uri()
    copied(source, uri, config)
    with Table.open(uri).writer("s") as writer:
        writer.append(pa.table({"id": [1], "n": [1]}))
    assert rows_of(uri) == [{"id": 1, "n": 6}]


def test_a_damaged_file_creates_no_table(tmp_path: Path) -> None:
    many = pa.table({"id": pa.array(range(200_000)), "v": pa.array(range(200_000))})
    location = parquet(tmp_path / "source", many, files=2)
    data = bytearray((tmp_path / "source" / "1.parquet").read_bytes())
    data[100:5000] = bytes(4900)
    (tmp_path / "source" / "1.parquet").write_bytes(data)
    source = open_foreign("parquet", location)
    uri = str(tmp_path / "wide")
    with pytest.raises(InvalidInput, match=r"the parquet table at .* cannot be read"):
        copied(source, uri, key=["id"])
    assert is_no_table(uri)
    assert [path for path in Path(uri).rglob("*") if path.is_file()] == []


def test_rows_that_the_source_hides_are_noticed(tmp_path: Path) -> None:
    source = replace(open_foreign("parquet", parquet(tmp_path / "source")), rows=4)
    uri = new_uri()
    with pytest.raises(CorruptData, match="says that it has 4 rows, 3 were read, and 3 written"):
        copied(source, uri, GROUPS)
    assert is_no_table(uri)


def test_the_same_import_again_has_no_effect_and_another_is_refused(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source"))
    uri = new_uri()
    copied(source, uri, GROUPS)
    with Table.open(uri).writer("orders") as writer:
        writer.append(pa.table({"id": [1, 7], "status": ["x", "y"], "ts": [99, 99]}))
    before = rows_of(uri)
    again = copied(source, uri, GROUPS)
    assert (again.imported, again.rows, again.keys) == (False, 3, 4)
    assert rows_of(uri) == before
    other = open_foreign("parquet", parquet(tmp_path / "other"))
    with pytest.raises(Conflict, match="was imported from parquet"):
        copied(other, uri, GROUPS)


def test_a_table_that_is_there_is_not_touched(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source"))
    uri = new_uri()
    Table.create(uri, GROUPS)
    with pytest.raises(Conflict, match="there is already another table"):
        copied(source, uri, GROUPS)
    assert rows_of(uri) == []
    assert Table.open(uri).state().lanes == {}


class _Died(BaseException):
    """Not an error that anything handles."""


def test_an_import_that_dies_at_any_request_is_completed_by_the_next(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source"))

    def into(store: Any) -> ImportResult:
        return import_into(Environment(store, FakeClock()), source, GROUPS)

    watched = FaultyStore(open_store(new_uri()))
    into(watched)
    changes = [(call, path) for call, path in watched.calls if call in {"put", "put_if_absent", "open_output"}]
    steps = [(call, path.rsplit("/", 1)[0]) for call, path in changes]
    assert len(steps) > 5
    seen: set[int] = set()
    for number, (call, folder) in enumerate(steps):
        nth = steps[:number].count((call, folder))
        for when in ("before", "after"):
            uri = new_uri()
            broken = FaultyStore(open_store(uri))
            broken.faults += [Fault(call, folder, times=nth, action=lambda: None)] if nth else []
            broken.faults.append(Fault(call, folder, when, error=_Died()))
            with pytest.raises(_Died):
                into(broken)
            seen.add(-1 if is_no_table(uri) else len(rows_of(uri)))
            done = into(open_store(uri))
            assert (done.rows, done.keys) == (3, 3), (call, folder, when)
            assert rows_of(uri) == expected()
            table = Table(Environment(open_store(uri), FakeClock()), Stamps())
            assert [finding for finding in table.verify().findings if finding.severity == "error"] == []
    assert seen == {-1, 0, 3}  # no table, an empty one, all rows; nothing else


def test_what_a_dead_import_left_is_garbage_after_the_next_one(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source"))
    uri = new_uri()
    broken = FaultyStore(open_store(uri))
    broken.faults.append(Fault("put_if_absent", "", error=_Died()))
    with pytest.raises(_Died):
        import_into(Environment(broken), source, GROUPS)
    copied(source, uri, GROUPS)
    left = Table.open(uri).clean(dt.timedelta(0)).deleted
    assert {str(kind): tally.files for kind, tally in left.items()} == {"log": 1}
    assert rows_of(uri) == expected()


@pytest.mark.parametrize(
    ("kind", "location", "options", "message"),
    [
        ("parquet", "{}/nothing", {}, "the parquet table at .*nothing cannot be read"),
        ("parquet", "{}", {}, "there is no Parquet file at"),
        ("delta", "{}/nothing", {}, "the delta table at .* cannot be read"),
        ("delta", "{}", {"version": "new"}, "'new' is not a version of Delta"),
        ("iceberg", "{}/x.metadata.json", {}, "the iceberg table at .* cannot be read"),
        (
            "iceberg",
            "shop.orders",
            {"options": {"type": "sql", "uri": "sqlite://"}},
            "the iceberg table at shop.orders",
        ),
        ("hudi", "{}", {}, "the hudi table at .* cannot be read"),
        ("paimon", "{}", {}, "is not the folder of a Paimon table"),
        ("paimon", "{}/shop.db/orders", {}, "the paimon table at .* cannot be read"),
        ("paimon", "{}/shop.db/orders", {"version": "3"}, "--source-version: paimon is read as it is now"),
    ],
)
def test_a_source_that_is_not_there(
    kind: Format, location: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_foreign(kind, location.format(tmp_path), **options)


def test_a_panic_of_a_library_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the hudi table at .* cannot be read: not yet implemented"):
        open_foreign("hudi", hudi(tmp_path / "source", "local-timestamp-millis"))


def test_columns_that_weft_cannot_store_are_named(tmp_path: Path) -> None:
    rows = ROWS.append_column("t", pa.array([1, 2, 3], pa.time64("us"))).append_column("n", pa.nulls(3))
    source = open_foreign("parquet", parquet(tmp_path / "source", rows))
    with pytest.raises(InvalidInput, match=r"no type for column t \(time64\[us\]\), n \(null\)"):
        source.declaration()
    assert list(source.declaration(["t", "n"]).columns) == ROWS.column_names
    with pytest.raises(InvalidInput, match="--leave-out: the source has no column 'x'"):
        source.declaration(["x"])


def test_an_older_version_of_delta_and_iceberg(tmp_path: Path) -> None:
    source = open_foreign("delta", delta(tmp_path / "delta"), version="0")
    uri = new_uri()
    assert copied(source, uri, key=["id"]).rows == 4
    with pytest.raises(InvalidInput, match="has no snapshot 7"):
        open_foreign("iceberg", iceberg(tmp_path / "iceberg"), version="7")


def test_watermarks_do_not_wait_for_the_import(tmp_path: Path) -> None:
    source = open_foreign("parquet", parquet(tmp_path / "source"))
    uri = new_uri()
    copied(source, uri, translate("parquet", source.declaration(), key=["id"], ordering=["ts"]).config)
    table = Table.open(uri)
    assert [stream.name for stream in table.schema.streams] == ["main"]
    with table.writer("main", lateness=1) as writer:
        writer.append(ROWS.set_column(2, "ts", pa.array([90, 95, 99], pa.int64())))
    table.snapshot(complete_through=90)


def test_comments_of_the_source_are_those_of_the_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "delta", ROWS.select(["id", "status"]), description="all orders")
    DeltaTable(tmp_path / "delta").alter.set_column_metadata("status", {"comment": "of today"})
    catalog = SqlCatalog("source", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "status", StringType(), doc="of today")]
    made = catalog.create_table("shop.orders", Schema(*fields), properties={"comment": "all orders"})
    made.append(ROWS.select(["id", "status"]).cast(made.schema().as_arrow()))
    catalog.close()
    folder = Path(paimon(tmp_path / "source", {"bucket": "2"}))
    declared = json.loads((folder / "schema" / "schema-0").read_text())
    declared["fields"][1]["description"], declared["comment"] = "of today", "all orders"
    (folder / "schema" / "schema-0").write_text(json.dumps(declared))
    for kind, location in (
        ("delta", str(tmp_path / "delta")),
        ("iceberg", made.metadata_location),
        ("paimon", str(folder)),
    ):
        uri = str(tmp_path / f"copy of {kind}")
        copied(open_foreign(kind, location), uri, key=["id"])
        schema = Table.open(uri).schema
        assert (schema.comment, schema.column("status").comment, schema.column("id").comment) == (
            "all orders",
            "of today",
            "",
        )


def test_rows_that_deletion_vectors_hide_are_not_counted(tmp_path: Path) -> None:
    published = table_with_unused_rows(tmp_path / "published")
    DeltaTarget().publish(published)
    source = open_foreign("delta", f"{tmp_path}/published/base")
    assert source.rows == 40
    uri = new_uri()
    assert copied(source, uri, key=["id"]).rows == 40
    assert {row["status"] for row in rows_of(uri)} == {"old", "new"}


def test_equality_deletes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """The library does not apply them, so without a refusal deleted rows would come back."""
    iceberg(tmp_path / "source")
    where = {"uri": f"sqlite:///{tmp_path}/source/catalog.db", "warehouse": f"file://{tmp_path}/source/warehouse"}
    catalog = SqlCatalog("source", **where)
    table = catalog.load_table("shop.orders")
    place = f"{table.location()}/data/deletes.parquet"
    pq.write_table(pa.table({"id": [1]}), place.removeprefix("file://"))
    size = Path(place.removeprefix("file://")).stat().st_size
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=size,
        equality_ids=[1],
    )
    deletes.spec_id = 0
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(deletes)
    location = table.metadata_location
    catalog.close()
    with pytest.raises(InvalidInput, match="does not yet support equality deletes") as refused:
        open_foreign("iceberg", location)
    assert "rewrite_data_files" in str(refused.value.hint)


@pytest.mark.parametrize("option", ["branch", "scan.fallback-branch", "incremental-between"])
def test_options_of_paimon_that_its_library_does_not_follow_are_refused(tmp_path: Path, option: str) -> None:
    location = paimon(tmp_path, {"bucket": "1", option: "x"}, options_of_writes={"bucket": "1"})
    with pytest.raises(InvalidInput, match=rf"has the option {option} = x, which this reader does not follow"):
        open_foreign("paimon", location)


def test_a_paimon_table_whose_deletes_remove_rows_has_to_be_compacted(tmp_path: Path) -> None:
    """The library would merge values from before a delete into a later insert."""
    options = {"bucket": "1", "merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
    whole = open_foreign("paimon", paimon(tmp_path / "whole", options, options_of_writes={"bucket": "1"}))
    assert sum(len(batch) for batch in whole.read(["id"])) == 3
    merged = open_foreign("paimon", paimon(tmp_path / "merged", options, [ROWS, ROWS], {"bucket": "1"}))
    uri = new_uri()
    with pytest.raises(InvalidInput, match="remove-record-on-delete, and 3 stored rows are not merged yet"):
        copied(merged, uri)
    assert is_no_table(uri)


def test_options_that_would_change_the_rows_are_refused(tmp_path: Path) -> None:
    for option in ("hoodie.read.use.read_optimized.mode", "hoodie.table.type", "hoodie.read.as.of.timestamp"):
        with pytest.raises(InvalidInput, match=f"--source-option {option}: it would change which rows are read"):
            open_foreign("hudi", str(tmp_path), options={option: "true"})

"""Damaged, missing and foreign objects: always an error that names them, never an incomplete result (S7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments, statuses
from tests.tuning import tune
from weft import Table, verify_table
from weft.storage.core.log.file_refs import Sidecar
from weft.storage.core.names import TABLE_LANE, LaneName, Path, slot_path
from weft.storage.errors import CorruptData, NotFound, TableError, UnsupportedFormat
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store


@pytest.fixture(params=["local", "memory"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    uri = str(tmp_path_factory.mktemp("store") / "table") if request.param == "local" else new_uri()
    table = Table.create(uri, SHOP)
    append(table, orders(*range(20)))
    append(table, orders(3, op="D", ts=2))
    table.compact()
    append(table, payments(*range(10)), "payments")
    return table


@pytest.fixture
def store(table: Table) -> ObjectStore:
    return open_store(table.uri)


def overwrite(store: ObjectStore, path: str, data: bytes) -> None:
    store.delete(Path(path))
    store.put(Path(path), data)


def content(store: ObjectStore, path: str) -> bytes:
    data = store.get(Path(path))
    assert data is not None
    return data


def resealed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A changed entry with a valid checksum."""
    entry = json.loads(data)
    del entry["sha256"]
    change(entry)
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def read_all(uri: str) -> list[tuple[Any, ...]]:
    return contents(Table.open(uri))


ENTRIES = [(TABLE_LANE, 1), (TABLE_LANE, 2), (TABLE_LANE, 4), (LaneName("orders"), 5), (LaneName("payments"), 2)]


@pytest.mark.parametrize(("lane", "seq"), ENTRIES[:3] + ENTRIES[4:])
def test_a_flipped_bit_anywhere_in_an_entry_is_found(
    table: Table, store: ObjectStore, lane: LaneName, seq: int
) -> None:
    path = slot_path(lane, seq)
    data = content(store, path)
    for position in range(0, len(data), max(1, len(data) // 23)):
        broken = bytearray(data)
        broken[position] ^= 0x10
        overwrite(store, path, bytes(broken))
        with pytest.raises(CorruptData, match=f"entry {seq} of .* is damaged") as error:
            read_all(table.uri)
        assert "restore" in error.value.hint
    overwrite(store, path, data)
    assert len(read_all(table.uri)) == 19


@pytest.mark.parametrize("length", [0, 1, 80, -1, -100])
def test_a_truncated_entry_is_found(table: Table, store: ObjectStore, length: int) -> None:
    path = slot_path(LaneName("payments"), 2)
    overwrite(store, path, content(store, path)[:length] or b"\n")
    with pytest.raises(CorruptData, match="damaged"):
        read_all(table.uri)


def test_a_writer_and_a_compactor_stop_at_a_damaged_entry_too(table: Table, store: ObjectStore) -> None:
    path = slot_path(LaneName("payments"), 2)
    overwrite(store, path, content(store, path)[:-1] + b"]")
    fresh = Table.open(table.uri)
    with pytest.raises(CorruptData):
        fresh.compact()
    with pytest.raises(CorruptData), fresh.writer("payments"):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(kind="TWIST"), "is of kind 'TWIST'"),
        (lambda e: e.pop("kind"), "is of kind None"),
        (lambda e: e.update(surprise=1), r"\(DATA\) has member 'surprise', which this version of weft does not know"),
        (lambda e: e.pop("stamp"), r"\(DATA\) has no member 'stamp', which this version of weft needs"),
        (lambda e: e["files"][0].update(form="sonnet"), r"\(DATA\) has a value in member 'files.0.form' that this"),
    ],
)
def test_an_entry_of_a_newer_version_is_refused_and_not_skipped(
    table: Table, store: ObjectStore, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = slot_path(LaneName("payments"), 2)
    overwrite(store, path, resealed(content(store, path), change))
    with pytest.raises(UnsupportedFormat, match=message) as error:
        read_all(table.uri)
    assert "upgrade" in error.value.hint


@pytest.mark.parametrize(
    "part", ["", "columns.0", "groups.1", "streams.0", "ttl", "references.0", "groups.1.functions.0"]
)
def test_a_schema_with_members_of_a_newer_version_is_refused(part: str) -> None:
    refused_schema(lambda member: member.update(surprise=1), part, "has member '(.*[.])?surprise', which this version")


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("", {"overlays": "yes"}),
        ("", {"bucket_bits": "2"}),
        ("", {"index": "paid"}),
        ("columns.0", {"id": 1.0}),
        ("columns.0", {"changed": "1"}),
        ("groups.1", {"merge": None}),
        ("streams.0", {"groups": {}}),
        ("ttl", {"rows_ms": "5"}),
        ("references.0", {"on": "id"}),
    ],
    ids=str,
)
def test_values_of_a_schema_are_not_converted(part: str, values: dict[str, Any]) -> None:
    refused_schema(lambda member: member.update(values), part, f"a value in member '(.*[.])?{next(iter(values))}")


def refused_schema(change: Callable[[dict[str, Any]], object], part: str, message: str) -> None:
    """Change a part of the schema in a CREATE entry, and expect that the table cannot be opened."""
    config: dict[str, Any] = {
        **SHOP,
        "columns": {**SHOP["columns"], "total": "bigint"},
        "groups": {
            **SHOP["groups"],
            "sums": {"columns": ["total"], "merge": "aggregate", "functions": {"total": "sum"}},
        },
        "streams": {**SHOP["streams"], "sums": {"groups": ["sums"]}},
        "ttl": {"rows": "90 days"},
    }
    table = Table.create(new_uri(), config)
    store, path = open_store(table.uri), slot_path(TABLE_LANE, 1)

    def change_part(entry: dict[str, Any]) -> None:
        schema = entry["table_schema"]
        schema["groups"].insert(1, schema["groups"].pop())
        schema["references"] = [{"name": "r", "table": "../r", "on": ["id"], "columns": ["a"], "prefix": "r_"}]
        for name in filter(None, part.split(".")):
            schema = schema[int(name) if name.isdigit() else name]
        change(schema)

    overwrite(store, path, resealed(content(store, path), change_part))
    with pytest.raises(UnsupportedFormat, match=message) as error:
        Table.open(table.uri)
    assert "upgrade" in error.value.hint


@pytest.mark.parametrize(
    "change", [lambda made: made.update(surprise=1), lambda made: made.pop("rev"), lambda made: made.update(rev="new")]
)
def test_a_sidecar_of_a_newer_version_is_refused(
    table: Table, store: ObjectStore, change: Callable[[dict[str, Any]], object]
) -> None:
    (path,) = (path for seq in range(1, 6) if b'"kind":"BASE"' in content(store, path := slot_path(TABLE_LANE, seq)))
    slices = json.loads(content(store, path))["slices"]
    change(slices[-1])
    data = json.dumps(slices, separators=(",", ":")).encode()
    sidecar = Sidecar.of(Path("_weft/index/_table/00000000000000000004-" + "a" * 32 + ".json"), data)
    store.put(sidecar.path, data)
    overwrite(store, path, resealed(content(store, path), lambda entry: entry.update(slices=sidecar.model_dump())))
    with pytest.raises(UnsupportedFormat, match=f"{sidecar.path} .*not of a shape that this version knows") as error:
        read_all(table.uri)
    assert "upgrade" in error.value.hint
    assert [found.where for found in verify_table(table.uri).warnings] == [str(sidecar.path)]


@pytest.mark.parametrize("change", [lambda index: index.update(surprise=1), lambda index: index.pop("ranges")])
def test_an_index_of_a_newer_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> None:
    tune(monkeypatch, inline_index_bytes=10)
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(20)))
    store = open_store(table.uri)
    entry_path = slot_path(LaneName("orders"), 2)
    old = json.loads(content(store, entry_path))["files"][0]["index"]
    index = json.loads(content(store, old["path"]))
    change(index)
    data = json.dumps(index, separators=(",", ":")).encode()
    sidecar = Sidecar.of(Path(old["path"]), data)
    overwrite(store, sidecar.path, data)
    overwrite(
        store,
        entry_path,
        resealed(content(store, entry_path), lambda e: e["files"][0].update(index=sidecar.model_dump())),
    )
    with pytest.raises(UnsupportedFormat, match=f"{sidecar.path} .*not of a shape that this version knows") as error:
        read_all(table.uri)
    assert "upgrade" in error.value.hint
    assert [found.where for found in verify_table(table.uri).warnings] == [str(sidecar.path)]


def test_an_unknown_reader_feature_is_refused_on_opening(table: Table, store: ObjectStore) -> None:
    path = slot_path(TABLE_LANE, 1)
    overwrite(store, path, resealed(content(store, path), lambda e: e["reader_features"].append("merge-magic")))
    with pytest.raises(UnsupportedFormat, match="cannot read: merge-magic") as error:
        Table.open(table.uri)
    assert "upgrade" in error.value.hint


def test_an_unknown_writer_feature_is_refused_only_for_writing(table: Table, store: ObjectStore) -> None:
    path = slot_path(TABLE_LANE, 1)
    overwrite(store, path, resealed(content(store, path), lambda e: e["writer_features"].append("row-locks")))
    fresh = Table.open(table.uri)
    assert len(contents(fresh)) == 19
    with pytest.raises(UnsupportedFormat, match="cannot write: row-locks"), fresh.writer("orders"):
        pass
    with pytest.raises(UnsupportedFormat, match="cannot write: row-locks"):
        fresh.compact()


@pytest.mark.parametrize("version", [1, 3])
def test_another_format_version_is_refused_by_its_number(table: Table, store: ObjectStore, version: int) -> None:
    path = slot_path(TABLE_LANE, 1)
    overwrite(store, path, resealed(content(store, path), lambda e: e.update(format_version=version)))
    with pytest.raises(UnsupportedFormat, match=f"has format version {version}, .* reads and writes format version 2"):
        Table.open(table.uri)


def test_a_replaced_entry_breaks_the_chain(table: Table, store: ObjectStore) -> None:
    for lane in (TABLE_LANE, LaneName("orders")):
        path = slot_path(lane, 2)
        data = content(store, path)
        overwrite(store, path, resealed(data, lambda e: e.update(commit_id="0" * 32)))
        with pytest.raises(CorruptData, match="does not follow"):
            Table.open(table.uri).snapshot("cut:1:1:") if lane == TABLE_LANE else _claim(table)
        overwrite(store, path, data)


def _claim(table: Table) -> None:
    with Table.open(table.uri).writer("orders"):
        pass


def test_a_missing_entry_within_a_cut_is_named(table: Table, store: ObjectStore) -> None:
    cut = str(table.snapshot().cut)
    store.delete(slot_path(LaneName("payments"), 1))
    with pytest.raises(TableError) as error:
        contents(Table.open(table.uri), as_of=cut)
    assert isinstance(error.value, CorruptData | NotFound)
    assert "payments" in str(error.value)


@pytest.mark.parametrize("folder", ["log/payments", "base"])
def test_a_missing_file_is_named_and_never_skipped(table: Table, store: ObjectStore, folder: str) -> None:
    live = _live_paths(table)
    (path, *_) = [path for path in live if path.startswith(folder)]
    store.delete(Path(path))
    with pytest.raises(CorruptData, match=f"{path} is missing") as error:
        read_all(table.uri)
    assert "restore" in error.value.hint


@pytest.mark.parametrize("folder", ["log/payments", "base"])
def test_a_truncated_file_is_found_by_its_size(table: Table, store: ObjectStore, folder: str) -> None:
    (path, *_) = [path for path in _live_paths(table) if path.startswith(folder)]
    overwrite(store, path, content(store, path)[:-20])
    with pytest.raises(CorruptData, match=path):
        read_all(table.uri)


@pytest.mark.parametrize("folder", ["log/payments", "base"])
def test_a_file_of_the_right_size_and_other_bytes_is_corrupt(table: Table, store: ObjectStore, folder: str) -> None:
    (path, *_) = [path for path in _live_paths(table) if path.startswith(folder)]
    size = len(content(store, path))
    for filling in (b"\x00", b"\xff", b"ARROW1"):
        overwrite(store, path, (filling * size)[:size])
        with pytest.raises(CorruptData, match=path):
            read_all(table.uri)


def _live_paths(table: Table) -> list[str]:
    snapshot = table.snapshot()
    logs = [live.file.file.path for live in snapshot.files]
    slices = [file.path for s in snapshot.slices if s.slice for file in (s.slice.base, s.slice.shadow) if file]
    return logs + slices


def test_an_index_in_a_sidecar_is_verified_and_a_missing_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, inline_index_bytes=10)
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(20)))
    store = open_store(table.uri)
    ((path, _),) = store.list(Path("_weft/index/orders"))
    path = f"_weft/index/orders/{path}"
    assert sorted(statuses(Table.open(table.uri))) == list(range(20))
    data = content(store, path)
    overwrite(store, path, data.replace(b"1", b"2", 1))
    with pytest.raises(CorruptData, match=f"{path} is damaged"):
        read_all(table.uri)
    store.delete(Path(path))
    with pytest.raises(CorruptData, match=f"{path} is missing"):
        read_all(table.uri)


def test_an_unreferenced_file_is_not_part_of_the_table(table: Table, store: ObjectStore) -> None:
    before = read_all(table.uri)
    for path in _live_paths(table):
        store.put(Path(path.replace("payments/", "payments/copy-").replace("b02", "copy-b02")), content(store, path))
    assert read_all(table.uri) == before


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["log", "base", "shadow"])
def test_a_flipped_bit_in_a_file_never_changes_a_result(table: Table, store: ObjectStore, folder: str) -> None:
    right = read_all(table.uri)
    found = 0
    for name, _ in store.list(Path(folder)):
        path = f"{folder}/{name}"
        data = content(store, path)
        for position in range(0, len(data), max(1, len(data) // 101)):
            broken = bytearray(data)
            broken[position] ^= 0x10
            overwrite(store, path, bytes(broken))
            try:
                assert read_all(table.uri) == right, f"{path}, byte {position} of {len(data)}"
            except CorruptData as error:
                assert path in error.message or "does not decode" in error.message  # noqa: PT017 - or no error at all
                found += 1
        overwrite(store, path, data)
    assert found > 0
    assert read_all(table.uri) == right

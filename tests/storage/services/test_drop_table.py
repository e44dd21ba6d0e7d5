"""Dropping a table: all of its objects go, nothing else does, and a table in use stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.core.names import TABLE_LANE, slot_path
from weft.storage.errors import Conflict, NotFound
from weft.storage.services.location.drop_table import drop_table
from weft.storage.store.local_store import LocalStore


def filled(folder: Path) -> Table:
    table = Table.create(folder, SHOP)
    for number in range(3):
        append(table, orders(number))
    table.compact()
    append(table, orders(7))
    return table


def test_a_dropped_table_leaves_only_what_is_not_its_own(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    (tmp_path / "t" / "notes.txt").write_text("kept", encoding="utf-8")
    (tmp_path / "t" / "log" / ".tmp-0123456789abcdef0123456789abcdef-x.arrow").write_bytes(b"x")
    found = drop_table(table.writable())
    assert found.files > 0
    assert found.bytes > 0
    assert [path.name for path in (tmp_path / "t").rglob("*")] == ["notes.txt"]
    with pytest.raises(NotFound):
        Table.open(tmp_path / "t")
    Table.create(tmp_path / "t", SHOP)


def test_the_folder_of_a_dropped_table_goes_too(tmp_path: Path) -> None:
    drop_table(filled(tmp_path / "t").writable())
    assert not (tmp_path / "t").exists()


def test_a_table_with_a_live_writer_or_a_savepoint_stays(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    with table.writer("orders") as writer:
        writer.append(orders(5))
        with pytest.raises(Conflict, match="has live writers, of the lanes orders"):
            drop_table(table.writable())
    table.savepoint("release-1")
    with pytest.raises(Conflict, match="has savepoints: release-1"):
        drop_table(table.writable())
    assert table.verify().ok
    table.release_savepoint("release-1")
    drop_table(table.writable())


def test_an_interrupted_drop_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path / "t")
    steps: list[Any] = []
    plain = LocalStore.delete_many

    def dies_at_the_end(store: LocalStore, paths: Any) -> None:
        steps.append(list(paths))
        if len(steps) == 3:  # the first entry
            raise OSError("killed")
        plain(store, paths)

    monkeypatch.setattr(LocalStore, "delete_many", dies_at_the_end)
    with pytest.raises(OSError, match="killed"):
        drop_table(table.writable())
    assert steps[2] == [slot_path(TABLE_LANE, 1)]
    monkeypatch.undo()
    drop_table(Table.open(tmp_path / "t").writable())
    assert not (tmp_path / "t").exists()

"""Trying out a store: what it finds, and that nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.stores.places import Place
from weft.storage.errors import StoreUnavailable
from weft.storage.store.local_store import LocalStore
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.probe_store import probe_store


def test_a_good_store(place: Place, store: ObjectStore) -> None:
    found = probe_store(store)
    assert (found.exclusive, found.listed, found.deleted) == (True, True, True)
    assert found.skew_seconds is None if place.uri.startswith("memory:") else abs(found.skew_seconds or 0) < 5
    assert store.get(found.path) is None


def test_no_folder_is_left_on_a_local_disk(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    probe_store(LocalStore(str(tmp_path / "there/new/wide")))
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    probe_store(LocalStore(str(tmp_path / "there")))
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


class ClockAhead(LocalStore):
    """A folder on another machine, whose clock is ten minutes ahead."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:  # type: ignore[override]
        made = super().put_if_absent(path, data)  # type: ignore[arg-type]
        os.utime(self._root / path, (0, time.time() + 600))
        return made


class Overwrites(LocalStore):
    """A folder without conditional writes."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:  # type: ignore[override]
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).write_bytes(data)
        return True


def test_a_clock_that_differs(tmp_path: Path) -> None:
    found = probe_store(ClockAhead(str(tmp_path))).skew_seconds
    assert found is not None
    assert 590 < found < 660


def test_a_store_that_overwrites_is_found(tmp_path: Path) -> None:
    assert not probe_store(Overwrites(str(tmp_path))).exclusive
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        probe_store(LocalStore(str(tmp_path / "file")))
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]

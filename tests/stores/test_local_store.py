"""Local folders: leftovers of a crash, the order of syncs, and errors of full disks and unusual file systems."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path as LocalPath
from typing import Any

import pytest

from tests.storage.support.shop import SHOP, append, orders, statuses
from weft import Table
from weft.storage.core.names import Path
from weft.storage.environment import RandomIds
from weft.storage.errors import InvalidInput, StoreUnavailable
from weft.storage.store.local_store import LocalStore
from weft.storage.store.object_store import check_capability

NAME = Path("folder/object")
CRASHES = 3
WRITES_BEFORE_CRASH = 15
ROOT = LocalPath(__file__).parents[2]
WRITER = """
import hashlib, sys
from weft.storage.store.local_store import LocalStore
store = LocalStore(sys.argv[1])
for number in range(1_000_000):
    name = f"{sys.argv[2]}-{number}"
    body = hashlib.sha256(name.encode()).digest() * 2_000
    store.put_if_absent(f"created/{name}", body)
    with store.open_output(f"pieces/{name}") as file:
        for start in range(0, len(body), 10_000):
            file.write(body[start:start + 10_000])
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: LocalPath) -> LocalStore:
    return LocalStore(str(tmp_path / "root"))


def files(folder: LocalPath) -> list[LocalPath]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_killed_writer_leaves_complete_objects_and_named_temporary_files(
    store: LocalStore, tmp_path: LocalPath
) -> None:
    acknowledged: set[str] = set()
    for crash in range(CRASHES):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "root"), str(crash)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for _ in range(WRITES_BEFORE_CRASH + crash):
                acknowledged.add(f"{crash}-{writer.stdout.readline().strip()}")
            os.kill(writer.pid, signal.SIGKILL)
    for folder in ("created", "pieces"):
        listed = {name for name, _ in store.list(Path(folder))}
        assert acknowledged <= listed
        for name in listed:
            assert store.get(Path(f"{folder}/{name}")) == hashlib.sha256(name.encode()).digest() * 2_000
    for temporary, final in store.leftovers():
        assert re.fullmatch(r"(created|pieces)/\d+-\d+", final)
        store.delete(temporary)
    assert store.leftovers() == []
    assert [path for path in files(tmp_path) if path.name.startswith(".")] == []


def test_leftovers_are_listed_separately_and_can_be_deleted(store: LocalStore, tmp_path: LocalPath) -> None:
    store.put(NAME, b"x")
    dead = tmp_path / "root" / "folder" / f".tmp-{'0' * 32}-another.json"
    dead.write_bytes(b"half")
    (tmp_path / "root" / "folder" / ".tmp-of-somebody-else").write_bytes(b"")
    temporary = Path(f"folder/{dead.name}")
    assert store.leftovers() == [(temporary, Path("folder/another.json"))]
    assert store.list(Path("folder")) == [("object", 1)]
    with store.open_output(Path("folder/under way")) as file:
        file.write(b"x")
        assert [final for _, final in store.leftovers()] == ["folder/another.json", "folder/under way"]
    store.delete_many([temporary, temporary])
    assert store.leftovers() == []


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls, in order."""
    calls: list[str] = []
    sync, link, rename = os.fsync, os.link, LocalPath.rename

    def fsync(descriptor: int) -> None:
        calls.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def take(name: str, call: Any) -> Any:
        return lambda *arguments: (calls.append(name), call(*arguments))[1]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", take("link", link))
    monkeypatch.setattr(LocalPath, "rename", take("rename", rename))
    return calls


def test_bytes_are_synced_before_the_name_and_the_name_before_the_return(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(Path("folder/before"), b"x")
    calls = recorded(monkeypatch)
    assert store.put_if_absent(NAME, b"x")
    assert calls == ["sync file", "link", "sync folder"]
    calls.clear()
    assert not store.put_if_absent(NAME, b"y")
    assert calls == ["sync file", "link", "sync folder"], (
        "the winner's name is durable, too, before the loser gets its result"
    )
    calls.clear()
    store.put(Path("folder/after"), b"x")
    assert calls == ["sync file", "rename", "sync folder"]


def test_folders_are_synced_up_to_the_root_even_if_they_existed(
    store: LocalStore, tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have just created them, and died before it synced them."""
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    calls = recorded(monkeypatch)
    store.put(Path("a/b/c/object"), b"x")
    made, there = 1, 3
    assert calls == ["sync folder"] * (made + there) + ["sync file", "rename", "sync folder"]
    calls.clear()
    store.put(Path("a/b/c/other"), b"x")
    assert calls == ["sync file", "rename", "sync folder"], "each folder is synced once"
    calls.clear()
    store.put(Path("a/b/d/object"), b"x")
    assert calls == ["sync folder", "sync file", "rename", "sync folder"], (
        "of the parents only the one with a new name is synced"
    )


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnavailable, match="does not support hard links") as error:
        Table.create(tmp_path / "table", SHOP)
    assert "object store" in error.value.hint
    assert files(tmp_path) == []


def test_a_full_disk_is_an_error_that_leaves_nothing_and_can_be_retried(
    tmp_path: LocalPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    append(table, orders(1))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with table.writer("orders") as writer:
        before = files(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StoreUnavailable, match="No space left") as error:
                writer.append(orders(2))
            assert "disk is full" in error.value.hint
            with pytest.raises(StoreUnavailable, match="No space left"):
                check_capability(LocalStore(str(tmp_path / "table")), RandomIds().new)
        assert files(tmp_path) == before
        writer.append(orders(2))
    assert statuses(table) == {1: "new", 2: "new"}


def test_a_read_only_file_system_is_refused_without_waiting(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "root")

    monkeypatch.setattr(LocalPath, "mkdir", read_only)
    with pytest.raises(PermissionError):
        store.put_if_absent(NAME, b"x")
    with pytest.raises(StoreUnavailable, match="Read-only") as error:
        store.put(NAME, b"x")
    assert "read-only" in error.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: LocalPath) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match="cannot write") as error:
            Table.create(str(tmp_path / "table"), SHOP)
        assert "allowed" in error.value.hint
    finally:
        tmp_path.chmod(0o700)


def test_a_path_below_a_file_is_refused(tmp_path: LocalPath) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match="cannot write") as error:
        Table.create(str(tmp_path / "file" / "table"), SHOP)
    assert "not a folder" in error.value.hint


def test_a_name_that_is_too_long_is_an_error(store: LocalStore) -> None:
    with pytest.raises(StoreUnavailable, match="too long") as error:
        store.put(Path(f"folder/{'n' * 250}"), b"x")
    assert "shorter" in error.value.hint


def test_a_listing_that_cannot_be_complete_is_an_error(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(NAME, b"x")

    def scandir(_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", scandir)
    for call in (lambda: store.list(Path("folder")), store.leftovers):
        with pytest.raises(StoreUnavailable, match="no access"):
            call()


def test_an_object_that_a_reader_may_not_open_is_not_missing(store: LocalStore, tmp_path: LocalPath) -> None:
    (tmp_path / "root" / "folder" / "object").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        store.get(NAME)


def test_local_paths_and_file_urls_name_the_same_folder(tmp_path: LocalPath) -> None:
    folder = tmp_path / "a folder with % and ü"
    table = Table.create(folder, SHOP)
    append(table, orders(1))
    for uri in (str(folder), folder.as_uri(), table.uri):
        assert statuses(Table.open(uri)) == {1: "new"}


def test_a_table_leaves_no_temporary_file(tmp_path: LocalPath) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    append(table, orders(1, 2))
    table.compact()
    assert list(tmp_path.rglob(".tmp-*")) == []


@pytest.mark.parametrize(("uri", "message"), [("", "empty"), ("nosuchscheme://bucket/table", "nosuchscheme")])
def test_a_location_that_names_no_store_is_refused(uri: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        Table.open(uri)
    assert error.value.hint

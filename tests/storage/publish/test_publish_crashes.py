"""A publication as Iceberg that dies at any of its requests: the next one makes up for it. Of Delta: the simulation."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.faulty_store import FaultyStore
from tests.storage.publish.test_publish_iceberg import NAME, check_same_rows
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.environment import Environment
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.iceberg_folder import FolderCatalog
from weft.storage.store.open_store import open_store


class Death(BaseException):
    """The process has died: nothing that it asks for afterwards happens."""


class Process:
    """Counts requests that change something, and dies before or after one of them."""

    def __init__(self, last: int, *, after: bool) -> None:
        self.left, self.after, self.dead = last, after, False

    def request(self, effect: Callable[[], Any]) -> Any:
        if self.dead:
            raise Death
        self.left -= 1
        if self.left:
            return effect()
        self.dead = True
        if self.after:
            effect()
        raise Death


class MortalStore(FaultyStore):
    process: Process

    def _call(self, call: str, path: str, effect: Callable[[], Any]) -> Any:
        return self.process.request(effect) if call.startswith(("put", "delete", "open_output")) else effect()


def mortal_catalog(kind: str, folder: Path, process: Process) -> Catalog:
    """A catalog whose requests, and those of its file system, are made by a process that dies."""

    class MortalFiles(PyArrowFileIO):
        def new_output(self, location: str) -> Any:
            return process.request(lambda: PyArrowFileIO.new_output(self, location))

        def delete(self, location: Any) -> None:
            process.request(lambda: PyArrowFileIO.delete(self, location))

    made = opened(kind, folder)
    commit, files = made.commit_table, made._load_file_io
    assert files is not None

    def mortal_commit(*arguments: Any) -> Any:
        return process.request(lambda: commit(*arguments))

    made.commit_table = mortal_commit  # type: ignore[method-assign]
    made._load_file_io = lambda *_, **__: MortalFiles({})  # type: ignore[method-assign]
    return made


def opened(kind: str, folder: Path) -> Catalog:
    if kind == "folder":
        return FolderCatalog("lake", warehouse=str(folder / "lake"))
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")


@pytest.mark.parametrize("kind", [pytest.param("sql", marks=pytest.mark.extended), "folder"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_publication_may_die_at_any_request(tmp_path: Path, kind: str, *, after: bool) -> None:
    table, good = Table.create(tmp_path / "orders", SHOP), opened(kind, tmp_path)
    for last in itertools.count(1):
        append(table, orders(*range(20), status=f"v{last}", ts=last))
        table.compact()
        process = Process(last, after=after)
        store = MortalStore(open_store(table.uri))
        store.process = process
        mortal = mortal_catalog(kind, tmp_path, process)
        try:
            publish_iceberg(Table(Environment(store)), mortal, NAME)
        except Death:
            pass
        else:
            break
        finally:
            mortal.close()
        if last % 3 == 0:
            table.clean(dt.timedelta(0))
        with contextlib.suppress(NoSuchTableError):
            shown = set(good.load_table(NAME).scan().to_arrow()["status"].to_pylist())
            assert shown in ({f"v{last}"}, {f"v{last - 1}"}, set())
        publish_iceberg(table, good, NAME)
        check_same_rows(table, good)
        assert len(table.savepoints()) <= 2
    assert last > 5
    check_same_rows(table, good)
    good.close()

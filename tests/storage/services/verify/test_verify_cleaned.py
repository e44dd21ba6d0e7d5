"""Files that a clean deletes while a verification runs are no damage."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.damage import shop
from tests.storage.support.shop import append, new_uri, orders
from weft import Table
from weft.storage.services.steps.tasks import Task, one_by_one
from weft.storage.store.open_store import open_store

T = TypeVar("T")


@pytest.fixture
def table() -> Table:
    return shop(new_uri())


def test_files_cleaned_during_verify_are_not_reported(table: Table) -> None:
    append(table, orders(1, ts=20))
    table.compact()
    store = FaultyStore(open_store(table.uri))
    looked = []

    def clean() -> None:
        looked.append(table.clean(dt.timedelta(0)).files)

    store.faults.append(Fault("list", "base", action=clean))
    report = other_process(table.uri, FakeClock(), store).verify()
    assert looked[0] > 0
    assert report.ok, str(report)
    assert any("verify again" in finding.hint for finding in report.infos)


@pytest.mark.parametrize("what", ["log", "base", "index"])
def test_files_cleaned_after_they_were_listed_are_not_reported(table: Table, what: str) -> None:
    """They were there when files were listed, and are gone when their contents are read."""
    table = Table(table.env.tuned(inline_index_bytes=1)) if what == "index" else table
    append(table, orders(1, ts=20))
    if what == "base":
        table.compact()

    def clean_first(tasks: Iterable[Task[T]], /) -> Iterator[T]:
        append(table, orders(*range(40), ts=30))  # of every file group: small ones share files
        table.compact()
        assert table.clean(dt.timedelta(0)).files > 0
        return one_by_one(tasks)

    report = Table(table.env).verify(execute=clean_first)
    assert report.ok, str(report)
    assert any("verify again" in finding.hint for finding in report.infos)
    assert table.verify().ok

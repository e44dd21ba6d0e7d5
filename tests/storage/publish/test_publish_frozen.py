"""A publisher that freezes before its commit, while the table is restored and others find nothing to publish."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.exceptions import ServiceUnavailableError

from tests.faulty_store import Fault, FaultyStore
from tests.storage.publish.test_publish_delta import check_same_rows as check_delta
from tests.storage.publish.test_publish_failures import FailingCatalog, fails
from tests.storage.publish.test_publish_iceberg import NAME, check_same_rows
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, Conflict
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.store.open_store import open_store


def frozen_meanwhile(table: Table, publish: Callable[[Table], object]) -> Callable[[], None]:
    """What others do before a commit: nothing of what it publishes is left in the table afterwards."""

    def others() -> None:
        other = Table.open(table.uri)
        other.restore("good")
        publish(other)
        other.clean(dt.timedelta(0))

    return others


def published_then_wrong(folder: Path) -> tuple[Table, FailingCatalog]:
    """A published table with the savepoint ``good``, and wrong rows after it that are compacted and not published."""
    catalog = FailingCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    table = Table.create(folder / "orders", SHOP)
    append(table, orders(*range(20)))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    table.savepoint("good")
    append(table, orders(*range(20), status="wrong", ts=2))
    table.compact()
    return table, catalog


def test_a_frozen_publisher_of_iceberg_does_not_publish_what_was_restored_away(tmp_path: Path) -> None:
    table, catalog = published_then_wrong(tmp_path)
    catalog.before = frozen_meanwhile(table, lambda other: publish_iceberg(other, catalog, NAME))
    with pytest.raises(Conflict, match="publish again"):
        publish_iceberg(table, catalog, NAME)
    check_same_rows(table, catalog)
    assert set(catalog.load_table(NAME).scan().to_arrow()["status"].to_pylist()) == {"new"}
    names = {kept.name for kept in table.savepoints()}
    assert not publish_iceberg(table, catalog, NAME).changed
    assert {kept.name for kept in table.savepoints()} == names
    assert len(names) == 3
    catalog.close()


def test_a_frozen_publisher_of_delta_does_not_publish_what_was_restored_away(tmp_path: Path) -> None:
    store = FaultyStore(open_store(str(tmp_path / "orders")))
    table = Table.create_in(Environment(store), SHOP)
    append(table, orders(*range(20)))
    table.compact()
    publish_delta(table)
    table.savepoint("good")
    append(table, orders(*range(20), status="wrong", ts=2))
    table.compact()
    store.faults.append(Fault("put_if_absent", "_delta_log", action=frozen_meanwhile(table, publish_delta)))
    with pytest.raises(Conflict, match="publish again"):
        publish_delta(table)
    check_delta(table)
    names = {kept.name for kept in table.savepoints()}
    assert not publish_delta(table).changed
    assert {kept.name for kept in table.savepoints()} == names
    assert len(names) == 3


def test_a_publisher_that_never_hears_from_its_catalog_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    """The commit may still come, so the next publication commits although the base files are those of before."""
    table, catalog = published_then_wrong(tmp_path)
    catalog.before = fails(ServiceUnavailableError("503"))
    with pytest.raises(CommitUnknown):
        publish_iceberg(table, catalog, NAME)
    table.restore("good")
    assert publish_iceberg(table, catalog, NAME).changed
    check_same_rows(table, catalog)
    assert not publish_iceberg(table, catalog, NAME).changed
    assert len(table.savepoints()) == 3
    catalog.close()

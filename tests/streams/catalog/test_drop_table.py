"""What somebody has written to is dropped or replaced only with PURGE; without Spark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.storage.support.shop import SHOP, append, contents, orders
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.catalog.catalog_context import CatalogContext
from weft.streams.catalog.definitions import drop_later, drop_table
from weft.streams.catalog.lake import Lake

if TYPE_CHECKING:
    from weft.streams.catalog.catalog_jvm import CatalogJvm

NAMES = ("shop", "orders")


@pytest.mark.parametrize("listed", [True, False])
def test_a_table_with_rows_is_neither_dropped_nor_replaced(tmp_path: Path, *, listed: bool) -> None:
    """Also if all of its lanes were closed and retired, as that of an import."""
    catalog = CatalogContext(cast("CatalogJvm", None), "weft", Lake(str(tmp_path), {}))  # no session is needed
    table = Table.create(catalog.lake.location(NAMES), SHOP)
    append(table, orders(1))
    if not listed:
        table.close_lane("orders")
        table.compact()
        assert table.clean(dt.timedelta(0)).retired == ("orders",)
    with pytest.raises(InvalidInput, match=r"DROP TABLE weft\.shop\.orders: this would delete all of its data"):
        drop_table(catalog, NAMES, purge=False)
    with pytest.raises(InvalidInput, match=r"REPLACE TABLE weft\.shop\.orders: this would delete all of its data"):
        drop_later(catalog, NAMES)
    assert contents(Table.open(table.uri), ["id"]) == [(1,)]
    assert not catalog.replaced


def test_a_table_that_nobody_has_written_to_is_dropped(tmp_path: Path) -> None:
    catalog = CatalogContext(cast("CatalogJvm", None), "weft", Lake(str(tmp_path), {}))
    Table.create(catalog.lake.location(NAMES), SHOP)
    assert drop_table(catalog, NAMES, purge=False)
    assert not catalog.lake.has_table(NAMES)

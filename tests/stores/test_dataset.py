"""Base files as a dataset of pyarrow, on every kind of store, here and in another process."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from tests.stores.places import SPAWN, Place
from weft import Table
from weft.storage.core.names import Path
from weft.storage.errors import CorruptData

CHILD_SECONDS = 240  # a new process imports what it needs first, on a machine that may be busy


def _sum_of_ids(dataset: ds.Dataset) -> int:
    return pc.sum(dataset.to_table(["id"], filter=pc.field("paid") == 2.0)["id"]).as_py()


def test_a_dataset_has_the_rows_of_the_table(place: Place) -> None:
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    append(table, orders(*range(50)))
    append(table, payments(*range(10), paid=2.0), "payments")
    table.compact()
    read = Table.open(place.uri, storage_options=place.options).snapshot().read_optimized()
    dataset = read.dataset()
    assert dataset.to_table().sort_by("id") == read.to_arrow().sort_by("id")
    assert dataset.count_rows() == 50
    assert pa.Table.from_batches(dataset.to_batches(["id"]), pa.schema([dataset.schema.field("id")])).num_rows == 50
    if not place.uri.startswith("memory:"):  # which other processes do not see
        with SPAWN.Pool(1) as pool:
            assert pool.apply_async(_sum_of_ids, (dataset,)).get(CHILD_SECONDS) == 45
    store = place.open()
    store.delete(Path(dataset.files[0]))
    with pytest.raises(CorruptData, match="missing"):
        dataset.to_table()

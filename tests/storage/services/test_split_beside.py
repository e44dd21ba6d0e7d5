"""Splits of tables with references, with a time to live, and with a published copy: nothing else notices them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.publish.test_publish_delta import check_same_rows
from tests.storage.services.test_ttl import DAY, ManualClock, hidden, ids, make, write, write_other
from tests.storage.support.reference_shop import CUSTOMER, Shop
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.publish.delta import publish_delta
from weft.storage.services.split import set_buckets


class SplitTable:
    """What changes the buckets of a table: completely, or of some file groups only."""

    def __init__(self, table: Table, chance: random.Random) -> None:
        self.table, self.chance = table, chance

    def some(self) -> None:
        chosen, buckets = self.chance.random(), self.chance.choice([1, 2, 4, 8, 16])
        if chosen < 1 / 3:
            self.table.split(buckets)
            return
        set_buckets(self.table.writable(), buckets)
        if chosen < 2 / 3:
            self.table.compact(lambda _: self.chance.random() < 1 / 2)


@pytest.mark.parametrize("seed", range(4))
def test_tables_with_references_are_split_on_either_side(tmp_path: Path, seed: int) -> None:
    """The joined rows, look-ups, filters, earlier cuts and changes are those of two dicts."""
    chance = random.Random(seed)
    shop = Shop(tmp_path, {"customer": CUSTOMER})
    sides = [SplitTable(shop.orders, chance), SplitTable(shop.customers, chance)]
    placed: dict[int, int] = {}
    names: dict[int, str] = {}
    before: list[tuple[str, list[tuple[Any, ...]]]] = []
    ts = 0

    def order() -> None:
        key, customer = chance.randrange(30), chance.randrange(12)
        shop.order(key, customer, ts)
        placed[key] = customer

    def customer() -> None:
        key = chance.randrange(12)
        deleted = chance.random() < 1 / 4
        shop.customer(key, None if deleted else f"n{ts}", ts, "D" if deleted else "upsert")
        names.pop(key, None)
        if not deleted:
            names[key] = f"n{ts}"

    acts: list[Callable[[], object]] = [order, order, customer, customer, *(side.some for side in sides)]
    acts += [shop.orders.compact, shop.customers.fold]
    for _ in range(30):
        ts += 1
        chance.choice(acts)()
        expected = [(key, placed[key], names.get(placed[key])) for key in sorted(placed)]
        assert shop.rows("customer_id", "customer_name") == expected
        snapshot = shop.orders.snapshot()
        some = chance.sample(range(30), 5)
        found = snapshot.get(some, ["order_id", "customer_id", "customer_name"]).sort_by("order_id").to_pylist()
        assert [tuple(row.values()) for row in found] == [row for row in expected if row[0] in some]
        assert shop.rows(require=["customer"]) == [(key,) for key, _, name in expected if name is not None]
        for cut, rows in before[-2:]:
            assert shop.rows("customer_id", "customer_name", as_of=cut) == rows
            if cut != str(snapshot.cut):
                columns = ["customer_id", "customer_name"]
                changed = shop.orders.changes(cut, columns=columns).read_all().column("order_id").to_pylist()
                assert sorted(changed) == [row[0] for row in expected if row not in rows]
        before.append((str(snapshot.cut), expected))
    shop.orders.split(8)
    shop.customers.split(2)
    assert shop.rows("customer_id", "customer_name") == expected
    assert [str(error) for table in (shop.orders, shop.customers) for error in table.verify().errors] == []


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_deletes_expire_as_without_splits(seed: int) -> None:
    """A table beside one with the same history and the same clock that is never split."""
    chance, clock = random.Random(seed), ManualClock()
    # Within no time: else a file group is rewritten when its oldest row is overdue, which depends on the file groups.
    ttl = {"rows": "10 days", "by": "at", "within": 0, "deletes": "3 days"}
    plain, other = make(clock, ttl), make(clock, ttl)
    splits = SplitTable(other, chance)
    expired = 0

    def both(act: Callable[[Table], object]) -> None:
        for table in (plain, other):
            act(table)

    both(lambda table: write(table, list(range(60)), clock.now - 9 * DAY))
    for _ in range(20):
        some = chance.sample(range(60), 8)
        at, op = clock.now - chance.randrange(12) * DAY, chance.choice([None, None, "D"])
        match chance.randrange(6):
            case 0 | 1:
                both(lambda table, some=some, at=at, op=op: write(table, some, at, op))
            case 2:
                both(lambda table, some=some: write_other(table, some))
            case 3:
                clock.now += chance.randrange(1, 4) * DAY
                found, same = (table.apply_ttl() for table in (plain, other))
                assert (found.rows, found.skipped) == (same.rows, same.skipped)
                expired += found.rows
            case _:
                splits.some()
        assert ids(plain) == ids(other)
    clock.now += 5 * DAY
    found, same = (table.apply_ttl() for table in (plain, other))
    assert found.rows == same.rows
    plain.compact()
    other.split(8)
    assert ids(plain) == ids(other)
    assert hidden(plain) == hidden(other)
    assert other.verify().ok
    assert expired + found.rows


@pytest.mark.parametrize("small_group_bytes", [0, 2 << 20], ids=["own files", "shared files"])
def test_a_delta_table_is_published_between_the_steps_of_splits(tmp_path: Path, small_group_bytes: int) -> None:
    """File groups of several numbers of buckets, in files of which some rows are not current any more."""
    table = Table.create(tmp_path / "orders", SHOP)
    table = Table(table.env.tuned(small_group_bytes=small_group_bytes))
    append(table, orders(*range(200)))
    table.compact()

    def publish() -> None:
        published = publish_delta(table)
        check_same_rows(table)
        assert published.rows == 200

    publish()
    set_buckets(table.writable(), 16)
    publish()
    for bucket in (1, 3):
        table.compact(lambda part, bucket=bucket: part.group.bucket == bucket)
        publish()
    append(table, orders(*range(0, 200, 3), status="late", ts=2))
    table.split(16)
    publish()
    table.split(2)
    publish()
    assert table.verify().ok

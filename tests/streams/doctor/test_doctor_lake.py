"""``weft doctor`` of a folder of tables: each table is looked at, and a damaged one does not hide the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.streams.catalog.shop_lake import CUSTOMERS, ORDERS, SMALL, WITH_CUSTOMERS
from tests.streams.support.pipelines import weft
from weft import Table
from weft.storage.errors import CorruptData
from weft.streams.catalog.lake import Lake


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "lake"
    Table.create(made / "shop" / "orders_wide", ORDERS)
    Table.create(made / "shop" / "eu" / "2024-orders", SMALL)
    return made


def doctor(root: Path) -> tuple[int, dict[str, tuple[str, str, str]]]:
    done = weft("doctor", root, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    guides = {each["check"]: each["guide"] for each in found}
    assert all(not guides[each["check"]] for each in found if each["level"] == "ok")
    return done.exit_code, {each["check"]: (each["level"], each["text"], each["hint"]) for each in found}


def test_every_table_is_opened_and_a_damaged_one_is_named(root: Path) -> None:
    before = sorted(root.rglob("*"))
    code, found = doctor(root)
    assert code == 0, found
    assert {name: level for name, (level, _, _) in found.items()} == dict.fromkeys(
        ("store", "clock", "tables", "shop.orders_wide", "shop.eu.2024-orders"), "ok"
    )
    assert "5 columns, newest snapshot cut:" in found["shop.orders_wide"][1]
    assert found["tables"][1].endswith("has 2 tables")
    assert sorted(root.rglob("*")) == before, "nothing is left behind"

    shutil.rmtree(root / "shop" / "orders_wide" / "_weft")
    (root / "shop" / "orders_wide" / "_weft" / "timeline").mkdir(parents=True)
    code, found = doctor(root)
    level, _, hint = found["shop.orders_wide"]
    assert (code, level, found["shop.eu.2024-orders"][0]) == (1, "problem", "ok")
    assert f"weft verify {Lake(str(root), {}).location(('shop', 'orders_wide'))} lists every problem" in hint
    assert Lake(str(root), {}).tables(("shop",)) == ["orders_wide"], "SHOW TABLES lists it with the others"


def test_damage_names_the_guide(root: Path) -> None:
    for entry in (root / "shop/orders_wide/_weft").rglob("*.json"):
        entry.write_text("{", encoding="utf-8")
    assert f"guide: {CorruptData.guide}" in weft("doctor", root).stdout
    found = [json.loads(line) for line in weft("doctor", root, "--json").stdout.splitlines()]
    assert {each["check"] for each in found if each["guide"] == CorruptData.guide} == {"shop.orders_wide"}


def test_a_reference_that_cannot_be_read_is_a_problem(root: Path) -> None:
    Table.create(root / "shop" / "customers", CUSTOMERS)
    Table.create(root / "shop" / "with_customers", WITH_CUSTOMERS)
    assert doctor(root)[0] == 0
    shutil.rmtree(root / "shop" / "customers")
    code, found = doctor(root)
    level, text, hint = found["shop.with_customers"]
    assert (code, level) == (1, "problem")
    assert "reference 'customer': " in text
    assert "drop-reference" in hint


def test_a_single_table_and_what_is_no_folder(root: Path) -> None:
    code, found = doctor(root / "shop" / "orders_wide")
    assert (code, found["table"][0]) == (0, "ok")
    code, found = doctor(root / "missing")
    assert (code, found["tables"][0]) == (1, "problem")
    assert not (root / "missing").exists()
    done = weft("doctor", root, "--sample", "3")
    assert (done.exit_code, "--only and --sample are for a pipeline file" in done.stderr) == (2, True)

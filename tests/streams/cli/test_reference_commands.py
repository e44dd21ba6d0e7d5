"""`weft check`, `show`, `doctor` and `explain` of a table with references."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.storage.support.cleaning import NOW
from tests.storage.support.reference_shop import CUSTOMER, CUSTOMERS, ORDERS, PRODUCTS, Shop, write
from tests.streams.support.pipelines import weft, weft_output
from weft import Table
from weft.streams.pipeline.file.check_file import check_file

PRODUCT = {"table": "../products", "on": ["shop", "sku"]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, {"customer": CUSTOMER, "product": PRODUCT})


def file(folder: Path, references: dict[str, Any], **changes: Any) -> Path:
    source = {"type": "spark", "format": "rate"}
    config = {**ORDERS, "references": references}
    writers = {"orders": {"source": source, "dead_letter": "./dead"}}
    path = folder / "p.yaml"
    whole = {"table": {"uri": "./orders", "config": config}, "writers": writers, **changes}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({**CUSTOMER, "table": "../nobody"}, "customer.table: there is no table at {folder}/nobody"),
        ({**CUSTOMER, "table": "../orders"}, "customer.table: ../orders is the table itself"),
        ({**CUSTOMER, "on": "sku"}, "customer.on: column 'sku' is string, and 'id' of ../customers is bigint"),
        ({**PRODUCT, "on": "shop"}, "customer.on: 1 column, and the key of ../products has 2"),
        ({**CUSTOMER, "columns": ["age"]}, "customer.columns: ../customers has no column 'age'"),
        (
            {"table": "../wide", "on": "order_id", "columns": ["customer_name"]},
            "customer.columns: 'customer_name' is a",
        ),
    ],
    ids=["missing", "itself", "type", "key", "column", "of a reference"],
)
def test_check_names_what_is_wrong_with_a_reference(tmp_path: Path, reference: dict[str, Any], message: str) -> None:
    Table.create(tmp_path / "customers", CUSTOMERS)
    Table.create(tmp_path / "products", PRODUCTS)
    Table.create(tmp_path / "wide", {**ORDERS, "references": {"customer": CUSTOMER}})
    (problem,) = check_file(file(tmp_path, {"good": CUSTOMER, "customer": reference}), {}).problems
    wanted = f"table.config.references.{message.format(folder=tmp_path)}"
    assert problem.message.replace("file://", "").startswith(wanted), problem.message
    assert problem.hint
    assert problem.line is not None
    assert weft("check", tmp_path / "p.yaml", "--without-spark").exit_code == 2
    assert not (tmp_path / "orders").exists()


def test_check_doctor_and_show_see_what_became_of_the_referenced_tables(shop: Shop, tmp_path: Path) -> None:
    path = file(tmp_path, {"customer": CUSTOMER, "product": PRODUCT})
    assert check_file(path, {}).problems == []
    with shop.customers.writer("crm", lateness=10) as writer:
        writer.append(pa.table({"id": [1], "name": ["Ann"], "crm_ts": [50]}))
    shown = weft_output("show", shop.orders.uri)
    assert "crm: complete before crm_ts 40" in shown
    assert "product_title" in shown
    overview = json.loads(weft_output("show", shop.orders.uri, "--json"))
    assert [(each["name"], each["problem"]) for each in overview["references"]] == [("customer", ""), ("product", "")]
    shutil.rmtree(shop.folder / "products")
    Table.create(shop.folder / "products", PRODUCTS)
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    problems = [problem.message for problem in check_file(path, {}).problems]
    assert [message.partition(" ")[0] for message in problems] == [
        "table.config.references.customer.table:",
        "table.config.references.product:",
    ]
    assert "the table at ../products is not the one" in problems[1]
    found = [json.loads(line) for line in weft("doctor", path, "--sample", "0", "--json").stdout.splitlines()]
    assert [each["text"] for each in found if each["check"] == "references"] == problems
    assert "references.customer.table: there is no" in weft_output("show", shop.orders.uri).replace("\n", " ")


def test_check_compares_how_long_the_tables_keep_their_snapshots(shop: Shop, tmp_path: Path) -> None:
    clean = {"retain": "7 days"}
    path = file(tmp_path, {"customer": CUSTOMER, "product": PRODUCT}, clean=clean)
    for turn in (1, 2):
        shop.customer(1, "Ann", ts=turn)
        shop.customers.compact()
    assert check_file(path, {}).problems == []
    shop.customers.clean(NOW)
    (problem,) = check_file(path, {}).problems
    assert problem.message.startswith(f"clean.retain: {shop.customers.uri} keeps its snapshots only since ")
    assert "cannot show reference 'customer'" in problem.message
    assert "with the same retain" in problem.hint
    file(tmp_path, {"customer": CUSTOMER, "product": PRODUCT}, clean={"retain": "10 minutes"})
    assert check_file(path, {}).problems == []


def test_explain_shows_the_referenced_row_and_its_winner(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.customer(1, "Anna", ts=2)
    shop.order(7, 1)
    shop.order(8, 9)
    shop.order(9, None)
    found = shop.orders.explain_row(7)
    assert found.row is not None
    assert found.row == shop.orders.get([7]).to_pylist()[0]
    customer, product = found.references
    assert customer.explanation is not None
    assert customer.explanation.key == {"id": 1}
    assert [(each.result, each.values["name"]) for each in customer.explanation.of_group("crm")] == [
        ("loses", "Ann"),
        ("wins", "Anna"),
    ]
    assert product.explanation is None
    groups = found.to_arrow().column("group").to_pylist()
    assert groups == ["order", "customer.crm", "customer.crm"]
    lines = weft_output("explain", shop.orders.uri, "--key", "7").splitlines()
    assert "reference customer: customer_id=1 names a row of ../customers" in lines
    assert any(line.startswith("    wins (newest): upsert crm_ts=2") for line in lines)
    assert "reference product: shop=NULL, sku=NULL names no row of ../products" in lines
    for order in (8, 9):
        assert [each.explanation for each in shop.orders.explain_row(order).references] == [None, None]
    write(shop.customers, "crm", id=[1], name=[None], crm_ts=[3], _op=["delete"])
    hidden = shop.orders.explain_row(7)
    assert hidden.row is not None
    assert hidden.row["customer_tier"] is None, "not its default: there is no row"
    assert hidden.references[0].explanation is not None
    assert hidden.references[0].explanation.row is None
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    lost = Table.open(shop.orders.uri).explain_row(7)
    assert "customer_name" not in (lost.row or {})
    assert "its columns cannot be read: there is no table at" in lost.to_text()


def test_a_referenced_table_that_was_moved_is_added_again_at_its_new_place(shop: Shop) -> None:
    shop.customer(1, "Ann")
    shop.order(7, 1)
    then = str(shop.orders.snapshot().cut)
    shown = json.loads(weft_output("show", shop.orders.uri, "--json"))["cut"]
    assert shown == then, "it names the cuts of all tables"
    shutil.move(shop.folder / "customers", shop.folder / "moved")
    for arguments in (("changes", shop.orders.uri, "--since", then), ("savepoint", shop.orders.uri, "kept")):
        refused = weft(*arguments)
        assert refused.exit_code != 0
        assert "reference 'customer': there is no table at" in refused.stderr
    unrelated = weft_output("alter", "add-reference", shop.orders.uri, "twin", "../moved", "--on", "order_id")
    assert "reference twin to ../moved is added" in unrelated
    state = json.loads(weft_output("show", shop.orders.uri, "--json"))["references"][0]
    assert state["hint"].startswith("put it back, or drop the reference and add it again")
    weft_output("alter", "drop-reference", shop.orders.uri, "customer")
    weft_output("alter", "add-reference", shop.orders.uri, "customer", "../moved", "--on", "customer_id")
    assert Table.open(shop.orders.uri).get([7], ["customer_name"]).to_pylist() == [{"customer_name": "Ann"}]

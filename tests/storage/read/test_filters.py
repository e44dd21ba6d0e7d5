"""Forms of filters: each selects the same rows, prunes equally, and is refused if it is invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.predicates import predicates, tuples
from tests.storage.support.reference_shop import CUSTOMER, Shop
from tests.storage.support.shop import SHOP, append, new_uri, orders, payments
from tests.storage.support.world import World, bag
from tests.strategies import Story, stories
from weft import Table
from weft.storage.core.predicate import And, Comparison, In, IsNull, Not, Or, StartsWith
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.read.request import filter_input

K, STATUS = pc.field("id"), pc.field("status")


@pytest.fixture
def shop() -> Table:
    """4 file groups; 40 orders, compacted; payments of some of them, not compacted."""
    table = Table.create(new_uri(), SHOP)
    append(table, orders(*range(40)))
    table.compact()
    append(table, payments(1, 2, 30), "payments")
    return table


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8), st.data())
def test_tuples_select_the_same_rows_as_in_pyarrow(story: Story, data: st.DataObject) -> None:
    with World(story.config) as world:
        world.run(story.steps)
        snapshot = world.table.snapshot()
        whole = snapshot.to_arrow()
        for _ in range(4):
            chosen = data.draw(tuples(story.config))
            assert bag(snapshot.to_arrow(filter=chosen)) == bag(whole.filter(pq.filters_to_expression(chosen))), chosen


@pytest.mark.usefixtures("small_files")
@given(stories(max_steps=8), st.data())
def test_an_expression_that_cannot_be_read_selects_the_same_rows(story: Story, data: st.DataObject) -> None:
    with World(story.config) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.storage.read.request.arrow_expression._metadata", lambda _: iter([("novelty", "1")]))
        world.run(story.steps)
        snapshot = world.table.snapshot()
        chosen = data.draw(predicates(story.config))
        assert snapshot.scan(filter=chosen).skipped == 0
        assert bag(snapshot.to_arrow(filter=chosen)) == bag(snapshot.to_arrow().filter(chosen))


@pytest.mark.parametrize(
    ("forms", "rows", "skipped"),
    [
        ([K == 17, [("id", "=", 17)], [("id", "==", 17)], Comparison("id", "==", 17, pa.int64())], 1, 3),
        ([K.isin([1, 99]), [("id", "in", {1, 99})], In("id", (1, 99), pa.int64())], 1, 2),
        ([(K == 1) | (K == 17), [[("id", "=", 1)], [("id", "=", 17)]]], 2, 2),
        ([(K == 1) & (STATUS == "new"), [("id", "=", 1), ("status", "=", "new")]], 1, 3),
        ([(K == 1) & pc.match_substring(STATUS, "e")], 1, 3),
        ([~K.isin([1, 2]) & (K < 4), [("id", "not in", [1, 2]), ("id", "<", 4)]], 2, 0),
        ([pc.field("paid").is_valid(), Not(IsNull("paid"))], 3, 0),
        ([pc.starts_with(STATUS, "ne"), StartsWith("status", "ne")], 40, 0),
        ([~pc.field("_present_payment") & (K == 17), [("_present_payment", "=", False), ("id", "=", 17)]], 1, 3),
        ([~pc.field("_present_payment"), [("_present_payment", "=", False)]], 37, 0),
        ([pc.scalar(pa.scalar(value=False)), Or(())], 0, 4),
        ([pc.scalar(pa.scalar(value=True)), And(())], 40, 0),
    ],
)
def test_every_form_of_a_filter_prunes_equally(shop: Table, forms: list[Any], rows: int, skipped: int) -> None:
    snapshot = shop.snapshot()
    assert {snapshot.to_arrow(["id"], filter=form).num_rows for form in forms} == {rows}
    assert [snapshot.scan(filter=form).skipped for form in forms] == [skipped] * len(forms)


@pytest.mark.parametrize(
    "wrong",
    [
        "id = 1",
        1,
        [],
        [[]],
        {"id": 1},
        [("id", "=")],
        [("id", "~", 1)],
        [("id", "=", None)],
        [("id", "in", 1)],
        [("status", "in", "new")],
        [("id", "in", [1, "x"])],
        [("id", "=", print)],
        [("id", "=", 2**70)],
        [("id", "=", 1), [("id", "=", 2)]],
    ],
    ids=str,
)
def test_values_that_are_not_filters_are_refused(shop: Table, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="filter") as error:
        shop.snapshot().scan(filter=wrong)
    assert "pyarrow expression" in error.value.hint


@pytest.mark.parametrize(
    ("given_filter", "hint"),
    [
        ([("nope", "=", 1)], "columns: id, status"),
        ([("id", "=", "x")], "id is int64: compare with values of the same type"),
        (IsNull("nope"), "columns: id, status"),
    ],
    ids=str,
)
def test_a_filter_that_does_not_fit_the_table_is_refused(shop: Table, given_filter: Any, hint: str) -> None:
    with pytest.raises(NotFound, match="does not fit the table") as error:
        shop.snapshot().scan(filter=given_filter)
    assert error.value.hint.startswith(hint)


@pytest.mark.parametrize("condition", [pc.field("paid") > 1, pc.field("customer_name") == "n1"], ids=["own", "joined"])
def test_a_filter_is_parsed_once_for_each_read(
    condition: pc.Expression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, {"customer": CUSTOMER})
    shop.customer(1, "n1")
    shop.order(0, 1)
    parsed = []

    def counted(expression: pc.Expression) -> Any:
        parsed.append(expression)
        return read_expression(expression)

    read_expression = filter_input.read_expression
    monkeypatch.setattr(filter_input, "read_expression", counted)
    shop.orders.snapshot().to_arrow(["order_id"], filter=condition)
    assert len(parsed) == 1

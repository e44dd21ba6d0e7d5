"""SQL properties of tables: a configuration survives the way through properties, and wrong properties are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import Config, configs
from weft.storage.config.table_config import TableConfig, build_schema, load_config
from weft.storage.config.table_properties import SqlColumn, config_from_properties, parse_names, properties_of
from weft.storage.errors import InvalidInput

ODD = ["payment", "a.b", "x,y", "back`tick", " space ", "group", "é col", "ordering"]
COLUMNS = [
    SqlColumn("order_id", "bigint"),
    SqlColumn("status", "string", "new"),
    SqlColumn("order_ts", "timestamp"),
    SqlColumn("paid", "double"),
    SqlColumn("pay_ts", "bigint"),
]
PROPERTIES = {
    "key": "order_id",
    "buckets": "4",
    "group.order": "status, order_ts",
    "group.order.ordering": "order_ts",
    "group.payment": "paid,pay_ts",
    "group.payment.ordering": "pay_ts",
    "stream.orders": "order",
    "stream.orders.on_delete": "row",
    "stream.payments": "payment",
}


@st.composite
def full_configs(draw: st.DrawFn) -> Config:
    """Configurations with odd names of groups, a time to live, references and comments, too."""
    config = draw(configs())
    odd = draw(st.permutations(ODD))
    renamed = dict(zip(config["groups"], odd, strict=False)) if draw(st.booleans()) else {}
    config["groups"] = {renamed.get(name, name): group for name, group in config["groups"].items()}
    for stream in config["streams"].values():
        stream["groups"] = [renamed.get(name, name) for name in stream["groups"]]
    config["ttl"] = draw(
        st.sampled_from([None, {"rows": "90 days"}, {"rows": "1500 ms", "deletes": "2 hours", "within": "61 seconds"}])
    )
    if draw(st.booleans()):
        config["references"] = {
            "customer": {"table": "../customers, all", "on": config["key"]},
            "other": {"table": "s3://lake/o", "on": config["key"][:1], "columns": ["a,b", "c"], "prefix": "o_"},
        }
    if draw(st.booleans()):
        config["comment"] = draw(st.text(max_size=9))
        name = draw(st.sampled_from(list(config["columns"])))
        column = config["columns"][name]
        given = {"type": column} if isinstance(column, str) else column
        config["columns"][name] = {**given, "comment": draw(st.text(max_size=9))}
    return config


def columns_of(config: TableConfig) -> list[SqlColumn]:
    return [SqlColumn(name, column.type, column.default, column.comment) for name, column in config.columns.items()]


@given(full_configs())
def test_a_configuration_survives_the_way_through_properties(given_config: Config) -> None:
    config = load_config(given_config)
    again = config_from_properties(columns_of(config), properties_of(config))
    assert again == config
    assert list(again.columns) == list(config.columns)


@given(full_configs(), st.randoms(use_true_random=False))
def test_the_order_of_properties_does_not_matter(given_config: Config, chance: Any) -> None:
    config = load_config(given_config)
    items = list(properties_of(config).items())
    before = build_schema(config_from_properties(columns_of(config), dict(items)))
    chance.shuffle(items)
    assert build_schema(config_from_properties(columns_of(config), dict(items))) == before


def test_properties_as_a_user_writes_them() -> None:
    config = config_from_properties(COLUMNS, PROPERTIES)
    assert config == load_config(
        {
            "key": ["order_id"],
            "buckets": 4,
            "columns": {
                "order_id": "bigint",
                "status": {"type": "string", "default": "new"},
                "order_ts": "timestamp",
                "paid": "double",
                "pay_ts": "bigint",
            },
            "groups": {
                "order": {"columns": ["status", "order_ts"], "ordering": ["order_ts"]},
                "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"]},
            },
            "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "payments": {"groups": ["payment"]}},
        }
    )
    assert properties_of(config) == {**PROPERTIES, "group.order": "status,order_ts"}


REFUSED: dict[str, tuple[dict[str, str | None], str, str]] = {
    "unknown": ({"group.payment.odering": "x"}, "property 'group.payment.odering' is unknown", "did you mean"),
    "main field by its name": (
        {"group.payment.columns": "paid"},
        "property 'group.payment.columns' is unknown",
        "known",
    ),
    "nested field by its name": ({"group.payment.state": "x"}, "property 'group.payment.state' is unknown", "known"),
    "misspelt section": ({"grup.x": "paid"}, "property 'grup.x' is unknown", "known: key"),
    "no key": ({"key": None}, "property 'key' is missing", "'key' = 'order_id'"),
    "no group": (
        {name: None for name in PROPERTIES if name.startswith("group.")},
        "property 'group.<group>' is missing: there is no group",
        "'group.payment' = 'paid,pay_ts'",
    ),
    "no stream": (
        {name: None for name in PROPERTIES if name.startswith("stream.")},
        "property 'stream.<stream>' is missing",
        "'stream.payment' = 'payment'",
    ),
    "ordering of no group": (
        {"group.refund.ordering": "pay_ts"},
        "property 'group.refund.ordering': there is no property 'group.refund'",
        "add 'group.refund'",
    ),
    "column that does not exist": (
        {"group.payment": "paid,pay_ts,nope"},
        "property group.payment: there is no 'nope'",
        "known: order_id, status",
    ),
    "column in two groups": (
        {"group.payment": "paid,pay_ts,status"},
        "property group.payment: column 'status' is already in group 'order'",
        "exactly one group",
    ),
    "column in no group": (
        {"group.payment": "pay_ts"},
        "column paid: the column is not in a group",
        "add it to a group",
    ),
    "ordering outside the group": (
        {"group.payment.ordering": "status"},
        "property group.payment.ordering: 'status' is not a column of the group",
        "order by columns of the group",
    ),
    "merge mode": (
        {"group.payment.merge": "newest"},
        "property group.payment.merge: 'newest' is not a merge mode",
        "modes: latest",
    ),
    "function": (
        {"group.payment.merge": "aggregate", "group.payment.function.paid": "median"},
        "property group.payment.function.paid: there is no function 'median'",
        "functions: sum",
    ),
    "delimiter without a function": (
        {"group.payment.function.paid.delimiter": ";"},
        "property 'group.payment.function.paid.delimiter': there is no property 'group.payment.function.paid'",
        "'listagg'",
    ),
    "group that does not exist": ({"stream.payments": "pay"}, "property stream.payments: there is no 'pay'", "known"),
    "on_delete": ({"stream.orders.on_delete": "all"}, "property stream.orders.on_delete:", ""),
    "buckets": ({"buckets": "many"}, "property 'buckets': 'many' is not a number", "'8'"),
    "power of two": ({"buckets": "6"}, "buckets: 6 is not a power of two", "for example 8"),
    "list": ({"key": "order_id,"}, "property 'key': 'order_id,' is not a list of names", "separate names by ','"),
    "backquote": ({"group.`payment": "paid"}, "property 'group.`payment': its name cannot be read", "backquotes"),
    "duration": ({"ttl.rows": "soon"}, "property ttl.rows: 'soon' is not a duration", ""),
    "ttl column": ({"ttl.rows": "1 day", "ttl.by": "nope"}, "property ttl.by: there is no 'nope'", "known"),
    "foreign key": (
        {"reference.customer": "../c", "reference.customer.on": "nope"},
        "property reference.customer.on: there is no 'nope'",
        "known",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_properties_are_refused(name: str) -> None:
    changes, message, hint = REFUSED[name]
    properties = {key: value for key, value in {**PROPERTIES, **changes}.items() if value is not None}
    with pytest.raises(InvalidInput, match=re.escape(message)) as caught:
        config_from_properties(COLUMNS, properties)
    assert hint in caught.value.hint


def test_a_column_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="column 'paid' is listed twice"):
        config_from_properties([*COLUMNS, SqlColumn("paid", "int")], PROPERTIES)


def test_names_in_backquotes_may_have_any_characters() -> None:
    assert parse_names("a , `b,``c`, d e") == ["a", "b,`c", "d e"]


def test_columns_that_a_reference_shows_are_not_columns_of_the_table() -> None:
    properties = {
        **PROPERTIES,
        "reference.customer": "../customers",
        "reference.customer.on": "order_id",
        "reference.customer.columns": "name",
    }
    with_shown = config_from_properties([*COLUMNS, SqlColumn("customer_name", "string")], properties)
    assert with_shown == config_from_properties(COLUMNS, properties)

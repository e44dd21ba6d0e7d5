"""Procedures of the catalog, called as the catalog calls them; `tests/sql` calls some with CALL."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from weft import Table
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.streams.catalog.procedure_table import PROCEDURES, find_procedure
from weft.streams.catalog.system_tables import SYSTEM_TABLES
from weft.streams.pipeline.file.model import TableLocation

CONFIG = {
    "key": ["order_id"],
    "buckets": 1,
    "columns": {"order_id": "bigint", "status": "string", "order_ts": "bigint", "paid": "double", "pay_ts": "bigint"},
    "groups": {
        "order": {"columns": ["status", "order_ts"], "ordering": ["order_ts"]},
        "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}


class Lake:
    """Names of tables in a folder, without Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def spark(self) -> SparkSession:
        raise AssertionError("these procedures need no session")

    def locate(self, table: str) -> TableLocation:
        return TableLocation(str(self.folder.joinpath(*table.split("."))))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    table = Table.create(tmp_path / "shop" / "orders_wide", CONFIG)
    with table.writer("orders") as orders:
        orders.append(pa.table({"order_id": [1, 2], "status": ["new", "new"], "order_ts": [10, 10]}))
        orders.append(pa.table({"order_id": [1], "status": ["sent"], "order_ts": [20]}))
    with table.writer("payments") as payments:
        payments.append(pa.table({"order_id": [1], "paid": [9.5], "pay_ts": [12]}))
    return Lake(tmp_path)


def call(lake: Lake, procedure_name: str, /, **arguments: Any) -> list[dict[str, Any]]:
    procedure = find_procedure(procedure_name)
    result = procedure.call(lake, {"table": "shop.orders_wide", **arguments})
    assert result.schema == procedure.result
    return result.to_pylist()


def opened(lake: Lake) -> Table:
    return Table.open(lake.locate("shop.orders_wide").uri)


def test_compact_and_fold_report_their_work(lake: Lake) -> None:
    [folded] = call(lake, "fold")
    assert (folded["work"], folded["file_groups"]) == ("fold", 1)
    [done] = call(lake, "compact")
    assert (done["work"], done["file_groups"], done["rows"], done["skipped"]) == ("compact", 1, 2, [])
    due = call(lake, "compact", min_commits=1)
    assert [(row["work"], row["file_groups"]) for row in due] == [("compact", 0), ("fold", 0)]


def test_savepoint_restore_and_release(lake: Lake) -> None:
    [made] = call(lake, "savepoint", name="before", note="a release")
    assert (made["name"], made["note"]) == ("before", "a release")
    assert made["made_at"] <= dt.datetime.now(dt.UTC)
    with opened(lake).writer("orders") as orders:
        orders.append(pa.table({"order_id": [3], "status": ["wrong"], "order_ts": [30]}))
    rolled_back = {row["lane"]: (row["kept_up_to"], row["rolled_back"]) for row in restored(lake)}
    assert rolled_back == {"orders": (3, 2), "payments": (2, 0)}
    assert opened(lake).snapshot().to_arrow().num_rows == 2
    assert call(lake, "release", name="before") == [{"name": "before"}]
    assert opened(lake).savepoints() == []


def restored(lake: Lake) -> list[dict[str, Any]]:
    with pytest.raises(InvalidInput, match=re.escape("Restore shop.orders_wide to before? Every writer")) as caught:
        call(lake, "restore", to="before")
    assert caught.value.hint == "add confirm => true"
    assert opened(lake).snapshot().to_arrow().num_rows == 3
    return call(lake, "restore", to="before", confirm=True)


def test_undo_takes_back_one_stream(lake: Lake) -> None:
    since = str(opened(lake).snapshot().cut)
    for stream, rows in (
        ("orders", {"order_id": [3], "status": ["x"], "order_ts": [1]}),
        ("payments", {"order_id": [4], "paid": [1.0], "pay_ts": [1]}),
    ):
        with opened(lake).writer(stream) as writer:
            writer.append(pa.table(rows))
    call(lake, "undo", stream="orders", since=since, confirm=True)
    assert sorted(opened(lake).snapshot().to_arrow()["order_id"].to_pylist()) == [1, 2, 4]


def test_lanes_are_fenced_and_closed(lake: Lake) -> None:
    for name, column in (("fence", "entry"), ("close", "last_entry")):
        with pytest.raises(InvalidInput, match="not confirmed"):
            call(lake, name, lane="orders")
        [done] = call(lake, name, lane="orders", confirm=True)
        assert (done["lane"], done[column] > 0) == ("orders", True)
    with pytest.raises(Conflict, match="closed"):
        call(lake, "close", lane="orders", confirm=True)


def test_verify_reports_ok_and_every_problem(lake: Lake) -> None:
    assert [row["severity"] for row in call(lake, "verify")] == ["ok"]
    table = opened(lake)
    next(Path(table.uri.removeprefix("file://"), "log", "orders").iterdir()).unlink()
    [problem, *_] = call(lake, "verify")
    assert (problem["severity"], "log/orders" in problem["place"]) == ("error", True)


def test_explain_row_says_which_event_won(lake: Lake) -> None:
    rows = call(lake, "explain_row", key="1")
    assert [(row["group"], row["result"], row["reason"]) for row in rows] == [
        ("order", "loses", "older"),
        ("order", "wins", "newest"),
        ("payment", "wins", "newest"),
    ]
    with pytest.raises(InvalidInput, match=re.escape("key 'one': 'one' is not a bigint")):
        call(lake, "explain_row", key="one")


def test_explain_row_changes_no_text_of_a_key(lake: Lake) -> None:
    texts = ["eu", " eu", "eu ", "eu, us", "a=b", "", "name", ", x", "EU", "e\u0301", "é"]
    keys = [(shop, name) for shop in texts for name in texts]
    config = {**CONFIG, "key": ["shop", "name"], "columns": {**CONFIG["columns"], "shop": "string", "name": "string"}}  # type: ignore[dict-item]
    config["groups"] = {
        **config["groups"],
        "order": {"columns": ["status", "order_ts", "order_id"], "ordering": ["order_ts"]},
    }  # type: ignore[dict-item]
    with Table.create(lake.folder / "shop" / "texts", config).writer("orders") as orders:
        rows = {"shop": [shop for shop, _ in keys], "name": [name for _, name in keys], "order_id": range(len(keys))}
        orders.append(pa.table({**rows, "status": ["new"] * len(keys), "order_ts": [10] * len(keys)}))
    for number, (shop, name) in enumerate(keys):
        [row] = call(lake, "explain_row", table="shop.texts", key=f"shop={shop}, name={name}")
        assert json.loads(row["values"])["order_id"] == number
    with pytest.raises(InvalidInput, match="column 'shop' twice"):
        call(lake, "explain_row", table="shop.texts", key="shop=eu, shop=eu, name=x")


def test_schema_changes(lake: Lake) -> None:
    method = {"group": "payment", "name": "method", "type": "string", "default": "cash", "comment": "as on the receipt"}
    [added] = call(lake, "add_column", **method)
    assert added["changed"]
    assert opened(lake).schema.column("method").comment == "as on the receipt"
    tips = {"columns": [("tip", "double"), ("tip_ts", "bigint")], "ordering": "tip_ts", "streams": "payments, tips"}
    call(lake, "add_group", name="tip", **tips)
    call(lake, "add_stream", name="fixes", groups="tip,payment")
    assert call(lake, "add_stream", name="fixes", groups="tip,payment") == [
        {"revision": opened(lake).state().schema_rev, "changed": False}
    ]
    schema = opened(lake).schema
    assert {stream.name: stream.groups for stream in schema.streams} == {
        "orders": ("order",),
        "payments": ("payment", "tip"),
        "tips": ("tip",),
        "fixes": ("tip", "payment"),
    }
    assert schema.column("method").default == "cash"


def test_a_reference_is_added_by_the_location_of_the_other_table(lake: Lake) -> None:
    other = {"key": ["status"], "columns": {"status": "string", "label": "string"}}
    groups = {"groups": {"label": {"columns": ["label"]}}, "streams": {"labels": {"groups": ["label"]}}}
    Table.create(lake.folder / "shop" / "states", {**other, **groups})
    [added] = call(lake, "add_reference", name="state", other_table="../states", on="status")
    assert added["changed"]
    assert [(found.name, found.on) for found in opened(lake).schema.references] == [("state", ("status",))]
    call(lake, "drop_reference", name="state")
    assert opened(lake).schema.references == ()


def test_clean_expire_and_forget(lake: Lake) -> None:
    call(lake, "compact")
    [*_, total] = call(lake, "clean", retain="0", dry_run=True)
    assert (total["kind"], total["files"] > 0) == ("total", True)
    assert call(lake, "clean", retain="0")[-1]["files"] == total["files"]
    [done] = call(lake, "expire_rows", column="order_ts", before="15", confirm=True)
    assert done["changed"]
    assert opened(lake).snapshot().to_arrow()["order_id"].to_pylist() == [1]
    [forgotten] = call(lake, "forget_deletes", group="order", before="100", confirm=True)
    assert forgotten["file_groups"] >= 0
    [settled] = call(lake, "mark")
    assert settled["settled"] <= dt.datetime.now(dt.UTC)


def test_publish_as_iceberg_and_as_delta(lake: Lake, tmp_path: Path) -> None:
    call(lake, "compact")
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    [first] = call(lake, "publish", iceberg="shop.wide", catalog_options=where, columns="order_id,status")
    assert (first["published"], first["rows"], first["changed"]) == ("shop.wide", 2, True)
    [delta] = call(lake, "publish", delta=True)
    assert (delta["rows"], delta["changed"]) == (2, True)
    assert call(lake, "publish", delta=True)[0]["changed"] is False


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "unknown parameter": ("clean", {"retian": "1 day"}, "clean: there is no parameter 'retian'", "retain string"),
    "missing": ("savepoint", {}, "savepoint: name is missing", "table string, name string"),
    "null": ("savepoint", {"name": None}, "savepoint: name is NULL", "name string"),
    "null of a default": ("clean", {"retain": None}, "clean: retain is NULL", "retain string"),
    "duration": ("clean", {"retain": "soon"}, "retain: 'soon' is not a duration", ""),
    "number": ("compact", {"min_commits": 0}, "min_commits: ", ""),
    "time": ("restore", {"to": "12:30"}, "'12:30' is not a time", "2026-11-20T10:30:00Z"),
    "future": ("undo", {"stream": "orders", "since": "2999-01-01T00:00:00Z"}, "nothing can have been committed", ""),
    "no format": ("publish", {}, "publish: the format is missing", "delta => true"),
    "iceberg": ("publish", {"iceberg": "a.b", "catalog": "none-such"}, "Iceberg catalog 'none-such' cannot", "uri"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(lake: Lake, name: str) -> None:
    procedure, arguments, message, hint = REFUSED[name]
    with pytest.raises(InvalidInput, match=re.escape(message)) as caught:
        call(lake, procedure, **arguments)
    assert hint in caught.value.hint


def test_what_does_not_exist_is_named(lake: Lake) -> None:
    with pytest.raises(NotFound, match="there is no procedure 'compakt'") as caught:
        find_procedure("compakt")
    assert "compact" in caught.value.hint
    with pytest.raises(NotFound, match="no_such"):
        call(lake, "compact", table="shop.no_such")
    with pytest.raises(NotFound, match="'nope'"):
        call(lake, "close", lane="nope", confirm=True)


@pytest.mark.parametrize("name", PROCEDURES)
def test_every_procedure_is_described(name: str) -> None:
    procedure = PROCEDURES[name]
    assert procedure.comment
    assert procedure.parameters[0].name == "table"
    needed = [parameter.required for parameter in procedure.parameters]
    names = [parameter.name for parameter in procedure.parameters]
    assert len(set(names)) == len(names)
    assert needed == sorted(needed, reverse=True), "positional arguments need required parameters first"


def test_the_document_has_every_system_table() -> None:
    """Prints the rows that are missing: paste them."""
    document = (Path(__file__).parents[3] / "deploy/docs/spark.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}`: {table.description} | {', '.join(table.columns.names)} |" for name, table in SYSTEM_TABLES.items()
    ]
    missing = [row for row in rows if row not in document]
    assert not missing, "\n".join(missing)

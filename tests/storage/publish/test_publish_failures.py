"""Publications as Iceberg whose catalog fails, refuses, loses answers, or is changed by other engines."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable

from tests.storage.publish.test_publish_iceberg import NAME, check_same_rows, in_order, objects
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.errors import CommitUnknown, Conflict, InvalidInput, StoreRefused, StoreUnavailable, TableError
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.open_catalog import open_catalog


class FailingCatalog(SqlCatalog):
    """A catalog whose next commit fails, before or after it is done."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        (before, self.before), (after, self.after) = (self.before, None), (self.after, None)
        if before is not None:
            before()
        answer = super().commit_table(*arguments)
        if after is not None:
            after()
        return answer


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[FailingCatalog]:
    made = FailingCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path, catalog: SqlCatalog) -> Table:
    """A table that is published, and was compacted since."""
    table = Table.create(tmp_path / "orders", SHOP)
    append(table, orders(*range(20)))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    append(table, orders(*range(20), status="new", ts=2))
    table.compact()
    return table


def fails(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def shown(catalog: SqlCatalog) -> set[str]:
    return set(catalog.load_table(NAME).scan().to_arrow()["status"].to_pylist())


def test_a_file_system_that_fails_leaves_no_savepoint_and_no_files(
    table: Table, catalog: FailingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, savepoints = objects(catalog), table.savepoints()
    monkeypatch.setattr("weft.storage.publish.iceberg_snapshot.write_manifest_list", fails(OSError("disk is full")))
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="disk is full"):
            publish_iceberg(table, catalog, NAME)
    monkeypatch.undo()
    assert (objects(catalog), table.savepoints()) == (stored, savepoints)
    assert publish_iceberg(table, catalog, NAME).changed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ForbiddenError("no"), StoreRefused),
        (PermissionError("no"), StoreRefused),
        (InvalidInput("of our own"), InvalidInput),
        (ValueError("a defect"), ValueError),
    ],
)
def test_a_commit_that_certainly_failed_leaves_nothing(
    table: Table, catalog: FailingCatalog, error: Exception, expected: type[Exception]
) -> None:
    stored, savepoints = objects(catalog), table.savepoints()
    catalog.before = fails(error)
    with pytest.raises(expected):
        publish_iceberg(table, catalog, NAME)
    assert (objects(catalog), table.savepoints(), shown(catalog)) == (stored, savepoints, {"new"})


def test_a_commit_whose_answer_is_lost_is_found(table: Table, catalog: FailingCatalog) -> None:
    append(table, orders(*range(20), status="newest", ts=3))
    table.compact()
    catalog.after = fails(ServiceUnavailableError("504"))
    published = publish_iceberg(table, catalog, NAME)
    assert published.changed
    assert shown(catalog) == {"newest"}
    assert len(table.savepoints()) == 2
    assert not publish_iceberg(table, catalog, NAME).changed


def test_after_an_unknown_commit_the_next_publication_releases_the_savepoint(
    table: Table, catalog: FailingCatalog
) -> None:
    before = {kept.name for kept in table.savepoints()}
    catalog.before = fails(ServiceUnavailableError("503"))
    with pytest.raises(CommitUnknown, match="publish again"):
        publish_iceberg(table, catalog, NAME)
    (left,) = {kept.name for kept in table.savepoints()} - before  # the catalog could still commit
    assert publish_iceberg(table, catalog, NAME).changed
    assert left not in {kept.name for kept in table.savepoints()}
    assert len(table.savepoints()) == 2
    check_same_rows(table, catalog)


def test_a_catalog_that_does_not_answer_is_an_outage(tmp_path: Path, table: Table) -> None:
    absent = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    absent.engine.dispose()
    (tmp_path / "catalog.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreUnavailable, match=r"shop\.orders does not answer: .*database") as failed:
        publish_iceberg(table, absent, NAME)
    assert isinstance(failed.value, TableError)
    absent.close()


class NotJson(BaseHTTPRequestHandler):
    """Answers as a proxy does whose server is away."""

    def do_GET(self) -> None:
        assert self.path == "/v1/config"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>try again</html>")


def test_a_catalog_whose_proxy_answers_is_an_outage() -> None:
    """The service that publishes goes on after an outage, and ends after a wrong setting."""
    with HTTPServer(("127.0.0.1", 0), NotJson) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(StoreUnavailable, match="does not answer as a catalog does"):
            open_catalog("lake", {"type": "rest", "uri": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()


def test_a_table_whose_rows_another_engine_deletes_hides_unused_rows_again(
    tmp_path: Path, catalog: FailingCatalog
) -> None:
    """Position deletes that are older than a data file do not apply to it."""
    table = Table.create(tmp_path / "shared", SHOP)
    append(table, orders(*range(40), status="old"))
    table.compact()  # one file for all file groups
    append(table, orders(*range(40), status="new", ts=2))
    chosen = table.snapshot().slices[0].group
    table.compact(only=lambda file_slice: file_slice.group == chosen)
    assert publish_iceberg(table, catalog, NAME).unused_rows
    catalog.load_table(NAME).delete()
    assert catalog.load_table(NAME).scan().to_arrow().num_rows == 0
    assert publish_iceberg(table, catalog, NAME).rows == 40
    check_same_rows(table, catalog)


def test_schemas_that_come_back_are_used_again(table: Table, catalog: FailingCatalog) -> None:
    for columns in (None, ["id", "status"], None, ["id", "status"], ["status", "id"]):
        publish_iceberg(table, catalog, NAME, columns)
        published = catalog.load_table(NAME)
        assert published.scan().to_arrow().column_names == (columns or table.schema.arrow.names)
        current = published.current_snapshot()
        assert current is not None
        assert current.schema_id == published.metadata.current_schema_id
    metadata = catalog.load_table(NAME).metadata
    shown = [known for known in metadata.schemas if not any(name.startswith("__weft") for name in known.column_names)]
    assert len(shown) == 3


def test_a_restore_to_before_a_publication_is_published(table: Table, catalog: FailingCatalog) -> None:
    table.savepoint("before")
    publish_iceberg(table, catalog, NAME)
    append(table, orders(*range(20), status="wrong", ts=9))
    table.compact()
    publish_iceberg(table, catalog, NAME)
    assert shown(catalog) == {"wrong"}
    table.restore("before")
    assert publish_iceberg(table, catalog, NAME).changed
    assert shown(catalog) == {"new"}
    check_same_rows(table, catalog)


def test_upper_bounds_of_floats_are_left_out(tmp_path: Path, catalog: FailingCatalog) -> None:
    """Parquet's statistics leave NaN out, and Spark finds NaN greater than any number."""
    table = Table.create(tmp_path / "floats", SHOP)
    paid = pa.array([1.0, float("nan"), 3.0])
    append(table, pa.table({"id": pa.array([1, 2, 3]), "paid": paid, "pts": [1, 1, 1]}), "payments")
    table.compact()
    publish_iceberg(table, catalog, NAME)
    published: IcebergTable = catalog.load_table(NAME)
    (task,) = published.scan().plan_files()
    field = published.schema().find_field("paid").field_id
    assert field in (task.file.lower_bounds or {})
    assert field not in (task.file.upper_bounds or {})
    assert repr(in_order(published.scan().to_arrow())) == repr(in_order(table.snapshot().read_optimized().to_arrow()))


def test_of_two_publications_that_remove_the_same_snapshots_one_fails(table: Table, catalog: FailingCatalog) -> None:
    for number in range(3):
        append(table, orders(*range(20), status=f"v{number}", ts=3 + number))
        table.compact()
        publish_iceberg(table, catalog, NAME)
    table.clean(dt.timedelta(0))
    other = Table.open(table.uri)
    catalog.before = lambda: publish_iceberg(other, catalog, NAME)
    with pytest.raises(Conflict, match="publish again"):
        publish_iceberg(table, catalog, NAME, ["id", "status"])
    assert len(catalog.load_table(NAME).snapshots()) == 3  # the last of them overtakes the one that fails
    assert len(table.savepoints()) == 2
    check_same_rows(table, catalog)


def test_after_an_erase_the_published_tables_lack_the_keys(table: Table, catalog: FailingCatalog) -> None:
    publish_iceberg(table, catalog, NAME)
    publish_delta(table)
    erased = table.erase([7], release_savepoints=True, expire_snapshots=True)
    assert not erased.remains
    assert "the table published as Delta" in erased.broken
    assert [path for path in erased.unread if "_delta_log" in path]  # their statistics may have keys
    assert publish_iceberg(table, catalog, NAME).rows == 19
    shutil.rmtree(Path(table.uri.removeprefix("file://")) / "base/_delta_log")
    assert publish_delta(table).rows == 19
    check_same_rows(table, catalog)
    assert table.verify().findings == ()

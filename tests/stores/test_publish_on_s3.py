"""Tables on S3 published into a Glue catalog, a REST catalog, a folder, and as Delta; read from there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.storage.publish.test_publish_iceberg import NAME, in_order
from tests.storage.support.shop import SHOP, append, orders
from tests.stores.places import SPAWN, Backend
from tests.stores.real_server import real_catalog
from weft import Table
from weft.storage.publish.open_catalog import open_catalog
from weft.storage.publish.targets import DeltaTarget, IcebergTarget

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def of_s3(backend: Backend) -> dict[str, str]:
    """The options of a store as properties of pyiceberg's file systems."""
    return {
        "s3.endpoint": backend.options["endpoint_url"],
        "s3.access-key-id": backend.options["key"],
        "s3.secret-access-key": backend.options["secret"],
        "s3.region": "us-east-1",
    }


def table_on(backend: Backend) -> Table:
    place = backend.new_place()
    table = Table.create(place.uri, SHOP, storage_options=place.options)
    append(table, orders(*range(40), status="old"))
    table.compact()
    return table


def check_publications(table: Table, target: IcebergTarget) -> None:
    """Publish a table three times, with other files, unused rows and columns, and read it each time."""
    for number, columns in enumerate((None, ["id", "status"], None)):
        published = target.model_copy(update={"columns": columns}).publish(table)
        assert (published.changed, published.rows) == (True, 40)
        loaded = open_catalog(target.catalog, target.properties).load_table(target.table)
        expected = table.snapshot().read_optimized().to_arrow(columns)
        assert in_order(loaded.scan().to_arrow()) == in_order(expected)
        append(table, orders(*range(40), status=f"v{number}", ts=2 + number))
        chosen = table.snapshot().slices[number].group
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group == chosen)
    assert target.publish(table).unused_rows > 0
    assert target.publish(table).changed is False
    assert len(table.savepoints()) == 2


def test_glue(moto: Backend) -> None:
    s3 = of_s3(moto)
    properties = {
        "type": "glue",
        "warehouse": f"{moto.new_place().uri}/warehouse",
        "glue.endpoint": s3["s3.endpoint"],
        "glue.region": "us-east-1",
        "glue.access-key-id": s3["s3.access-key-id"],
        "glue.secret-access-key": s3["s3.secret-access-key"],
    }
    check_publications(table_on(moto), IcebergTarget(table=NAME, properties={**properties, **s3}))


def test_a_folder(moto: Backend) -> None:
    properties = {"type": "folder", "warehouse": f"{moto.new_place().uri}/warehouse"}
    check_publications(table_on(moto), IcebergTarget(table=NAME, properties={**properties, **of_s3(moto)}))


def test_delta(moto: Backend) -> None:
    table, s3 = table_on(moto), of_s3(moto)
    options = {
        "AWS_ENDPOINT_URL": s3["s3.endpoint"],
        "AWS_ACCESS_KEY_ID": s3["s3.access-key-id"],
        "AWS_SECRET_ACCESS_KEY": s3["s3.secret-access-key"],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for number in range(12):  # a checkpoint is among them
        assert DeltaTarget().publish(table).rows == 40
        append(table, orders(*range(40), status=f"v{number}", ts=2 + number))
        chosen = table.snapshot().slices[number % 4].group
        table.compact(only=lambda file_slice, chosen=chosen: file_slice.group == chosen)
    assert DeltaTarget().publish(table).changed
    with ProcessPoolExecutor(1, SPAWN) as pool:  # it waits for the server without giving up Python's lock
        rows = pool.submit(by_datafusion, f"{table.uri}/base", options).result()
    assert in_order(rows) == in_order(table.snapshot().read_optimized().to_arrow())


def by_datafusion(root: str, options: dict[str, str]) -> pa.Table:
    """The rows as delta-rs reads them with DataFusion."""
    builder = QueryBuilder().register("t", DeltaTable(root, storage_options=options))
    return pa.table(builder.execute("SELECT * FROM t").read_all())


@pytest.fixture(scope="module")
def rest() -> Iterator[tuple[Backend, dict[str, str]]]:
    with real_catalog() as found:
        yield found


@pytest.mark.integration
def test_a_rest_catalog(rest: tuple[Backend, dict[str, str]]) -> None:
    backend, properties = rest
    check_publications(table_on(backend), IcebergTarget(table=NAME, properties=properties))

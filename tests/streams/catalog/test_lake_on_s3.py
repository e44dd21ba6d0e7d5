"""A catalog in a bucket: before its first table, and with more folders than one answer of the store lists."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from typer.testing import CliRunner

from tests.storage.support.shop import SHOP
from tests.stores.moto_server import moto_server
from tests.stores.places import Backend, Place
from tests.stores.real_server import real_server
from weft import Table
from weft.storage.core.names import Path
from weft.streams.catalog.lake import Lake
from weft.streams.catalog.lake_session import is_lake, note_on_empty
from weft.streams.cli.main import app
from weft.streams.pipeline.file.model import TableLocation

PAGE: Final = 1_000
"""Names in one answer of S3, at most."""
SQL_SECONDS: Final = 600
SCRIPT: Final = """
SHOW NAMESPACES;
CREATE TABLE shop.orders (id BIGINT, status STRING, ts BIGINT)
TBLPROPERTIES ('key' = 'id', 'buckets' = '1', 'group.g' = 'status, ts', 'group.g.ordering' = 'ts', 'stream.s' = 'g');
INSERT INTO shop.orders VALUES (1, 'new', 1), (1, 'sent', 2);
SELECT id, status FROM shop.orders;
"""


@pytest.fixture(
    params=[
        pytest.param("moto", marks=pytest.mark.slow),
        pytest.param("s3", marks=[pytest.mark.integration, pytest.mark.extended]),
    ]
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """S3 simulated by moto, with pages of 10 names; and a real server, with pages of 1,000."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    with moto_server() if request.param == "moto" else real_server() as running:
        yield running


def at(place: Place, bucket: str | None = None) -> TableLocation:
    return TableLocation(place.uri if bucket is None else f"s3://{bucket}/lake", place.options)


def test_an_empty_prefix_of_a_bucket_is_a_catalog(backend: Backend) -> None:
    place = backend.new_place()
    assert is_lake(at(place))
    assert note_on_empty(at(place)) == f"there is nothing at {place.uri} yet: CREATE TABLE makes the first table"
    assert not is_lake(at(place, "no-such-bucket"))
    Table.create(f"{place.uri}/shop/orders", SHOP, storage_options=place.options)
    assert is_lake(at(place))
    assert note_on_empty(at(place)) is None
    assert not is_lake(TableLocation(f"{place.uri}/shop/orders", place.options))


def test_a_bucket_that_does_not_exist_is_refused(backend: Backend) -> None:
    option = ("--storage-option", json.dumps(dict(backend.options)))
    refused = CliRunner().invoke(app, ["sql", "s3://no-such-bucket/lake", "SELECT 1", *option])
    assert refused.exit_code == 1
    assert "there is no table at s3://no-such-bucket/lake" in refused.stderr


def test_all_folders_are_listed_whatever_the_page_size(backend: Backend, request: pytest.FixtureRequest) -> None:
    count = 25 if "moto" in request.node.name else PAGE + 100
    place = backend.new_place()
    store = place.open()
    names = [f"n{number:05d}" for number in range(count)]
    paths = [Path(f"{name}/_weft/x" if number % 2 else f"{name}/inner/x") for number, name in enumerate(names)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.put(path, b""), paths))
    lake = Lake(place.uri, place.options)
    assert lake.tables(()) == names[1::2]
    assert lake.namespaces(()) == names[::2]


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_weft_sql_makes_the_first_table_of_a_bucket() -> None:
    with moto_server() as backend:
        place = backend.new_place()
        option = ("--storage-option", json.dumps(dict(place.options)))
        command = [sys.executable, "-m", "weft.streams.cli.main", "sql", place.uri, "--json", *option]
        done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, timeout=SQL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"id": 1, "status": "sent"}
    assert f"there is nothing at {place.uri} yet" in done.stderr

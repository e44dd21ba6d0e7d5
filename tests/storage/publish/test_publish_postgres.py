"""Publication as Iceberg into an SQL catalog in a real PostgreSQL: publishers that race, or are killed."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.catalog import load_catalog

from tests.storage.support.postgres_server import Postgres, postgres_server, psycopg_packages
from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.errors import Conflict, InvalidInput, StoreUnavailable
from weft.storage.publish.targets import IcebergTarget

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(1_800)]

NAME: Final = "shop.wide"
CATALOG: Final = "lake"
RACERS: Final = 4
ROUNDS: Final = 6
WAIT_SECONDS: Final = 300
ROOT: Final = Path(__file__).parents[3]
SPAWN: Final = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    packages = str(psycopg_packages())
    sys.path[:0] = [packages, str(ROOT)]  # also of the processes that are spawned
    try:
        with postgres_server() as running:
            yield running
    finally:
        sys.path.remove(packages)
        sys.path.remove(str(ROOT))


def target(uri: str, folder: Path) -> IcebergTarget:
    return IcebergTarget(
        table=NAME,
        catalog=CATALOG,
        properties={"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"},
    )


def shown(uri: str, folder: Path) -> list[dict[str, Any]]:
    catalog = load_catalog(CATALOG, **target(uri, folder).properties)
    rows: list[dict[str, Any]] = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    catalog.close()
    return sorted(rows, key=lambda row: row["id"])


def expected(table: Table) -> list[dict[str, Any]]:
    rows = table.snapshot().read_optimized().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def _publish_rounds(number: int, place: str, uris: list[str], barrier: Barrier, results: Any) -> None:
    """One publisher: in each round all begin at the same time, in a database without the tables of a catalog."""
    import psycopg  # noqa: F401 - the first import would take longer than a round
    from pyiceberg.catalog import sql  # noqa: F401

    from weft.storage.publish import iceberg  # noqa: F401

    found = []
    for turn, uri in enumerate(uris):
        table = Table.open(f"{place}/table{turn}")
        barrier.wait(WAIT_SECONDS)
        try:
            found.append("changed" if target(uri, Path(place) / str(turn)).publish(table).changed else "same")
        except Conflict:
            found.append("conflict")
        except Exception as error:
            found.append(repr(error))
    results.put((number, found))


def test_publishers_that_begin_at_the_same_time_in_an_empty_database(postgres: Postgres, tmp_path: Path) -> None:
    """They race for the tables of the catalog, the namespace, the Iceberg table and its first snapshot."""
    uris = [postgres.create(f"race{turn}") for turn in range(ROUNDS)]
    for turn in range(ROUNDS):
        table = Table.create(tmp_path / f"table{turn}", SHOP)
        append(table, orders(*range(20)))
        table.compact()
    barrier, results = SPAWN.Barrier(RACERS), SPAWN.Queue()
    arguments = (str(tmp_path), uris, barrier, results)
    racers = [SPAWN.Process(target=_publish_rounds, args=(number, *arguments)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    try:
        found = [results.get(timeout=2 * WAIT_SECONDS)[1] for _ in racers]
    finally:
        for racer in racers:
            racer.join(WAIT_SECONDS)
            racer.kill()
    for turn, seen in enumerate(zip(*found, strict=True)):
        assert set(seen) <= {"changed", "same", "conflict"}, seen
        assert seen.count("changed") >= 1
        table = Table.open(tmp_path / f"table{turn}")
        again = target(uris[turn], tmp_path / str(turn)).publish(table)
        assert (again.changed, again.rows) == (False, 20)
        assert len(table.savepoints()) <= 2
        assert shown(uris[turn], tmp_path / str(turn)) == expected(table)


_KILLED: Final = """
import json, os, signal, sys
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog
from weft import Table
from weft.storage.publish.targets import IcebergTarget

given = json.loads(sys.argv[1])
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
plain = SqlCatalog.commit_table
def commit_table(self, *arguments):
    if given["when"] == "before the commit":
        die()
    if given["when"] == "in the transaction":  # the row is changed and locked, and the transaction is open
        sqlalchemy.event.listen(self.engine, "commit", die)
    answer = plain(self, *arguments)
    die()
    return answer
SqlCatalog.commit_table = commit_table
target = IcebergTarget(table=given["name"], catalog=given["catalog"], properties=given["properties"])
target.publish(Table.open(given["table"]))
"""


@pytest.mark.parametrize("when", ["before the commit", "in the transaction", "after the commit"])
def test_a_publisher_that_is_killed(postgres: Postgres, tmp_path: Path, when: str) -> None:
    """Readers see the state before or after it; the next publication goes on, and releases what it had kept."""
    uri = postgres.create(f"killed_{when.replace(' ', '_')}")
    table = Table.create(tmp_path / "table", SHOP)
    append(table, orders(*range(20)))
    table.compact()
    here = target(uri, tmp_path)
    here.publish(table)
    before = expected(table)
    append(table, orders(*range(10), status="new", ts=5))
    table.compact()
    given = {"when": when, "name": NAME, "catalog": CATALOG, "table": table.uri, "properties": dict(here.properties)}
    killed = subprocess.run(
        [sys.executable, "-P", "-c", _KILLED, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(psycopg_packages()), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    committed = when == "after the commit"
    assert shown(uri, tmp_path) == (expected(table) if committed else before)
    assert here.publish(table).changed is not committed
    assert shown(uri, tmp_path) == expected(table)
    assert len(table.savepoints()) == 2
    append(table, orders(*range(5), status="newest", ts=7))
    table.compact()
    here.publish(table)
    table.clean(dt.timedelta(0))
    assert shown(uri, tmp_path) == expected(table)
    assert len(table.savepoints()) == 2


def test_a_database_that_is_not_there_and_one_that_refuses(postgres: Postgres, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    with pytest.raises(StoreUnavailable, match=r"does not answer: .* database .nowhere. does"):
        target(postgres.uri("nowhere"), tmp_path).publish(table)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = Postgres(taken.getsockname()[1])
        with pytest.raises(StoreUnavailable, match="the database of Iceberg catalog 'lake' does not answer"):
            target(closed.uri("postgres"), tmp_path).publish(table)
    with pytest.raises(InvalidInput, match="'lake' cannot be opened: it needs the package psycopg2"):
        target(postgres.uri("postgres", "postgresql+psycopg2"), tmp_path).publish(table)
    assert table.savepoints() == []

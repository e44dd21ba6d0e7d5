"""Random histories of a table with publications in between: readers that know nothing of weft show the right rows.

Each publication goes to a SQL catalog, to a folder and to Delta, and pyiceberg, Polars and delta-rs read it. Their rows
are those of a read-optimized read, and after a compaction of everything those of the whole table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog

from tests.storage.publish.test_publish_iceberg import NAME, by_polars, in_order
from tests.storage.support.shop import SHOP
from weft import Table
from weft.storage.environment import open_environment
from weft.storage.errors import InvalidInput, NotFound, SnapshotExpired, StillRetained
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.iceberg_folder import FolderCatalog
from weft.storage.publish.targets import base_version

SEEDS: Final = 12
FULL: Final = 2  # of these in the full loop
STEPS: Final = 40
IDS: Final = 60
STATES: Final[Mapping[str, Any]] = {
    "key": ["status"],
    "columns": {"status": "string", "label": "string"},
    "groups": {"label": {"columns": ["label"]}},
    "streams": {"labels": {"groups": ["label"]}},
}
CONFIG: Final[Mapping[str, Any]] = {
    **SHOP,
    "columns": {**SHOP["columns"], "stock": "int"},
    "groups": {**SHOP["groups"], "stock": {"columns": ["stock"]}},
    "streams": {**SHOP["streams"], "stocks": {"groups": ["stock"]}},
    "references": {"state": {"table": "../states", "on": "status", "columns": ["label"]}},
}


@dataclass
class History:
    """One table, and what is done to it."""

    folder: Path
    chance: random.Random
    sql: SqlCatalog
    table: Table = field(init=False)
    clock: int = 0
    columns: int = 0
    published: int = 0

    def __post_init__(self) -> None:
        Table.create(self.folder / "states", STATES)
        small = self.chance.choice([1, 2 * 1024 * 1024])  # files of one file group, or shared ones
        self.table = Table.create_in(open_environment(self.folder / "wide").tuned(small_group_bytes=small), CONFIG)
        self.created = dt.datetime.now(dt.UTC)
        self.lake = FolderCatalog("lake", warehouse=str(self.folder / "lake"))

    def ids(self) -> pa.Array:
        return pa.array(self.chance.sample(range(IDS), self.chance.randint(1, 20)), pa.int64())

    def write(self) -> None:
        self.clock += 1
        ids, chance = self.ids(), self.chance
        stream = chance.choice(["orders", "payments", "stocks"])
        rows: dict[str, Any] = {"id": ids}
        if stream == "orders":
            rows |= {"status": [f"v{self.clock}"] * len(ids), "ots": [chance.randrange(self.clock + 1)] * len(ids)}
            rows["_op"] = [chance.choice(["U", "U", "U", "D"]) for _ in ids]
        elif stream == "payments":
            rows |= {"paid": [self.clock / 4] * len(ids), "pts": [self.clock] * len(ids)}
        else:
            stock = self.table.schema.column("stock").type
            rows["stock"] = pa.array([self.clock] * len(ids), stock)
        with self.table.writer(stream) as writer:
            writer.append(pa.table(rows))

    def compact(self) -> None:
        share = self.chance.choice([0.5, 1.0])
        self.table.compact(lambda _: self.chance.random() < share)

    def fold(self) -> None:
        self.table.fold()

    def undo(self) -> None:
        self.table.undo(self.chance.choice(["orders", "payments"]), self.moment())

    def restore(self) -> None:
        self.table.restore(self.moment())

    def moment(self) -> dt.datetime:
        """Now, or up to two seconds ago, when the table existed already."""
        now = dt.datetime.now(dt.UTC)
        return max(self.created, now - dt.timedelta(seconds=self.chance.uniform(0, 2)))

    def erase(self) -> None:
        keys = self.ids().to_pylist()
        self.table.erase(keys, expire_snapshots=True, release_savepoints=True)
        self.publish()  # until then readers may miss files

    def rewrite(self) -> None:
        self.table.rewrite("status", lambda values: pa.array(["masked"] * len(values)))

    def expire(self) -> None:
        self.table.set_ttl(rows=dt.timedelta(seconds=1), within=dt.timedelta(0))
        self.table.apply_ttl(dt.datetime.now(dt.UTC))
        self.table.set_ttl()

    def clean(self) -> None:
        self.table.clean(dt.timedelta(0), abandon_after=dt.timedelta(0))
        self.check()

    def change_schema(self) -> None:
        self.columns += 1
        match self.chance.randrange(4):
            case 0:
                self.table.add_column("order", f"c{self.columns}", "string", comment="new")
            case 1:
                self.table.add_column("payment", f"d{self.columns}", "int", default=7)
            case 2:
                self.table.widen_column("stock", "bigint")
            case 3:
                self.table.set_comment(f"comment {self.columns}", "status")

    def publish(self) -> None:
        """Publish to all; columns that older files do not show are left out."""
        names = self.table.schema.arrow.names
        targets = (
            lambda columns: publish_iceberg(self.table, self.sql, NAME, columns),
            lambda columns: publish_iceberg(self.table, self.lake, NAME, columns),
            lambda columns: publish_delta(self.table, columns),
        )
        try:
            for to in targets:
                to(names)
        except InvalidInput as error:
            names = [name for name in names if name not in error.message.rpartition("column ")[2].split(", ")]
            for to in targets:
                to(names)
        self.published += 1
        self.check(exact=True)

    def check(self, *, exact: bool = False) -> None:
        """Compare what readers show with each other, and with a read-optimized read (``exact``) of this moment."""
        if not self.published:
            return
        shown = {
            "pyiceberg": self.sql.load_table(NAME).scan().to_arrow(),
            "Polars, Iceberg": by_polars(self.lake.load_table(NAME)),
            "Polars, Delta": pl.scan_delta(self.root).collect().to_arrow(),
            "delta-rs": pa.table(
                QueryBuilder().register("t", DeltaTable(self.root)).execute("SELECT * FROM t").read_all()
            ),
        }
        rows = {reader: in_order(table.select(shown["pyiceberg"].column_names)) for reader, table in shown.items()}
        wanted = rows["pyiceberg"]
        if exact:
            snapshot = self.table.snapshot(references=False)
            wanted = in_order(snapshot.read_optimized().to_arrow(shown["pyiceberg"].column_names))
        for reader, found in rows.items():
            assert found == wanted, reader

    @property
    def root(self) -> Path:
        return self.folder / "wide/base"

    def finish(self) -> None:
        """Everything is compacted, published and cleaned: readers show the whole table, from few files."""
        self.table.compact()
        self.publish()
        self.publish()
        names = self.sql.load_table(NAME).schema().column_names
        whole = in_order(self.table.snapshot(references=False).to_arrow(names))
        assert in_order(self.sql.load_table(NAME).scan().to_arrow()) == whole
        self.clean()
        assert len([kept for kept in self.table.savepoints() if kept.note.startswith("published as")]) <= 6
        assert self.table.verify(deep=True).findings == ()


DRAWN: Final[list[Callable[[History], None]]] = [
    *[History.write] * 8,
    *[History.compact] * 4,
    *[History.publish] * 4,
    History.fold,
    History.undo,
    History.restore,
    History.erase,
    History.rewrite,
    History.expire,
    History.clean,
    History.change_schema,
]


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield made
    made.close()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.extended if seed >= FULL else ()) for seed in range(SEEDS)]
)
def test_readers_show_the_right_rows_after_whatever_was_done(tmp_path: Path, sql: SqlCatalog, seed: int) -> None:
    history = History(tmp_path, random.Random(seed), sql)
    for _ in range(STEPS):
        with contextlib.suppress(NotFound, SnapshotExpired, StillRetained):  # nothing there, or cleaned already
            history.chance.choice(DRAWN)(history)
    history.finish()
    assert history.published > 3


def test_a_table_without_rows_and_rows_that_are_only_in_logs_are_published_as_empty(
    tmp_path: Path, sql: SqlCatalog
) -> None:
    history = History(tmp_path, random.Random(0), sql)
    history.publish()  # there is no commit
    for _ in range(3):
        history.write()
        history.fold()
        history.publish()  # all rows are in logs
        assert sql.load_table(NAME).scan().to_arrow().num_rows == 0
    history.finish()
    assert sql.load_table(NAME).scan().to_arrow().num_rows > 0


def test_a_new_comment_is_a_reason_to_publish(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "orders", SHOP)
    before = base_version(table)
    table.set_comment("as the shop has it", "status")
    assert base_version(table) != before

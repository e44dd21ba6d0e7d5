"""``weft run`` publishes in real processes: publishers that are killed, a catalog that is locked, a folder that cannot
be made, a table that somebody drops. Readers that nobody here wrote show the right rows.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from tests.end_process import end_process
from tests.http_get import get
from tests.storage.publish.test_publish_iceberg import by_polars
from tests.streams.cluster.standalone import until
from tests.streams.support.pipelines import CONFIG
from weft import Table
from weft.storage.publish.iceberg_folder import FolderCatalog
from weft.streams.spark.settings import QUICK_START, SERIAL

pytestmark = [pytest.mark.spark, pytest.mark.extended, pytest.mark.timeout(900)]

NAME = "shop.wide"
PATIENCE_SECONDS = 240.0


class Run:
    """A pipeline with a writer of files, its services, and a second publisher of the same table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, 0
        (folder / "landing").mkdir()
        self.sql = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        source = {"type": "files", "format": "json", "path": "./landing"}
        whole: dict[str, Any] = {
            "table": {"uri": "./wide", "config": CONFIG},
            "writers": {"sa": {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}},
            "spark": {"spark.driver.extraJavaOptions": f"{SERIAL} {QUICK_START}"},
            "compaction": {"every": 1, "min_commits": 1},
            "clean": {"every": "2 seconds", "retain": "2 seconds"},
        }
        whole["writers"]["sa"]["trigger"] = "500 ms"
        first = {"every": 1, "delta": True, "iceberg": {"table": NAME, "properties": self.sql}}
        second = {"every": 1, "iceberg": {"table": NAME, "properties": {"type": "folder", "warehouse": "./tables"}}}
        for name, publish in (("p", first), ("q", second)):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump({**whole, "publish": publish}, sort_keys=False))
        self.processes = [self._start("p", "--http", "0")]

    def _start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "weft.streams.cli.main", "run", str(self.folder / f"{name}.yaml"), *options]
        with (self.folder / f"{name}.out").open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def publish_to_folder(self) -> None:
        """Start the second publisher, when the table exists."""
        self.processes.append(self._start("q", "--only", "publish"))

    def write(self) -> None:
        """Write one more file: every row of the table is newer then."""
        self.written += 1
        rows = ({"id": number, "a": f"v{self.written}", "at": self.written} for number in range(50))
        file = self.folder / f"{self.written}.tmp"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file.rename(self.folder / f"landing/{self.written}.json")

    def shown(self) -> dict[str, set[str]]:
        """The values that readers show, by reader; empty if a table cannot be read."""
        found: dict[str, set[str]] = {"pyiceberg": set(), "Polars": set(), "Polars, Delta": set()}
        with closing(SqlCatalog("default", **self.sql)) as catalog, suppress(NoSuchTableError, FileNotFoundError):
            found["pyiceberg"] = _values(catalog.load_table(NAME).scan().to_arrow())
        with suppress(NoSuchTableError, FileNotFoundError):
            table = FolderCatalog("default", warehouse=str(self.folder / "tables")).load_table(NAME)
            found["Polars"] = _values(by_polars(table))
        root = self.folder / "wide/base"
        if list(root.glob("_delta_log/0*.json")):
            found["Polars, Delta"] = _values(pl.scan_delta(root).collect().to_arrow())
        return found

    def until(self, what: Callable[[], bool]) -> None:
        for _ in until(time.monotonic() + PATIENCE_SECONDS):
            if what():
                return
        pytest.fail("\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out")))

    def all_show_the_newest(self) -> None:
        self.until(lambda: all(values == {f"v{self.written}"} for values in self.shown().values()))

    def page(self, path: str) -> str:
        """An answer of the first process; "" before it has printed its address."""
        printed = re.search(r"^--http 0: (http://[^/]+)/metrics$", (self.folder / "p.out").read_text(), re.MULTILINE)
        if printed is None:
            return ""
        try:
            return get(f"{printed[1]}{path}")
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    def fails(self) -> bool:
        return 'weft_publication_fails{part="publish"} 1.0' in self.page("/metrics")

    def publisher(self) -> int:
        """Process id of the publisher of the first pipeline; 0 if none runs."""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = line.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.folder / "p.yaml").encode() in words and b"publish" in words:
                return int(line.parent.name)
        return 0


def _values(table: Any) -> set[str]:
    return set(table["a"].to_pylist())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            end_process(process, signal.SIGTERM)


def test_published_tables_follow_the_writer_through_failures(run: Run, tmp_path: Path) -> None:
    run.write()
    run.until((tmp_path / "wide/_weft").exists)
    run.publish_to_folder()
    run.all_show_the_newest()
    run.until(lambda: run.page("/readyz").startswith(("sa:", "publish:", "compaction:", "clean:")))

    run.until(lambda: run.publisher() != 0)
    killed = run.publisher()
    assert killed
    os.kill(killed, signal.SIGKILL)
    run.write()
    run.until(lambda: run.publisher() not in {0, killed})
    run.all_show_the_newest()

    with closing(sqlite3.connect(tmp_path / "catalog.db", timeout=PATIENCE_SECONDS, isolation_level=None)) as rival:
        rival.execute("BEGIN EXCLUSIVE")
        run.write()
        run.until(run.fails)
        ready = run.page("/readyz")
        assert ready.startswith("503")
        assert "publish: waiting" in ready
        table, newest = Table.open(tmp_path / "wide"), {f"v{run.written}"}
        run.until(lambda: _values(table.snapshot().read_optimized().to_arrow()) == newest)  # compaction goes on
        run.until(lambda: _values(pl.scan_delta(tmp_path / "wide/base").collect().to_arrow()) == newest)
        rival.execute("ROLLBACK")
    run.all_show_the_newest()
    run.until(lambda: 'weft_publication_fails{part="publish"} 0.0' in run.page("/metrics"))
    log = (tmp_path / ".weft/p/logs/publish.log").read_text()
    assert "database is locked" in log

    with closing(SqlCatalog("default", **run.sql)) as catalog:
        catalog.drop_table(NAME)
    (tmp_path / "tables/shop").rename(tmp_path / "gone")
    (tmp_path / "tables/shop").write_text("no folder can be made here")
    run.write()
    run.until(lambda: "not published" in (tmp_path / "q.out").read_text())
    (tmp_path / "tables/shop").unlink()
    run.write()
    run.all_show_the_newest()
    run.until(lambda: len(table.savepoints()) <= 6)
    for process in run.processes:
        assert end_process(process, signal.SIGTERM) == 0

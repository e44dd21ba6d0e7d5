"""Published tables read by DuckDB with its extensions for Delta and Iceberg, which nobody here wrote.

It runs in a process of its own, because the extensions are published for certain versions of DuckDB only. They are
fetched once per machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.tools import python_packages
from tests.download_cache import Unavailable
from tests.storage.support.published_types import DAYS, check_rows, published_in_both_formats, rows_of, run

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(600)]

DUCKDB = ("duckdb==1.5.5", *(f"duckdb-extension-{name}==1.5.5" for name in ("avro", "delta", "iceberg")))


_DUCKDB = """
import importlib, json, pathlib, sys
import duckdb
given = json.loads(sys.argv[1])
connection = duckdb.connect(config={"extension_directory": given["extensions"]})
for name in ("avro", "iceberg", "delta"):
    folder = pathlib.Path(importlib.import_module(f"duckdb_extension_{name}").__path__[0])
    (file,) = folder.rglob(f"{name}.duckdb_extension")
    connection.execute(f"INSTALL '{file}'")
    connection.execute(f"LOAD {name}")
for source, written in given["copies"]:
    connection.execute(f"COPY (SELECT * FROM {source}) TO '{written}' (FORMAT parquet)")
answers = [connection.execute(query).fetchall() for query in given["queries"]]
print(json.dumps({"answers": answers}))
"""


def test_duckdb_shows_the_rows_of_both_formats_and_reads_only_files_that_can_match(
    tmp_path: Path,
) -> None:
    places = published_in_both_formats(tmp_path)
    try:
        packages = python_packages(*DUCKDB)
    except Unavailable as missing:
        pytest.skip(f"no DuckDB with extensions: {missing}")
    copies, checks = [], []
    for table in (places.every_type, places.unused_rows):
        for source in (f"delta_scan('{places.root(table)}')", f"iceberg_scan('{places.folder(table)}')"):
            written = tmp_path / f"{len(copies)}.parquet"
            copies.append((source, str(written)))
            checks.append((rows_of(table), written))
    sources = [source for source, _ in copies[:2]]
    queries = [f"SELECT count(*) FROM {source} WHERE double > 1" for source in sources]  # NaN is greater
    queries += [f"SELECT count(*) FROM {source} WHERE price = 3.1234 AND day = '{DAYS[3]}'" for source in sources]
    queries += [f"EXPLAIN ANALYZE SELECT count(*) FROM {source} WHERE id = 4" for source in sources]
    given = {"extensions": str(tmp_path / "extensions"), "copies": copies, "queries": queries}
    answers = run(_DUCKDB, given, packages)["answers"]
    for expected, written in checks:
        check_rows(expected, written)
    assert answers[:4] == [[[len(DAYS)]], [[len(DAYS)]], [[1]], [[1]]]
    for ((_, plan),) in answers[4:]:
        assert "Total Files Read: 1 " in plan

"""Tables that Spark writes with another format's jar, and what that jar's own reader shows: the oracle of an import.

A story is the SQL of one table, with `SHOW` wherever the rows are compared. All stories of a test run in one Spark of
the version that the jar needs, in a process of its own. Jars and Spark are fetched once per machine; without them the
test is skipped, and says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.deploy.tools import python_packages
from tests.download_cache import Unavailable
from tests.lake_releases import Release
from tests.maven import maven_jars

SHOW: Final = "SHOW"
"""In a story: the rows of the table at this point are compared with those of an import of this version."""

_SCRIPT: Final = """
import json, pathlib, sys
from pyspark.sql import SparkSession
given = json.loads(pathlib.Path(sys.argv[1]).read_text())
builder = SparkSession.builder.master("local[2]")
for name, value in given["settings"].items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
session.sparkContext.setLogLevel("ERROR")
versions = []
for statement, folder, version in given["steps"]:
    try:
        answer = session.sql(statement)
        if folder:
            answer.write.parquet(folder)
            versions.append(str(session.sql(version).collect()[0][0]) if version else None)
    except Exception as error:
        raise RuntimeError(f"{statement}: {str(error)[:2000]}") from None
print(json.dumps(versions))
"""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """A Spark with the jars of a format.

    Attributes:
        release: Of the format.
        settings: Of the session; ``{place}`` is the folder of the test.
        version: A query for the version of a table that an import takes; ``{table}`` is its name. Empty for none.
    """

    release: Release
    settings: Mapping[str, str]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the format's reader shows of a table: the number of the `SHOW`, the version there, and the rows."""

    number: int
    version: str | None
    rows: pa.Table


def tell(engine: Engine, place: Path, stories: Mapping[str, Sequence[str]]) -> dict[str, list[Shown]]:
    """Run stories by the name of their table; returns what was shown, by the same names."""
    release = engine.release
    try:
        packages, jars = python_packages(*release.spark), maven_jars(release.folder, release.jars, alone=True)
    except Unavailable as missing:
        pytest.skip(f"no Spark with {release.folder}: {missing}")
    steps: list[tuple[str, str, str]] = []
    shown: list[tuple[str, int, Path]] = []
    for table, statements in stories.items():
        count = 0
        for statement in statements:
            if statement != SHOW:
                steps.append((statement, "", ""))
                continue
            folder = place / "shown" / f"{re.sub('[^a-z0-9_]', '_', table)}-{count}"
            steps.append((f"SELECT * FROM {table}", str(folder), engine.version.format(table=table)))
            shown.append((table, count, folder))
            count += 1
    every_jar = ",".join(map(str, sorted(jars.glob("*.jar"))))
    given = {name: value.format(place=place) for name, value in {**_SETTINGS, **engine.settings}.items()}
    given |= {
        "spark.jars": every_jar,
        "spark.driver.extraClassPath": every_jar.replace(",", ":"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={place / 'derby'}",
    }
    versions = _run(packages, place, {"settings": given, "steps": steps})
    found: dict[str, list[Shown]] = {}
    for (table, count, folder), version in zip(shown, versions, strict=True):
        found.setdefault(table, []).append(Shown(count, version, pq.read_table(folder)))
    return found


def _run(packages: Path, place: Path, arguments: Mapping[str, Any]) -> list[str | None]:
    place.mkdir(parents=True, exist_ok=True)
    script = place / "steps.json"
    script.write_text(json.dumps(arguments))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT, str(script)],
        env={**os.environ, "PYTHONPATH": str(packages), "SPARK_HOME": str(packages / "pyspark")},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,  # the test's own time limit ends it
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    versions: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return versions


def in_order(rows: pa.Table, names: Sequence[str]) -> list[str]:
    """The rows as texts, sorted, so that equal ones count; times without a zone and with it look alike."""
    columns = {}
    for name in names:
        column = rows[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
        columns[name] = column
    return sorted(repr(list(row.values())) for row in pa.table(columns).to_pylist())

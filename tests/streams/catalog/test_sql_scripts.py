"""The scripts in tests/sql, run as they are; what they print is beside them.

After a deliberate change of an output delete it: the next run writes it anew, fails, and the difference is reviewed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import weft
from tests.streams.catalog.shop_lake import make_shop
from tests.streams.catalog.sql_script import run_script

SCRIPTS = Path(__file__).parents[2] / "sql"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lake")
    make_shop(made)
    return made


@pytest.fixture(scope="module")
def session(spark: SparkSession, root: Path) -> SparkSession:
    made = spark.newSession()
    weft.register_catalog(made, "weft", root)
    # Other modules register the source for the shared session, and new sessions see it: always have it.
    weft.register(made)
    return made


@pytest.mark.parametrize("name", ["reads", "past", "inside", "bad_input"])
def test_a_script_prints_what_is_written_beside_it(session: SparkSession, root: Path, name: str) -> None:
    expected = SCRIPTS / f"{name}.out"
    printed = run_script(session, (SCRIPTS / f"{name}.sql").read_text(encoding="utf-8"), str(root))
    if not expected.exists():
        expected.write_text(printed, encoding="utf-8")
        pytest.fail(f"{expected.name} was missing, and was written: review it")
    assert printed.splitlines() == expected.read_text(encoding="utf-8").splitlines()

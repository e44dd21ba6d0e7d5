"""dbt-spark in session mode: models over a weft catalog, with dbt in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.shop import SHOP, append, orders
from weft import Table

PACKAGES = ("dbt-core==1.10.*", "dbt-spark==1.10.*")  # dbt 2 fetches programs from elsewhere when it is installed
INSTALL_SECONDS = 300.0
RUN_SECONDS = 300.0
ROOT = Path(__file__).resolve().parents[2]
BY_STATUS = [{"status": "new", "orders": 2, "newest": 1}, {"status": "sent", "orders": 1, "newest": 5}]


@pytest.fixture(scope="session")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with dbt, and behind it the packages of this one: their dependencies clash."""
    folder = tmp_path_factory.mktemp("dbt")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"dbt cannot be installed: {done.stderr.strip()[-300:]}")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    place = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    (Path(place) / "behind.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run_project(dbt: Path, project: str, tmp_path: Path) -> dict[str, Any]:
    """What `tests.dbt.run_dbt` prints."""
    table = Table.create(tmp_path / "lake" / "shop" / "orders", SHOP)
    append(table, orders(1, 2, 3))
    append(table, orders(3, status="sent", ts=5))
    work = tmp_path / "work"
    work.mkdir()
    command = [dbt, "-m", "tests.dbt.run_dbt", project, tmp_path / "lake", work]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


@pytest.mark.integration
@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)
def test_models_read_tables_of_the_catalog(dbt: Path, tmp_path: Path) -> None:
    assert run_project(dbt, "outside", tmp_path) == {
        "orders_by_status": BY_STATUS,
        "busy_statuses": BY_STATUS[:1],
    }


@pytest.mark.integration
@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)
def test_models_are_tables_of_the_catalog(dbt: Path, tmp_path: Path) -> None:
    """They are built twice, and the documentation has their columns and those of the source."""
    columns = ["status", "orders", "newest"]
    assert run_project(dbt, "inside", tmp_path) == {
        "orders_by_status": BY_STATUS,
        "orders_so_far": BY_STATUS,
        "nodes": {"model.inside.orders_by_status": columns, "model.inside.orders_so_far": columns},
        "sources": {"source.inside.lake.orders": ["id", "status", "ots", "paid", "pts"]},
    }

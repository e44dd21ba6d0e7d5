"""An earlier version and this one work on one table at the same time, as in an upgrade process by process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EARLIER = "8f4d0a6"  # of 2026-11-22, before overlays
_CREATE = """
Table.create(uri, {
    "key": ["id"], "columns": {"id": "bigint", "a": "bigint", "ta": "bigint", "b": "bigint", "tb": "bigint"},
    "groups": {"ga": {"columns": ["a", "ta"], "ordering": ["ta"]}, "gb": {"columns": ["b", "tb"], "ordering": ["tb"]}},
    "streams": {"sa": {"groups": ["ga"]}, "sb": {"groups": ["gb"]}}})
"""
_WRITE = """
with Table.open(uri).writer("s{column}") as writer:
    values = [{value}] * {rows}
    writer.append(pa.table({{"id": list(range({rows})), "{column}": values, "t{column}": values}}))
"""
_READ = "print(Table.open(uri).snapshot().to_arrow().sort_by('id').to_pylist())"
_VERIFY = "print(Table.open(uri).verify().ok)"

Run = Callable[[str, str], str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs code with the `earlier` version or with `this` one; returns what it prints, or its error."""
    archive = subprocess.run(["git", "archive", EARLIER, "storage"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no revision {EARLIER} in this checkout: {archive.stderr.decode().strip()}")
    places = {"earlier": tmp_path / "earlier", "this": ROOT}
    places["earlier"].mkdir()
    subprocess.run(["tar", "-x", "-C", str(places["earlier"])], input=archive.stdout, check=True)
    elsewhere = tmp_path / "elsewhere"  # Python looks for modules in the current folder first
    elsewhere.mkdir()

    packages = {"earlier": "storage", "this": "weft.storage"}

    def run_code(version: str, code: str) -> str:
        start = (
            f"import {packages[version]} as storage; assert storage.__file__.startswith({str(places[version])!r})\n"
            f"import pyarrow as pa; Table = storage.Table; uri = {str(tmp_path / 'table')!r}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", start + code],
            cwd=elsewhere,
            env=os.environ | {"PYTHONPATH": str(places[version])},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr

    return run_code


@pytest.mark.nightly
def test_two_versions_work_side_by_side(run: Run) -> None:
    assert run("earlier", _CREATE) == ""
    for step, (writing, compacting, column) in enumerate(
        [("earlier", "this", "a"), ("this", "earlier", "b"), ("earlier", "this", "b"), ("this", "earlier", "a")], 1
    ):
        assert run(writing, _WRITE.format(column=column, rows=100 * step, value=step)) == ""
        rows = run("this", _READ)
        assert rows.count("'id'") == 100 * step
        assert run("earlier", _READ) == rows
        assert run(compacting, "Table.open(uri).compact()") == ""
        assert run("earlier", _READ) == run("this", _READ) == rows
    assert run("earlier", _VERIFY) == run("this", _VERIFY) == "True"
    # A feature that the earlier version does not know, is used: it says so, and changes nothing.
    assert run("this", "Table.open(uri).set_overlays(True)") == ""
    refused = run("earlier", _WRITE.format(column="a", rows=5, value=99))
    assert "UnsupportedFormat: the table uses features that this version cannot write: overlays" in refused
    assert run("this", _READ) == rows

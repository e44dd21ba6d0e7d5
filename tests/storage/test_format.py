"""Frozen tables of every format version that this version reads (FORMAT.md, "Compatibility")."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faulty_store import FakeClock
from tests.fixtures.format import generate
from tests.fixtures.format.author import MERGERS
from tests.fixtures.format.expected import (
    FOLDER,
    append_all,
    batches_of,
    changes_of,
    load,
    plain_rows,
    rows_of,
    watermarks_of,
)
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.log.entries import FORMAT_VERSION
from weft.storage.environment import Environment
from weft.storage.services.verify.findings import Severity
from weft.storage.store.open_store import open_store

FIXTURES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.json"))
LATER_MS = 1_900_000_000_000


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A copy of a fixture, opened by a process that has never seen it."""
    copy = tmp_path / "table"
    shutil.copytree(FOLDER / request.param, copy)
    folder = copy / generate.OF_REFERENCES if request.param.endswith("/references") else copy
    return Table(Environment(open_store(str(folder)), FakeClock(LATER_MS), mergers=MERGERS), Stamps())


def test_the_current_version_has_fixtures() -> None:
    assert [f"{FORMAT_VERSION}/{name}" for name in sorted(generate.TABLES)] == [
        name for name in FIXTURES if name.startswith(f"{FORMAT_VERSION}/")
    ]


@pytest.mark.parametrize(("table", "name"), [(name, name) for name in FIXTURES], ids=FIXTURES, indirect=["table"])
class TestFixture:
    def test_a_fixture_contains_the_rows_that_were_written(self, table: Table, name: str) -> None:
        expected = load(FOLDER / f"{name}.json")
        assert {moment: rows_of(table, moment) for moment in expected.snapshots} == expected.snapshots
        for since, until, rows in expected.changes:
            assert changes_of(table, since, until) == rows
        assert watermarks_of(table) == expected.watermarks

    def test_verify_finds_nothing_wrong(self, table: Table, name: str) -> None:
        del name
        assert [found for found in table.verify().findings if found.severity is not Severity.INFO] == []

    def test_a_fixture_can_be_written_compacted_and_cleaned(self, table: Table, name: str) -> None:
        expected = load(FOLDER / f"{name}.json")
        assert (
            batches_of(table, {lane: list(queries) for lane, queries in expected.batches.items()}) == expected.batches
        )
        append_all(table, expected.append)
        assert rows_of(table) == expected.appended
        table.fold()
        table.compact()
        table.add_group("added", {"added_text": "string"}, new_streams={"adding": "group"})
        table.clean(generate.ALL_GONE, abandon_after=generate.ALL_GONE)
        assert plain_rows(table.snapshot().to_arrow().drop_columns("added_text")) == expected.appended
        assert [found for found in table.verify().findings if found.severity is Severity.ERROR] == []


def test_frozen_fixtures_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / str(FORMAT_VERSION)).mkdir()
    with pytest.raises(SystemExit, match="fixtures are written once, and never changed"):
        generate.main(tmp_path)

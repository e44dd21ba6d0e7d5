"""An erase that dies at any request to the store is completed by the next one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.deaths import Died, changes, deaths
from tests.faulty_store import FakeClock, FaultyStore
from tests.storage.support.erased_table import ALL, GONE, append, errors_of, ids, small, with_keys
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.environment import Environment
from weft.storage.services.erase.erase import EraseResult
from weft.storage.store.open_store import open_store


@pytest.mark.extended
@pytest.mark.slow
def test_an_erase_that_dies_at_any_request_is_completed_by_the_next(tmp_path: Path) -> None:
    first = small(tmp_path, archive_chunk=3, table_checkpoint_every=2, lane_checkpoint_every=2)
    append(first, "s", ALL)
    first.compact()
    append(first, "s", [GONE], 2)
    first.fold()
    append(first, "u", [GONE, "person-1"])
    first.savepoint("kept")
    tuning = first.env.tuning

    def copy(name: str, store: FaultyStore | None = None) -> Table:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(tmp_path / "small", folder)
        return Table(Environment(store or open_store(str(folder)), FakeClock(), tuning=tuning), Stamps())

    def erase(table: Table) -> EraseResult:
        return table.erase([GONE], expire_snapshots=True, release_savepoints=True)

    watched = FaultyStore(open_store(copy("watched").uri))
    erase(copy("watched", watched))
    made = changes(watched)
    assert len(made) > 15
    for death in deaths(made):
        name = str(death)
        table = copy(name)
        broken = death.happens_in(FaultyStore(open_store(table.uri)))
        with pytest.raises(Died):
            erase(copy(name, broken))
        assert erase(copy(name)).complete, death
        assert with_keys(table, [GONE]) == []
        assert ids(copy(name)) == sorted(set(ALL) - {GONE})
        assert errors_of(copy(name)) == []

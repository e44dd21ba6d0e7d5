"""An erase that dies at any request to the store is completed by the next one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import Table
from storage.clock import Stamps
from storage.engine import EraseResult
from storage.environment import Environment
from storage.store.open_store import open_store
from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.erased_table import ALL, GONE, append, errors_of, ids, small, with_keys

CHANGES = ("put", "put_if_absent", "delete", "open_output")


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
    steps = [(call, _place(path)) for call, path in watched.calls if call in CHANGES]
    assert len(steps) > 15
    for number, (call, place) in enumerate(steps):
        nth = steps[:number].count((call, place))
        for when in ("before", "after"):
            name = f"{number}-{when}"
            table = copy(name)
            broken = FaultyStore(open_store(table.uri))
            broken.faults.append(Fault(call, place, times=nth, action=lambda: None))
            broken.faults.append(Fault(call, place, when, error=_Died()))
            with pytest.raises(_Died):
                erase(copy(name, broken))
            assert erase(copy(name)).complete, (call, place, when)
            assert with_keys(table, [GONE]) == []
            assert ids(copy(name)) == sorted(set(ALL) - {GONE})
            assert errors_of(copy(name)) == []


class _Died(BaseException):
    pass


def _place(path: str) -> str:
    """The folder of an object, which does not depend on random names."""
    return path.rsplit("/", 1)[0] + "/"

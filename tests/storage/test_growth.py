"""Costs grow linearly with the number of file groups and lanes, not quadratically; measured by counts, not by time.

Every operation runs on tables of two sizes. The number of calls of each of our functions, and of functions that they
call, may grow with the size of the table, and so may the number of requests to the store. A look-up of one key decodes
a constant amount.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_store import FakeClock
from tests.many_groups import BUCKETS, CONFIG, CountingStore, new_uri, rows, steps
from tests.tuning import tune
from weft.storage import Table, environment
from weft.storage.core.log.file_refs import SliceFile
from weft.storage.log.decoded_sidecars import DECODED_INDEXES, DECODED_SLICES

GROWTH = 4
SLACK = 1.3
"""Tolerance: the numbers of files and parts grow in whole numbers, so not exactly like the size."""
FEW = 500
"""Functions with fewer calls, and kinds with fewer requests, are not checked: their growth is random."""

Calls = dict[str, int]
Counted = dict[str, tuple[Calls, Calls]]


def counted(monkeypatch: pytest.MonkeyPatch, folder: Path, groups: int, lanes: int) -> Counted:
    """The calls by function and the requests by kind, for each operation."""
    stores: list[CountingStore] = []
    opened = environment.open_store

    def counting(uri: str, options: object = None) -> Any:
        stores.append(CountingStore(opened(uri, options)))
        return stores[-1]

    found: Counted = {}
    with monkeypatch.context() as patched:
        patched.setattr(environment, "open_store", counting)
        # With the machine's clock a writer's mark, once a minute, could fall into any step, and it reads all lanes.
        clock = FakeClock()
        for name, run in steps(new_uri(str(folder)), groups, lanes, clock):
            clock.sleep(1)
            stores.clear()
            profile = cProfile.Profile()
            # A collection in between would count what objects of other tests in this process do when they end.
            gc.collect()
            gc.disable()
            try:
                profile.runcall(run)
            finally:
                gc.enable()
            if name:
                requests: Calls = {}
                for store in stores:
                    for kind, count in store.requests.items():
                        requests[kind] = requests.get(kind, 0) + count
                found[name] = (_calls(profile), requests)
    return found


def _calls(profile: cProfile.Profile) -> Calls:
    calls: Calls = {}
    for (file, _, function), (_, count, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = f"{file}:{function}"
        calls[name] = calls.get(name, 0) + count
    return calls


def grown_too_much(small: Counted, large: Counted) -> list[str]:
    return [
        f"{operation}: {name} {before.get(name, 0)} -> {count}"
        for operation, kinds in large.items()
        for before, after in zip(small[operation], kinds, strict=True)
        for name, count in after.items()
        if count > FEW and count > before.get(name, 0) * GROWTH * SLACK
    ]


@pytest.mark.slow
def test_work_grows_linearly_with_file_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Small enough for lists to be stored in entries: larger lists are in sidecars, which is a step and not growth.
    small, large = (counted(monkeypatch, tmp_path, groups, 3) for groups in (24, 24 * GROWTH))
    wrong = grown_too_much(small, large)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_work_grows_linearly_with_lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small, large = (counted(monkeypatch, tmp_path, 16, lanes) for lanes in (16, 16 * GROWTH))
    wrong = grown_too_much(small, large)
    assert not wrong, "\n".join(wrong)


OBJECTS = 4
"""Garbage-collected objects for every file group that a look-up does not need."""


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_look_up_of_one_key_decodes_one_slice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, checkpointed: bool
) -> None:
    # Large enough for lists to be stored in sidecars.
    partitions = (64, 256)
    held = []
    for number in partitions:
        uri = new_uri(str(tmp_path))
        Table.create(uri, CONFIG)
        with Table.open(uri).writer("s") as writer:
            writer.append(rows(number, 32, 1))
        Table.open(uri).compact()
        if checkpointed:
            with monkeypatch.context() as patched:
                tune(patched, table_checkpoint_every=1)
                Table.open(uri).savepoint("kept")
        held.append(_held_by_look_up(uri))
    assert [slices for slices, _ in held] == [1, 1]
    (_, few), (_, many) = held
    assert many - few < (partitions[1] - partitions[0]) * BUCKETS * OBJECTS


def _held_by_look_up(uri: str) -> tuple[int, int]:
    """The number of slices, and of all objects, that a look-up creates."""
    DECODED_SLICES.clear()
    DECODED_INDEXES.clear()
    gc.collect()
    before = gc.get_objects()
    snapshot = Table.open(uri).snapshot()
    assert snapshot.get([(0, 1)]).num_rows == 1
    gc.collect()
    after = gc.get_objects()
    slices, objects = (_count_slices(after) - _count_slices(before), len(after) - len(before))
    assert snapshot.slices  # keeps everything alive until here
    return slices, objects


def _count_slices(objects: list[Any]) -> int:
    return sum(type(found) is SliceFile for found in objects)

"""Costs grow with the number of file groups and lanes, not with its square: counted, not timed.

Every operation runs on tables of two sizes. Of each function of ours and each it calls into, the number of calls may
grow as the table does, and so may the number of requests to the store.
"""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

import pytest

from storage import environment
from tests.many_groups import CountingStore, new_uri, steps

GROWTH = 4
SLACK = 1.3
"""Tables of two sizes are not alike in everything: with the size files and parts get more, by whole numbers."""
FEW = 500
"""Calls of a function, and requests, that are not looked at: how they grow is chance."""

Calls = dict[str, int]
Counted = dict[str, tuple[Calls, Calls]]


def counted(monkeypatch: pytest.MonkeyPatch, folder: Path, groups: int, lanes: int) -> Counted:
    """Per operation its calls by function, and its requests by kind."""
    stores: list[CountingStore] = []
    opened = environment.open_store

    def counting(uri: str, options: object = None) -> Any:
        stores.append(CountingStore(opened(uri, options)))
        return stores[-1]

    found: Counted = {}
    with monkeypatch.context() as patched:
        patched.setattr(environment, "open_store", counting)
        for name, run in steps(new_uri(str(folder)), groups, lanes):
            stores.clear()
            profile = cProfile.Profile()
            profile.runcall(run)
            if name:
                requests: Calls = {}
                for store in stores:
                    for kind, count in store.requests.items():
                        requests[kind] = requests.get(kind, 0) + count
                found[name] = (_calls(profile), requests)
    return found


def _calls(profile: cProfile.Profile) -> Calls:
    calls: Calls = {}
    for (file, _, function), own in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        name = f"{file}:{function}"
        calls[name] = calls.get(name, 0) + own[1]
    return calls


def grown_too_much(small: Counted, large: Counted) -> list[str]:
    return [
        f"{operation}: {name} {before[name]} -> {count}"
        for operation, kinds in large.items()
        for before, after in zip(small[operation], kinds, strict=True)
        for name, count in after.items()
        if count > FEW and count > before.get(name, 0) * GROWTH * SLACK
    ]


def test_with_the_number_of_file_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Small enough for lists to stand in the entries: larger ones are read back from sidecars, a step and not growth.
    small, large = (counted(monkeypatch, tmp_path, groups, 3) for groups in (24, 24 * GROWTH))
    wrong = grown_too_much(small, large)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_with_the_number_of_lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small, large = (counted(monkeypatch, tmp_path, 16, lanes) for lanes in (16, 16 * GROWTH))
    wrong = grown_too_much(small, large)
    assert not wrong, "\n".join(wrong)

"""Fixtures of the storage tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faulty_store import FakeClock
from tests.tuning import tune


@pytest.fixture
def clock() -> FakeClock:
    """A clock that only advances when it is set, or when the code sleeps."""
    return FakeClock()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a few rows and row groups of two or three, so that a few rows run all code for many rows.

    An overlay is written wherever it can be, and file groups with several blocks of logs are compacted in key ranges.
    """
    tune(
        monkeypatch,
        block_min_bytes=40,
        block_max_bytes=160,
        row_group_rows=2,
        shared_row_group_rows=3,
        coalesce_rows=4,
        merge_bytes=2_000,
        overlay_percent=100_000,
        overlay_files=2,
    )
    return


@pytest.fixture
def own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file group has separate files, however small it is."""
    tune(monkeypatch, small_group_bytes=0)

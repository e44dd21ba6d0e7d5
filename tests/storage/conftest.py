"""Fixtures of the storage tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage import base_file, log_file


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a few rows and row groups of two, so that a few rows take every path that many rows take."""
    monkeypatch.setattr(log_file, "BLOCK_MIN_BYTES", 40)
    monkeypatch.setattr(log_file, "BLOCK_MAX_BYTES", 160)
    monkeypatch.setattr(base_file, "ROW_GROUP_ROWS", 2)
    return

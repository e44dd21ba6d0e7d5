"""Fixtures of the storage tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.files import base_file, log_file, log_reader
from storage.services import compaction


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of a few rows and row groups of two or three, so that a few rows take every path that many rows take."""
    monkeypatch.setattr(log_file, "BLOCK_MIN_BYTES", 40)
    monkeypatch.setattr(log_file, "BLOCK_MAX_BYTES", 160)
    monkeypatch.setattr(base_file, "ROW_GROUP_ROWS", 2)
    monkeypatch.setattr(base_file, "SHARED_ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(log_reader, "TOGETHER_ROWS", 4)
    return


@pytest.fixture
def own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file group has files of its own, however small it is."""
    monkeypatch.setattr(compaction, "SMALL_BYTES", 0)

"""Shared by the tests of writing."""

from __future__ import annotations

from typing import Final

import pytest

from weft.streams.write import upkeep

UPKEEP_SECONDS: Final = 300.0


@pytest.fixture
def upkeep_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer wait until its upkeep thread has ended, however busy the machine is."""
    monkeypatch.setattr(upkeep, "CLOSE_SECONDS", UPKEEP_SECONDS)

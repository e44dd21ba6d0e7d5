"""The blocks of the tutorial print what it shows: Kafka's stand-in, writers on Spark, commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guide_blocks import GUIDES, check_guide
from tests.reserved_port import reserved_port


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(900)  # five JVMs start
def test_every_block_of_the_tutorial_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with reserved_port() as port:
        check_guide(GUIDES / "tutorial.md", tmp_path, port=("9093", str(port)))

"""The blocks of the tutorial print what it shows: Kafka's stand-in, writers on Spark, commands."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.guide_blocks import GUIDES, check_guide


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(900)  # five JVMs start
def test_every_block_of_the_tutorial_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        free = chosen.getsockname()[1]
    check_guide(GUIDES / "tutorial.md", tmp_path, port=("9093", str(free)))

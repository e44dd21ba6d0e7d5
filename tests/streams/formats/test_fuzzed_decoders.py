"""Mutated messages never end the process that decodes them, nor fail a batch, nor take much memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams.support.seeds import seeds

MESSAGES = 150
DEEP_MESSAGES = 20_000


def run(name: str, seed: int, count: int) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.streams.formats.fuzz_decoders", name, str(seed), str(count)]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-3000:]}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds(2, 4))
@pytest.mark.parametrize("name", ["avro", "debezium-avro", "protobuf", "debezium"])
def test_mutated_messages(name: str, seed: int) -> None:
    run(name, seed, MESSAGES)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["avro", "debezium-avro", "protobuf", "debezium"])
def test_many_mutated_messages(name: str) -> None:
    run(name, 1000, DEEP_MESSAGES)

"""A short soak: every kind of disturbance once, with real processes and Spark. Longer: ``python -m tests.soak``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.run import run_soak

BLOWS = ("kill writer", "kill service", "undo", "zombie", "kill service", "freeze", "restore")
END_SECONDS = 120.0
"""Time limit for the end of a killed JVM and its workers, which is short on an idle machine."""


def processes_of(folder: Path) -> Iterator[str]:
    """Commands of processes that were started for a folder."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # the process has ended meanwhile
            continue
        if str(folder) in text:
            yield text


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(3_600)  # a minute and a half on two idle cores; several JVMs start while other tests run
def test_a_pipeline_under_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    verdict = run_soak(0.5, seed=2, writers=2, folder=tmp_path, blows=BLOWS, say=said.append)
    assert verdict.wrong == (), "\n".join([*said, *verdict.report, *verdict.wrong])
    assert {line.partition(":")[0] for line in said} == set(BLOWS)
    deadline = time.monotonic() + END_SECONDS
    while left := list(processes_of(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)

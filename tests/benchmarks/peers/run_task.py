"""Runs a measuring process, with its progress on the terminal, and makes sure that it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.releases import Installed
from tests.benchmarks.peers.task import Outcome, Task
from tests.end_process import end_process

_LAST_LINES: Final = 15
_REASON: Final = 300


def run_task(task: Task, installed: Installed, minutes: float) -> Iterator[Outcome]:
    """Measure one system; its tables are removed afterwards.

    Args:
        task: What to measure; its tables are in a folder below that of the task.
        installed: The system and its Spark.
        minutes: After which the process is ended.

    Yields:
        The outcome of each part.
    """
    with tempfile.TemporaryDirectory(prefix=task.system, dir=task.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        asked, answers, log = folder / "task.json", folder / "answers.jsonl", folder / "output.log"
        (folder / "tables").mkdir()
        replace(task, folder=str(folder / "tables")).write(asked)
        failed = _run(installed, folder, [str(asked), str(answers)], log, minutes)
        lines = answers.read_text(encoding="utf-8").splitlines() if answers.exists() else []
        found = {outcome.part: outcome for outcome in map(Outcome.parse, lines)}
        if failed or any(outcome.failed for outcome in found.values()):
            output = log.read_text(encoding="utf-8", errors="replace").splitlines()
            print(*output[-_LAST_LINES:], sep="\n", flush=True)
    for part in task.data:
        missing = Outcome(task.system, part, installed.version, installed.spark, failed=failed or "no answer")
        yield replace(found.get(part, missing), note=installed.missing)


def _run(installed: Installed, folder: Path, arguments: list[str], log: Path, minutes: float) -> str:
    """Empty if the process succeeds, and why not otherwise."""
    command = [*installed.python, "-m", "tests.benchmarks.peers.measuring_process", *arguments]
    with log.open("wb") as output, os.fdopen(os.dup(sys.stdout.fileno()), "wb") as terminal:
        process = subprocess.Popen(
            [*command, str(terminal.fileno())],
            cwd=folder,
            env={**os.environ, **installed.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,  # some jars print much
            stderr=output,
            pass_fds=[terminal.fileno()],
        )
        try:
            status = process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            return f"not finished after {minutes:g} minutes"
        finally:
            if process.poll() is None:
                end_process(process, signal.SIGTERM)
    if status == 0:
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line or "Exception" in line), f"exit {status}")[
        :_REASON
    ]

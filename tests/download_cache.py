"""What tests fetch or build once per machine, in the folder ``weft-tests`` in $XDG_CACHE_HOME, or in ~/.cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class Unavailable(Exception):
    """What a test needs cannot be had on this machine; the text says why."""


def cache_folder() -> Path:
    """The folder, which may not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft-tests"


@contextlib.contextmanager
def locked_cache(name: str) -> Iterator[Path]:
    """The folder; within the block only this process may check for ``name`` in it and create it."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits for the first one's download
        yield cache


def run_client(
    command: Sequence[str], folder: str, seconds: float, environment: Mapping[str, str] | None = None
) -> None:
    """Run a package manager or the like, which brings what a test needs.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        seconds: The time that it may take.
        environment: Variables besides those of this process.

    Raises:
        Unavailable: There is no such program, it fails, or it takes longer.
    """
    what = " ".join(command[:4])
    if shutil.which(command[0]) is None:
        raise Unavailable(f"there is no program `{command[0]}`; install it")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} takes longer than {seconds:g} s") from None
    if done.returncode:
        raise Unavailable(f"{what} fails: {(done.stdout + done.stderr)[-600:]}")

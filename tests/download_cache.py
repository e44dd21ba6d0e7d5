"""Folder for files that tests fetch or build once per machine: ``weft-tests`` in $XDG_CACHE_HOME, or in ~/.cache."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked_cache(name: str) -> Iterator[Path]:
    """The folder; within the block only this process may check for ``name`` in it and create it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft-tests"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits for the first one's download
        yield cache

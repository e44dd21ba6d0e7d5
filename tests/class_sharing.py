"""JVMs of tests start from an archive of Spark's classes (`weft.streams.spark.class_archive`), with half the CPU time.

    python -m tests.class_sharing     makes the archive by `weft class-archive`, if it is not there

It is where tests keep what they build once per machine. Processes that tests start find it by the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.download_cache import cache_folder, locked_cache
from weft.storage.errors import NotFound
from weft.streams.spark.class_archive import CACHE, find_archive
from weft.streams.spark.session import check_java
from weft.streams.spark.settings import USE_ARCHIVE

QUIET: Final = "-Xlog:cds*=off"
"""A JVM with another class path, which the archive does not fit, prints so, and some tests compare what it prints."""


def use_archive() -> Path | None:
    """Let processes that this one starts look for the archive in its folder; returns it if it is there."""
    os.environ.setdefault(CACHE, str(cache_folder()))
    try:
        return find_archive(check_java())
    except NotFound:  # there is no Java
        return None


def sharing_options() -> str:
    """Options for a JVM that does not look for the archive by itself, in front of others; empty if there is none."""
    archive = use_archive()
    return "" if archive is None else f'{QUIET} "{USE_ARCHIVE}{archive}" '


def main() -> int:
    with locked_cache("classes"):
        if use_archive() is not None:
            return 0
        return subprocess.run([sys.executable, "-m", "weft.streams.cli.main", "class-archive"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""A Java that never starts, so that a test knows the moment at which it does something: while Spark starts."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """#!/bin/sh
case "$*" in
    *-version*) echo 'openjdk version "17.0.1"' >&2; exit 0 ;;
esac
echo started >> {started}
exec sleep 600
"""


def never_starts(folder: Path) -> tuple[Path, Path]:
    """A Java home whose `java` says its version, and otherwise does nothing; and a file that exists once it runs."""
    home, started = folder / "java", folder / "java-runs"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SCRIPT.format(started=started), encoding="utf-8")
    program.chmod(0o755)
    return home, started

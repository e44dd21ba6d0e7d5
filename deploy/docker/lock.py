"""Writes the packages of the image, with checksums, from pyproject.toml and constraints.txt.

python deploy/docker/lock.py [EXTRA,EXTRA...]      # by default s3; needs the program uv (pip install uv)

`requirements.txt` has what the image holds, `build-requirements.txt` what builds weft and those packages that have no
wheel. Checksums are those of all files of a version, for all processors: the same pins give the same lists anywhere,
unless a package gets one more wheel of the same version.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
ROOT: Final = FOLDER.parents[1]
CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"
PYTHON: Final = "3.11"
"""The Python of the image's Debian."""


def requirements(extras: Sequence[str]) -> list[str]:
    """The dependencies in pyproject.toml, with those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        if extra not in project["optional-dependencies"]:
            sys.exit(f"there is no extra {extra!r}; extras: {', '.join(project['optional-dependencies'])}")
        lines += project["optional-dependencies"][extra]
    return lines


def lock(lines: Sequence[str], comment: str) -> str:
    """Requirements with everything that they need, in exact versions, with checksums."""
    command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--python-version", PYTHON, "--python-platform", "linux", "--constraint", str(CONSTRAINTS), "-"]
    done = subprocess.run(command, input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return f"# {comment}\n{done.stdout}"


def main() -> None:
    """Write both files."""
    extras = [name for name in (sys.argv[1] if len(sys.argv) > 1 else "s3").split(",") if name]
    again = f"python deploy/docker/lock.py {','.join(extras)}".rstrip()
    for name, lines in (("requirements.txt", requirements(extras)), ("build-requirements.txt", ["setuptools"])):
        (FOLDER / name).write_text(lock(lines, f"Written by {again}"), encoding="utf-8")


if __name__ == "__main__":
    main()

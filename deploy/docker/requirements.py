"""Prints the dependencies in pyproject.toml, one a line, so that an image can have a layer of them without the code.

python3 requirements.py PYPROJECT [EXTRA,EXTRA...]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
lines = list(project["dependencies"])
for extra in filter(None, sys.argv[2].split(",") if len(sys.argv) > 2 else ()):
    if extra not in project["optional-dependencies"]:
        sys.exit(f"there is no extra {extra!r}; extras: {', '.join(project['optional-dependencies'])}")
    lines += project["optional-dependencies"][extra]
sys.stdout.write("".join(f"{line}\n" for line in lines))

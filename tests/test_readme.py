"""The example of the README prints the documented output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_prints_the_documented_output(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"```python\n(import pyarrow.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None, "the example and its output stand next to each other"
    code, shown = found.groups()
    assert len(code.strip().splitlines()) <= 15
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.rstrip() == shown.rstrip()

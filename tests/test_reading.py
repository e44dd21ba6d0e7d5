"""The code blocks of the guides run one after the other, and print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

STORAGE = Path(__file__).parents[1] / "storage"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["READING.md", "MERGE.md"])
def test_every_block_prints_the_documented_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = STORAGE / name
    text = guide.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    assert len(found) == text.count("```python"), "this test runs every block of code"
    names: dict[str, Any] = {"__name__": "guide"}
    for block in found:
        code, shown = block.groups()
        printed = io.StringIO()
        # Blank lines before the code, so that a traceback has the line numbers of the guide.
        line = text.count("\n", 0, block.start(1))
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(guide), "exec"), names)  # the guide is ours
        assert printed.getvalue().rstrip() == (shown or "").rstrip(), f"{name}, line {line + 1}"

"""Runs the blocks of a guide one after the other, as a reader does: Python in one session, commands in one shell."""

from __future__ import annotations

import codeop
import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "deploy" / "docs"
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n?```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_END_SECONDS = 240.0
"""How long what a guide has left running may take to end: writers finish their batch."""
_END = "-- end of block --"


class Shell:
    """One shell for all blocks."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        # Also if this process is killed: the shell ends with its input.
        self.run("trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT")

    def run(self, code: str) -> str:
        """What a block prints."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{code}\necho '{_END}'\n")
        self._bash.stdin.flush()
        lines = []
        for line in self._bash.stdout:
            if line.rstrip() == _END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended: {''.join(lines)}")

    def close(self) -> None:
        """End the shell, and what it has left running."""
        self._bash.communicate(timeout=_END_SECONDS)


def check_guide(guide: Path, folder: Path, *, port: tuple[str, str] = ("", "")) -> None:
    """Run all blocks of a guide in a folder, which is the current one, and compare what they print.

    Args:
        guide: The guide.
        folder: The folder.
        port: A port of the guide, and one that is free, which is used instead.
    """
    text = guide.read_text(encoding="utf-8")
    if port[0]:
        assert port[0] in text
        text = text.replace(*port)
    found = list(_BLOCK.finditer(text))
    assert len(found) == len(re.findall(r"^```(?:python|bash)$", text, re.MULTILINE)), "this runs every block"
    names: dict[str, Any] = {"__name__": "guide"}
    with contextlib.closing(Shell(folder)) as shell:
        for block in found:
            language, code, shown = block.groups()
            line = text.count("\n", 0, block.start(2))
            if language == "bash":
                printed = shell.run(code)
            else:
                paste(code)
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    exec(compile("\n" * line + code, str(guide), "exec"), names)  # the guide is ours
                printed = output.getvalue()
            said = printed.replace(str(folder), "PATH")
            assert _plain(said) == _plain(shown or ""), f"{guide.name}, line {line + 1}:\n{said}\n{_logs(folder)}"


def paste(code: str) -> None:
    """Check that code can be pasted into a Python session, where an empty line ends a block and nothing else does.

    Raises:
        SyntaxError: It cannot.
    """
    compiler, waiting = codeop.CommandCompiler(), list[str]()
    for line in [*code.splitlines(), ""]:
        waiting.append(line)
        if compiler("\n".join(waiting)) is not None:
            waiting = []


def _plain(text: str) -> str:
    """Without times, and without numbers that depend on how many entries the log has."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", text)
    return re.sub(r"(schema revision|entry|,) \d+(?= entries| of the|$)", r"\1 N", text, flags=re.MULTILINE).rstrip()


def _logs(folder: Path) -> str:
    """The ends of the logs, for a failure."""
    return "\n".join(f"{log.name}: {log.read_text(encoding='utf-8')[-1000:]}" for log in folder.glob("*.log"))

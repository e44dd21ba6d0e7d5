"""Commands on a real pseudo-terminal, as a person has one, or with their errors in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ESCAPE = "\x1b"
LIMIT_SECONDS = 240.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RUN = """
import json, sys
from weft.streams.cli.main import app
for command in json.loads(sys.argv[1]):
    code = app(command, prog_name="weft", standalone_mode=False)
    if code:
        print("exit code", code)
"""


@dataclass(frozen=True)
class Shown:
    """What commands have written: to standard output, and to standard error."""

    output: str
    errors: str

    @property
    def words(self) -> str:
        """Standard error without control sequences."""
        return _CONTROL.sub("", self.errors)


def run(
    commands: Sequence[Sequence[str | Path]],
    *,
    terminal: bool = True,
    columns: int = 80,
    output_too: bool = False,
    given: Mapping[str, str] | None = None,
    standard_input: str = "",
    limit_seconds: float = LIMIT_SECONDS,
) -> Shown:
    """Run commands of weft one after the other in one process.

    Args:
        commands: Their arguments.
        terminal: Whether standard input and standard error are a terminal; else pipes.
        output_too: Whether standard output is on the terminal as well; what is written is in ``errors`` then.
        columns: Width of the terminal.
        given: Variables of the environment.
        standard_input: What is typed.
        limit_seconds: Longest time for all of them.
    """
    argv = [sys.executable, "-c", _RUN, json.dumps([[str(each) for each in command] for command in commands])]
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "FORCE_COLOR"}}
    env = {**kept, "TERM": "xterm-256color", **(given or {})}
    if not terminal:
        done = subprocess.run(
            argv, check=False, env=env, capture_output=True, text=True, timeout=limit_seconds, input=standard_input
        )
        return Shown(done.stdout, done.stderr)
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        argv, env=env, stdin=other, stdout=subprocess.PIPE if not output_too else other, stderr=other
    )
    os.close(other)
    if standard_input:
        os.write(main, standard_input.encode())
    seen = bytearray()
    written = bytearray()
    deadline = time.monotonic() + limit_seconds
    if process.stdout is not None:
        os.set_blocking(process.stdout.fileno(), False)
    while True:
        if not select.select([main], [], [], max(0.0, deadline - time.monotonic()))[0]:
            process.kill()
            raise AssertionError(f"it waits, perhaps for an answer:\n{seen.decode(errors='replace')[-4000:]}")
        try:
            part = os.read(main, 65536)
        except OSError:  # Linux: nobody has the terminal open any more
            break
        if not part:
            break
        seen += part
        if process.stdout is not None:
            written += process.stdout.read() or b""
    if process.stdout is not None:
        os.set_blocking(process.stdout.fileno(), True)
        written += process.stdout.read()
    process.wait(60)
    os.close(main)
    return Shown(written.decode(), seen.decode(errors="replace"))

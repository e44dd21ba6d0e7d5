"""Exit codes of ``weft``. Imports nothing, so that `weft.streams.cli.entry` is quick.

Success is 0, and `weft check` and `weft doctor` have codes of their own (`weft --help` lists all).
"""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a shell's command that Ctrl-C has ended."""

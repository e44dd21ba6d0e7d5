"""The exit code of an interrupted command. Imports nothing, so that `weft.streams.cli.entry` starts quickly.

`weft.streams.cli.arguments` has the other codes; `weft --help` lists all.
"""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C has ended, as in shells: 128 + SIGINT."""

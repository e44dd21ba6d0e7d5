"""Where ``weft`` begins: Ctrl-C ends it without a stack, also while its modules are still being loaded."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a shell's command that Ctrl-C has ended."""


def main() -> None:
    """Run the command line."""
    try:
        from streams.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()

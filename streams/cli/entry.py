"""Where ``weft`` begins: Ctrl-C ends it without a stack, also while its modules are still being loaded."""

from __future__ import annotations

import sys

from weft.streams.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line."""
    try:
        from weft.streams.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()

"""The entry point of ``weft``: Ctrl-C ends it without a stack trace, even while modules are still being imported."""

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

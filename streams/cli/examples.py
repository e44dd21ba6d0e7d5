"""Examples of commands for their help."""

from __future__ import annotations

from rich.markup import escape

TITLE = "Examples:"


def examples(*lines: str) -> str:
    """Format examples as the text that ``--help`` shows below the options.

    Args:
        lines: Command lines, without the prompt of a shell. A test parses each with the parser of the command.
    """
    # Typer joins lines unless an empty line is between them, and takes brackets for markup unless they are escaped.
    return "\n\n".join([TITLE, *map(escape, lines)])

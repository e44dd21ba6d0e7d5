"""Examples of a command, which its help shows below its options."""

from __future__ import annotations

from rich.markup import escape

TITLE = "Examples:"


def examples(*lines: str) -> str:
    """The text that ``--help`` shows below the options.

    Args:
        lines: Command lines, without a shell's prompt. A test parses each with the parser of the command.
    """
    # An empty line keeps typer from joining two lines; brackets would be markup.
    return "\n\n".join([TITLE, *map(escape, lines)])

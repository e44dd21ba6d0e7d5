"""Writes the tables of commands.md and spark.md that follow from the declarations of operations.

    python deploy/docs/operation_tables.py

Prints the names of documents that were changed. A test does the same and fails if there are any.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from weft.storage.operations.all_operations import OPERATIONS
from weft.storage.operations.operation import Operation
from weft.streams.catalog.procedure_table import PROCEDURES

FOLDER = Path(__file__).parent
COMMANDS = "| command | what it does to a table |"
PROCEDURE_TABLE = "| procedure | arguments after `table` | columns of the result |"


def command_rows() -> list[str]:
    """A row for each command that is made from an operation: how it is called, and its help."""
    return [
        f"| `{usage(each)}` | {each.help.replace(chr(10) * 2, ' ').replace('|', chr(92) + '|')} |"
        for each in sorted(OPERATIONS.values(), key=lambda each: each.name)
        if each.command and not each.group
    ]


def usage(operation: Operation) -> str:
    """A command line with all arguments and required options."""
    words = ["weft", operation.command_name, "URI"]
    for name, (info, face) in operation.fields().items():
        value = (face.metavar or name.upper()).replace("|", "\\|")
        if face.command and face.argument:
            words.append(value)
        elif face.command and info.is_required():
            words.append(f"{face.flag or '--' + name.replace('_', '-')} {value}")
    return " ".join(words)


def procedure_rows() -> list[str]:
    """A row for each procedure: its parameters with defaults, and the columns of its result."""
    rows = []
    for _, each in sorted(PROCEDURES.items()):
        parameters = ", ".join(
            f"`{one.name}`" if one.required else f"`{one.name} = {json.dumps(one.default)}`"
            for one in each.parameters[1:]
        )
        rows.append(f"| `{each.name}` | {parameters} | {', '.join(each.columns)} |")
    return rows


def with_table(text: str, header: str, rows: Sequence[str]) -> str:
    """A document with other rows in the table that has this header."""
    before, found, after = text.partition(header + "\n")
    assert found, f"there is no table {header}"
    lines = after.split("\n")
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return before + header + "\n" + "\n".join([lines[0], *rows, *lines[end:]])


def documents() -> dict[Path, str]:
    """The documents as they are to be."""
    tables = {"commands.md": (COMMANDS, command_rows()), "spark.md": (PROCEDURE_TABLE, procedure_rows())}
    paths = {FOLDER / name: table for name, table in tables.items()}
    return {path: with_table(path.read_text(encoding="utf-8"), *table) for path, table in paths.items()}


if __name__ == "__main__":
    for path, text in documents().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path)

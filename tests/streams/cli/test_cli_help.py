"""The help of every command: its examples, and what shells complete."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.support.pipelines import weft
from weft import Table
from weft.streams.cli.completion import list_targets, savepoints
from weft.streams.cli.examples import TITLE
from weft.streams.cli.main import app
from weft.streams.demo.command import demo

PROGRAM = typer.main.get_command(app)


def every_command(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(every_command(PROGRAM))


def examples_of(command: Any) -> list[str]:
    title, *lines = (command.epilog or "").split("\n\n")
    assert title == TITLE
    return [re.sub(r"\\\[", "[", line) for line in lines]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_command_has_examples_which_its_parser_takes(path: tuple[str, ...]) -> None:
    lines = examples_of(COMMANDS[path])
    assert lines
    for line in lines:
        command = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line).partition(" > ")[0]
        name, *words = shlex.split(command)
        assert name == "weft"
        assert tuple(words[: len(path)]) == path, line
        parser = COMMANDS[path]
        if path == ("demo",):  # it parses its options itself
            own = typer.Typer()
            own.command()(demo)
            parser = typer.main.get_command(own)
        parser.make_context(" ".join(path), words[len(path) :])


def test_help_shows_each_example_as_one_line() -> None:
    shown = weft("sql", "--help").stdout
    for line in examples_of(COMMANDS["sql",]):
        assert line.split()[1] in shown
    assert 'weft sql lake/orders_wide "SELECT status, count(*) FROM t GROUP BY status"' in weft("sql", "--help").stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, a pipeline file of it, and weft on the path."""
    table = Table.create(tmp_path / "lake" / "shop" / "wide", SHOP)
    append(table, orders(1))
    table.savepoint("before_x")
    (tmp_path / "p.yaml").write_text("table: {uri: ./lake/shop/wide}\n")
    program = tmp_path / ".bin" / "weft"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weft.streams.cli.main "$@"\n')
    program.chmod(0o755)
    return tmp_path


LINES = {
    ("weft", "comp"): ["compact", "completion"],
    ("weft", "restore", "lake/shop/wide", ""): ["before_x"],
    ("weft", "undo", "p.yaml", "p"): ["payments"],
    ("weft", "clean", "--ret"): ["--retain"],
    ("weft", "show", "l"): ["lake/shop/wide"],
}
SCRIPTS = {
    "bash": (
        'eval "$(weft completion bash)"',
        (
            "COMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=(); _weft_completion weft; "
            "printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ),
    ),
    # Outside of its line editor zsh has no _arguments: this one prints the proposals that it gets.
    "zsh": (
        'compdef() {{ : }}; eval "$(weft completion zsh)"; _arguments() {{ print -r -- "$@" }}',
        "words=({words}); CURRENT={count}; _weft_completion",
    ),
    "fish": ("weft completion fish | source", "complete --do-complete {line}"),
}


def complete(shell: str, folder: Path, lines: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """What a shell proposes for the last word of each line, by the script that weft printed for it."""
    begin, ask = SCRIPTS[shell]
    commands = [begin.replace("{{", "{").replace("}}", "}")]
    for words in lines:
        quoted, line = " ".join(map(shlex.quote, words)), shlex.join(words[:-1]) + " " + words[-1]
        commands.append(ask.format(words=quoted, last=len(words) - 1, count=len(words), line=shlex.quote(line)))
        commands.append("echo '==='")
    env = {**os.environ, "PATH": f"{folder / '.bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(
        [shell, "-c", "; ".join(commands)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    answers = done.stdout.split("===\n")
    assert len(answers) == len(lines) + 1, done.stderr
    if shell == "zsh":
        return [re.findall(r'(?:\(\(|\s)"([^"]+)"', answer) for answer in answers[:-1]]
    return [[text.partition("\t")[0] for text in answer.splitlines()] for answer in answers[:-1]]


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_real_shell_completes_commands_options_and_what_the_table_has(shell: str, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"NOT TESTED: completion in {shell}, which is not installed (apt-get install {shell})")
    asked = dict(list(LINES.items())[: None if shell == "bash" else 2])
    assert dict(zip(asked, complete(shell, folder, list(asked)), strict=True)) == asked


def test_completion_of_a_table_that_cannot_be_read_proposes_nothing(folder: Path) -> None:
    for slot in (folder / "lake" / "shop" / "wide" / "_weft").rglob("*.json"):
        slot.write_text("damaged")
    context = typer.Context(PROGRAM)  # type: ignore[arg-type]
    context.params = {"target": str(folder / "lake" / "shop" / "wide")}
    assert savepoints(context, "") == []
    assert list_targets(str(folder / "nowhere" / "x")) == []

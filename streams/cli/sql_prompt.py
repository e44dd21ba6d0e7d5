"""The prompt of ``weft sql``, with history and completion. Statements end at a semicolon, not at the end of a line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.history import FileHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from weft.storage.errors import TableError
from weft.streams.cli.arguments import print_error, stderr
from weft.streams.cli.cancellation import run_until_ctrl_c
from weft.streams.cli.statements import is_complete, split_statements

_EXIT_WORDS: Final = frozenset({"exit", "quit", "\\q"})
_CONTINUATION: Final = "   -> "
_KEYWORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "ON", "AS"),
    *("AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("DISTINCT", "UNION ALL", "WITH", "EXPLAIN", "DESCRIBE", "SHOW TABLES", "SHOW COLUMNS IN", "CAST", "DESC", "ASC"),
    *("count", "sum", "min", "max", "avg", "coalesce", "date_trunc", "current_timestamp", "exit", "quit"),
)
_WORD: Final = re.compile(r"[\w.`$]+")


def run_prompt(
    name: str, names: Callable[[], Iterable[str]], run: Callable[[str], None], cancel: Callable[[], None]
) -> None:
    """Read statements and run them until Ctrl-D or ``exit``. Errors are printed and do not end the prompt.

    Ctrl-C clears what was typed, or cancels the statement that runs.

    Args:
        name: Text of the prompt.
        names: Returns names of tables and columns for completion; called before each statement.
        run: Runs one statement and prints its result; called in a separate thread.
        cancel: Cancels the running statement.
    """
    prompt: PromptSession[str] = PromptSession(
        history=_history(), key_bindings=_bindings(), multiline=True, enable_history_search=True
    )
    while True:
        try:
            text = prompt.prompt(f"{name}> ", completer=_completer(names()), prompt_continuation=_CONTINUATION)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip().lower().rstrip(";") in _EXIT_WORDS:
            return
        for statement in split_statements(text):
            try:
                run_until_ctrl_c(run, statement.text, cancel)
            except KeyboardInterrupt:
                stderr.print("cancelled", style="yellow")
                break
            except TableError as error:
                print_error(error)
                break


def history_file() -> Path:
    """Return the path of the history: ``weft/sql_history`` in the user's state folder (XDG_STATE_HOME)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "weft" / "sql_history"


def _history() -> History | None:
    """Open the history, in a file that only the user can read. None, a history in memory, if it cannot be written."""
    path = history_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        stderr.print(f"the history is not kept: {path} cannot be written: {error}", style="dim", soft_wrap=True)
        return None
    return FileHistory(path)


def _completer(names: Iterable[str]) -> Completer:
    words: Sequence[str] = (*sorted(set(names)), *_KEYWORDS)
    return WordCompleter(list(words), ignore_case=True, pattern=_WORD)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.document.text
        ends_here = is_complete(text) or text.strip().lower() in _EXIT_WORDS
        if ends_here and not buffer.document.text_after_cursor.strip():
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings

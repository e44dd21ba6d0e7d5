"""The prompt of ``weft sql``: statements over lines, history, completion, what ends it; also on a pseudo terminal."""

from __future__ import annotations

import os
import pty
import re
import selectors
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.storage.support.shop import SHOP, append, orders
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.cli.cancellation import run_until_ctrl_c
from weft.streams.cli.sql_prompt import _completer, history_file, run_prompt
from weft.streams.cli.statements import is_complete, split_statements

SQL_SECONDS = 180.0  # starts a JVM on a busy machine
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ASK_CURSOR = "\x1b[6n"
AGAIN = r"[\s\S]*wide>"
"""The prompt after a result. Keys that are sent before would be read by the terminal itself."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  -- nothing\n ;; /* ; */", []),
        ("SELECT 1", [("SELECT 1", 1, False)]),
        ("SELECT 1;\n\nSELECT 2 ;", [("SELECT 1", 1, True), ("SELECT 2", 3, True)]),
        ("SELECT ';', \";\", `a;b`; x", [("SELECT ';', \";\", `a;b`", 1, True), ("x", 1, False)]),
        (r"SELECT 'it\'s; here', 'it''s;'; y", [(r"SELECT 'it\'s; here', 'it''s;'", 1, True), ("y", 1, False)]),
        ("-- a; b\nSELECT 1 /* ; */ + 2; z", [("-- a; b\nSELECT 1 /* ; */ + 2", 1, True), ("z", 2, False)]),
        ("SELECT 'open; ; x", [("SELECT 'open; ; x", 1, False)]),
        ("SELECT 1 /* open ; x", [("SELECT 1 /* open ; x", 1, False)]),
        # As Spark's lexer: comments within comments, lines of comments that go on, raw and dollar-quoted texts.
        ("/* a /* b */ ; DELETE FROM t; */ x;", [("/* a /* b */ ; DELETE FROM t; */ x", 1, True)]),
        ("/* a /*+ b */ x; y", [("/* a /*+ b */ x", 1, True), ("y", 1, False)]),
        ("-- a \\\n ; DELETE FROM t;\nx;", [("-- a \\\n ; DELETE FROM t;\nx", 1, True)]),
        (r"SELECT r'\'; y;", [(r"SELECT r'\'", 1, True), ("y", 1, True)]),
        ("SELECT $$ a; b $$; y", [("SELECT $$ a; b $$", 1, True), ("y", 1, False)]),
    ],
)
def test_statements_end_at_semicolons_outside_of_quotes_and_comments(
    text: str, expected: list[tuple[str, int, bool]]
) -> None:
    assert [(found.text, found.line, found.ended) for found in split_statements(text)] == expected


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT ';'", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1; SELECT 2", False),
    ],
)
def test_a_text_is_complete_after_its_last_semicolon(text: str, *, complete: bool) -> None:
    assert is_complete(text) == complete


def typed(keys: str, run: Callable[[str], None], names: tuple[str, ...] = ()) -> None:
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        with create_app_session(input=pipe, output=DummyOutput()):
            run_prompt("wide", lambda: names, run, lambda: None)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def test_a_statement_goes_over_lines_and_ctrl_d_ends_the_prompt() -> None:
    seen: list[str] = []
    typed(f"SELECT 1,\r2;\r\rSELECT 3; SELECT 4;\r{CTRL_D}SELECT 5;\r", seen.append)
    assert seen == ["SELECT 1,\n2", "SELECT 3", "SELECT 4"]


@pytest.mark.parametrize("word", ["exit", "quit;", "\\q"])
def test_a_word_ends_the_prompt(word: str) -> None:
    seen: list[str] = []
    typed(f"{word}\rSELECT 1;\r", seen.append)
    assert seen == []


def test_ctrl_c_clears_what_was_typed() -> None:
    seen: list[str] = []
    typed(f"SELECT wrong\rFROM{CTRL_C}SELECT 1;\r{CTRL_D}", seen.append)
    assert seen == ["SELECT 1"]


def test_errors_and_cancelled_statements_do_not_end_the_prompt(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def run(sql: str) -> None:
        seen.append(sql)
        if sql == "wrong":
            raise InvalidInput("it is wrong", hint="write it right")
        if sql == "long":
            raise KeyboardInterrupt

    typed(f"wrong; never;\rlong; never;\rSELECT 1;\r{CTRL_D}", run)
    assert seen == ["wrong", "long", "SELECT 1"]
    assert capfd.readouterr().err.splitlines() == ["it is wrong", "hint: write it right", "cancelled"]


@pytest.mark.parametrize("begins", [0, 0.2], ids=["while it is started", "while it is waited for"])
def test_a_statement_that_has_just_begun_is_cancelled_too(begins: float) -> None:
    """It has no jobs at the first request to cancel them."""
    requests = threading.Semaphore(0)
    ended = threading.Event()

    def run(_: str) -> None:
        time.sleep(begins)
        os.kill(os.getpid(), signal.SIGINT)
        if all(requests.acquire(timeout=60) for _ in range(2)):
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_until_ctrl_c(run, "SELECT 1", requests.release)
    assert ended.is_set()


def test_the_history_stays_and_only_its_owner_reads_it(state: Path) -> None:
    seen: list[str] = []
    typed(f"SELECT 'secret';\r{CTRL_D}", seen.append)
    assert history_file() == state / "weft" / "sql_history"
    assert stat.S_IMODE(history_file().stat().st_mode) == 0o600
    typed(f"{UP}\r{CTRL_D}", seen.append)
    assert seen == ["SELECT 'secret'", "SELECT 'secret'"]


def test_without_a_place_for_the_history_there_is_a_prompt(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state.write_text("a file")
    seen: list[str] = []
    typed(f"SELECT 1;\r{CTRL_D}", seen.append)
    assert seen == ["SELECT 1"]
    assert "the history is not kept: " in capfd.readouterr().err


def test_names_of_tables_and_columns_are_completed() -> None:
    completer = _completer(["orders_wide", "order_id", "status"])
    for given, expected in (("SELECT ord", {"order_id", "orders_wide", "ORDER BY"}), ("SELECT t.stat", set())):
        found = completer.get_completions(Document(given), CompleteEvent(completion_requested=True))
        assert {completion.text for completion in found} == expected


@contextmanager
def terminal(*arguments: str) -> Iterator[Callable[[str, str], str]]:
    """Runs Python on a pseudo terminal. The function sends keys and waits for a text; it returns what was printed."""
    leader, follower = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment = {**kept, "TERM": "xterm", "COLUMNS": "200"}
    # The terminal controls the process, so that Ctrl-C is a signal to it.
    process = subprocess.Popen([sys.executable, *arguments], env=environment, preexec_fn=lambda: os.login_tty(follower))  # noqa: PLW1509
    os.close(follower)
    selector = selectors.DefaultSelector()  # also if this process has thousands of open files
    selector.register(leader, selectors.EVENT_READ)

    def until(keys: str, wanted: str) -> str:
        os.write(leader, keys.encode())
        seen, deadline = "", time.monotonic() + SQL_SECONDS
        while re.search(wanted, seen) is None:
            assert time.monotonic() < deadline, seen
            read = ""
            if selector.select(1):
                try:
                    read = os.read(leader, 65536).decode(errors="replace")
                except OSError:  # the process has ended
                    break
            elif process.poll() is not None:
                break
            if ASK_CURSOR in read:
                os.write(leader, b"\x1b[1;1R")
            seen += ESCAPES.sub("", read)
        assert re.search(wanted, seen), seen
        return seen

    until.process = process  # type: ignore[attr-defined]
    try:
        yield until
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SQL_SECONDS)
        selector.close()
        os.close(leader)


SLEEPS = """
import threading
from weft.streams.cli.cancellation import run_until_ctrl_c
from weft.streams.cli.sql_prompt import run_prompt

stop = threading.Event()

def run(sql):
    print("runs", sql, flush=True)
    if sql == "long":
        stop.wait(600)
        raise ValueError("cancelled, as Spark says it")
    print("ready", flush=True)

run_prompt("wide", list, run, stop.set)
print("left", flush=True)
"""


def test_ctrl_c_on_a_terminal_cancels_a_statement_and_ctrl_d_leaves() -> None:
    with terminal("-c", SLEEPS) as until:
        until("", "wide>")
        until("SELECT\r1;\r", f"runs SELECT\r\n1\r\nready{AGAIN}")
        until("long;\r", "runs long")
        until(CTRL_C, f"cancelled{AGAIN}")
        until("SELECT 2;\r", f"ready{AGAIN}")
        until(CTRL_D, "left")
        assert until.process.wait(SQL_SECONDS) == 0  # type: ignore[attr-defined]


@pytest.mark.spark
@pytest.mark.extended
def test_a_prompt_of_weft_sql_on_a_terminal(tmp_path: Path) -> None:
    """One session: a result, an error, Ctrl-C during a query, a live view, Ctrl-D."""
    table = Table.create(tmp_path / "wide", SHOP)
    append(table, orders(1, 2))
    with terminal("-m", "weft.streams.cli.main", "sql", table.uri) as until:
        until("", "wide>")
        assert "n-is-2" in until("SELECT concat('n-is-', count(*)) AS n\rFROM t;\r", f"1 row{AGAIN}")
        assert "UNRESOLVED_COLUMN" in until("SELECT nope FROM t;\r", f"hint: {AGAIN}")
        append(table, orders(3))
        assert "n-is-3" in until("SELECT concat('n-is-', count(*)) AS n FROM wide;\r", f"1 row{AGAIN}")
        until("SELECT count(*) FROM range(100000000000000);\r", "running .* tasks")
        until(CTRL_C, f"cancelled{AGAIN}")
        assert "n-is-3" in until("SELECT concat('n-is-', count(*)) AS n FROM wide;\r", f"1 row{AGAIN}")
        until(CTRL_D, "")
        assert until.process.wait(SQL_SECONDS) == 0  # type: ignore[attr-defined]

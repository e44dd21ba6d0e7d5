"""Progress of commands that start Spark, on a real terminal: the start itself, and the tasks or bytes of the work."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.streams.support.java import never_starts
from tests.streams.support.pipelines import CONFIG, pipeline_file
from tests.streams.support.terminal import ESCAPE, Shown, run
from weft import Table
from weft.storage.store.local_store import LocalStore
from weft.streams.write.dead_letter import DeadLetters

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 20_000
LETTERS = 4_000
BAR = r"[━╸╺ ]+"


def slow(start: str, steps: int) -> str:
    """An SQL expression of an integer that takes a while for each row."""
    return f"aggregate(sequence(1, {steps}), bigint({start}), (sum, n) -> sum + n % 7)"


def make_table(folder: Path) -> str:
    table = Table.create(folder / "wide", {**CONFIG, "buckets": 16})
    with table.writer("sa") as writer:
        rows = pa.table({"id": range(ROWS), "a": ["a"] * ROWS, "at": range(ROWS)})
        for batch in range(3):
            writer.append(rows, batch=("q", batch))
    letters = LocalStore(str(folder / "wide_dead_letters/sa"))
    for batch in range(2):
        with DeadLetters(letters, "q", batch, "sa", "sa").open(0) as file:
            for number in range(LETTERS // 2):
                value = json.dumps({"id": number, "a": "b", "at": ROWS + batch}).encode()
                file.add(
                    "a reason", {"topic": "t", "partition": 0, "offset": number, "timestamp": 1, "value": value}, {}
                )
    return table.uri


@pytest.fixture(scope="module")
def on_a_terminal(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("spark")
    uri = make_table(folder)
    writer = {
        "source": {"type": "kafka", "topic": "t"},
        "schema": {"id": "bigint", "a": "string", "at": "bigint"},
        "select": {"id": "id", "a": "a", "at": slow("at", 10_000)},
    }
    pipeline = pipeline_file(
        folder, table={"uri": "./wide"}, kafka={"bootstrap.servers": "none:9092"}, writers={"sa": writer}
    )
    return run(
        [
            ["sql", uri, f"SELECT sum({slow('id', 3_000)}) AS total FROM t"],
            ["rewrite", uri, "--set", f"a = string({slow('length(a)', 3_000)})", "--yes"],
            ["dead-letters", "replay", pipeline],
            ["check", pipeline, "--without-messages"],
        ],
        limit_seconds=540,
    )


def test_the_start_of_spark_shows_that_time_goes_by(on_a_terminal: Shown) -> None:
    """The bar is drawn while the JVM starts, whose own output is hidden."""
    assert re.search(rf"starting Spark {BAR} 0:0[1-9]", on_a_terminal.words), on_a_terminal.words[-4000:]
    assert "WARN" not in on_a_terminal.words


@pytest.mark.parametrize(
    "line",
    [
        rf"running {BAR} \d+ of \d+ tasks, \d+/s, \d+:\d\d",
        rf"rewriting {BAR} [\d.,]+ ?[kM]?B of [\d.,]+ [kM]?B, [\d.,]+ [kM]?B/s, \d+:\d\d left",
        rf"replaying {BAR} \d+ of \d+ tasks, \d+/s, \d+:\d\d",
    ],
    ids=["sql", "rewrite", "replay"],
)
def test_each_command_shows_its_work(on_a_terminal: Shown, line: str) -> None:
    assert re.search(line, on_a_terminal.words), on_a_terminal.words[-4000:]


def test_each_bar_has_a_line_of_its_own_that_is_removed(on_a_terminal: Shown) -> None:
    lines = re.split(r"[\r\n]+", on_a_terminal.words)
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line and not re.search(BAR, line)] == []
    assert on_a_terminal.errors.rstrip().endswith((f"{ESCAPE}[2K", f"{ESCAPE}[?25h", "messages were not looked at"))


def test_results_are_in_standard_output(on_a_terminal: Shown) -> None:
    assert ESCAPE not in on_a_terminal.output
    for words in ("1 row", "a is rewritten up to cut:", f"sa: {LETTERS:,} letters replayed", "no problem found"):
        assert words in on_a_terminal.output


@pytest.mark.parametrize(
    ("starts", "shown", "exit_code"),
    [(False, b"starting Spark", 130), (True, b"tasks", 1)],
    ids=["while Spark starts", "while tasks run"],
)
def test_ctrl_c_cancels_a_query_without_a_stack(tmp_path: Path, shown: bytes, exit_code: int, *, starts: bool) -> None:
    """On a terminal of its own, where Ctrl-C is typed."""
    java, started = never_starts(tmp_path)
    environment = os.environ if starts else {**os.environ, "JAVA_HOME": str(java)}
    table = Table.create(tmp_path / "wide", CONFIG)
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": range(ROWS), "a": ["a"] * ROWS, "at": range(ROWS)}))
    child, main = pty.fork()
    if child == 0:
        query = f"SELECT sum({slow('id', 1_000_000)}) FROM t"
        command = [sys.executable, "-m", "weft.streams.cli.main", "sql", table.uri, query]
        os.execve(sys.executable, command, environment)
    seen = b""
    while shown not in seen or not (starts or started.exists()):
        seen += os.read(main, 65536)
    os.write(main, b"\x03")
    try:
        while part := os.read(main, 65536):
            seen += part
    except OSError:  # Linux: it has ended
        pass
    _, status = os.waitpid(child, 0)
    os.close(main)
    assert os.waitstatus_to_exitcode(status) == exit_code, seen
    assert b"cancelled" in seen
    assert b"Traceback" not in seen

"""Scripts of `tests/sql` that define, write and call, run statement by statement against what they say.

After a statement, comments say what it returns:

    --> 1 | new        a row; all rows, in this order. Without such a comment it returns none
    --! text           it fails, and the message contains the text
    --~ pattern        a row that matches the regular expression; all rows, in this order
    --= name           it returns something; a second statement with the same name returns the same

``{name}`` as a statement is the text that a statement before has returned. ``{root}`` is the folder of the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weft.streams.catalog.register import register_catalog

SCRIPTS = Path(__file__).parents[2] / "sql"


class Step(NamedTuple):
    """A statement, and what it is expected to do."""

    line: int
    statement: str
    rows: list[str]
    error: str
    name: str
    patterns: list[str]


def steps(text: str) -> Iterator[Step]:
    """The statements of a script. A semicolon at the end of a line ends a statement."""
    pending: list[str] = []
    found: list[Step] = []
    for number, line in enumerate(text.splitlines(), start=1):
        mark = re.match(r"--([>!=~]) ?(.*)", line)
        if mark:
            kind, rest = mark.groups()
            last = found[-1]
            found[-1] = {
                ">": last._replace(rows=[*last.rows, rest]),
                "!": last._replace(error=rest),
                "=": last._replace(name=rest),
                "~": last._replace(patterns=[*last.patterns, rest]),
            }[kind]
        elif not line.startswith("--") and line.strip():
            pending.append(line.removesuffix(";"))
            if line.endswith(";"):
                found.append(Step(number, "\n".join(pending), [], "", "", []))
                pending = []
    assert not pending, "the last statement ends with a semicolon"
    yield from found


def run(spark: SparkSession, statement: str) -> tuple[list[str], str]:
    """The rows of a statement as text, or the message of its error."""
    try:
        return [" | ".join(map(shown, row)) for row in spark.sql(statement).collect()], ""
    except (PySparkException, Py4JJavaError) as error:
        return [], str(error)


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "NULL" if value is None else str(value)


@pytest.mark.parametrize("name", ["define", "write", "call", "procedures"])
def test_a_script_returns_what_it_says(spark: SparkSession, tmp_path: Path, name: str) -> None:
    register_catalog(spark, "weft", tmp_path)
    script = SCRIPTS / f"{name}.sql"
    kept: dict[str, list[str]] = {}
    for step in steps(script.read_text(encoding="utf-8")):
        where = f"{script.name}, line {step.line}: {step.statement}"
        named = re.fullmatch(r"\{(\w+)\}", step.statement)
        text = "\n".join(kept[named[1]]) if named else step.statement.replace("{root}", str(tmp_path))
        rows, error = run(spark, text)
        assert step.error in error if step.error else not error, f"{where}\n{error or rows}"
        if step.name:
            assert rows, where
            assert kept.setdefault(step.name, rows) == rows, where
        elif step.patterns:
            assert len(rows) == len(step.patterns), f"{where}\n{rows}"
            for row, pattern in zip(rows, step.patterns, strict=True):
                assert re.fullmatch(pattern, row, re.DOTALL), f"{where}\n{row}\n{pattern}"
        else:
            assert rows == step.rows, where

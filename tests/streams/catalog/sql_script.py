"""Runs an SQL script, and prints what a user would see: the rows of each statement, or its error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_NEVER_THE_SAME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")


def statements(script: str) -> Iterator[str]:
    """The statements of a script: each ends with a semicolon at the end of a line."""
    lines = (line for line in script.splitlines() if not line.startswith("--"))
    yield from (each.strip(" ;\n") for each in "\n".join(lines).split(";\n") if each.strip(" ;\n"))


def run_script(spark: SparkSession, script: str, root: str) -> str:
    """The statements with their rows, tab-separated below the names of the columns, or with their error.

    Args:
        spark: The session.
        script: The script.
        root: The folder of the tables, which is another one in each run.
    """
    printed = "\n".join(f"> {each}\n{_run(spark, each)}" for each in statements(script))
    return _NEVER_THE_SAME.sub("<time>", printed.replace(root, "<root>"))


def _run(spark: SparkSession, statement: str) -> str:
    try:
        frame = spark.sql(statement)
        rows = [frame.columns, *frame.collect()]
    except Exception as error:
        return f"! {_first_sentence(error)}\n"
    return "".join("\t".join(map(_text, row)) + "\n" for row in rows if frame.columns)


def _text(value: Any) -> str:
    return "NULL" if value is None else str(value).replace("\n", " ")


def _first_sentence(error: Exception) -> str:
    """The message of an error, without the plan, the stack of Java, and Spark's general hints."""
    text = str(error).split("\n\nJVM stacktrace")[0]
    if not isinstance(error, PySparkException):
        text = next((line for line in text.splitlines() if line.startswith(": ")), text)
    text = re.split(r" SQLSTATE:|\nSearch path:|\nTo tolerate|\nIf you did not| Verify the spelling", text)[0]
    return " ".join(line.strip() for line in text.splitlines() if not line.strip().startswith("at "))

"""Names and errors in the text of Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pyspark.errors import PySparkException

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted(name: str) -> str:
    """Quote a name as an identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def sql_name(parts: Iterable[str]) -> str:
    """Join the parts of a name, with backquotes only where they are needed."""
    return ".".join(part if _PLAIN.fullmatch(part) else quoted(part) for part in parts)


def spark_message(error: PySparkException) -> str:
    """Return the message of an error, without the plan."""
    return str(error).split(";\n", 1)[0].strip()


def error_text(error: Exception) -> str:
    """Return the message of an error of Spark SQL, or the first line of another error, which may have a JVM stack."""
    if isinstance(error, PySparkException):
        return spark_message(error)
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

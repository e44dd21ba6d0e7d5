"""No statement in the SQL box does anything but answer: random statements of all forms that Spark has."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

_KNOWN_FUNCTIONS: Final = "d3970df2cfbca6fc"
"""Digest of the names of Spark's functions that somebody has looked at: none of those that the session has calls
programs, or reads anything but its arguments."""
_PARTS: Final = ("parsed", "checks", "strategy", "catalog")
"""Parts of the check beside which another part stops each statement. Two have nothing beside them: without the list of
functions REFLECT calls Java, and without the settings a text shows variables of the environment."""


def fuzz(seed: int, statements: int, *without: str, calls: bool = False) -> dict[str, Any]:
    """What `tests.streams.ui.fuzz_sql_box` reports; in a process of its own, whose session can do nothing else."""
    command = [sys.executable, "-m", "tests.streams.ui.fuzz_sql_box", f"--seed={seed}", f"--statements={statements}"]
    command += ["--calls"] if calls else []
    done = subprocess.run([*command, "--without", *without], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.extended
def test_no_statement_does_anything_but_answer() -> None:
    report = fuzz(1, 20)
    assert report["problems"] == []
    assert report["missing"] == [], "forms of a statement that this Spark has, and the fuzzer lacks"
    assert report["answered"] > 50
    digest = hashlib.sha256(" ".join(report["functions"]).encode()).hexdigest()[:16]
    assert digest == _KNOWN_FUNCTIONS, "Spark has other functions: those that act go to `read_only.FUNCTIONS`"


@pytest.mark.extended
def test_the_fuzzer_notices_everything_that_a_session_without_checks_does() -> None:
    report = fuzz(1, 0, "checks", "strategy", "catalog", "functions", "settings")
    noticed = {problem["what"] for problem in report["problems"]}
    assert noticed >= {
        *("files", "network", "secret", "property"),
        *("setting", "view", "function", "stored", "variable", "place", "jar"),
    }


@pytest.mark.nightly
@pytest.mark.parametrize("part", _PARTS)
def test_one_part_of_the_check_may_be_missing(part: str) -> None:
    assert fuzz(2, 500, part)["problems"] == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3, 9))
def test_many_statements_do_nothing_but_answer(seed: int) -> None:
    assert fuzz(seed, 3_000)["problems"] == []


@pytest.mark.nightly
def test_no_function_opens_what_its_arguments_name() -> None:
    assert fuzz(9, 0, calls=True)["problems"] == []

"""Tests that need a JVM have a marker, or they find no Java."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 280
REFUSED = "this test starts a JVM: mark it with one of spark, models, integration"


@pytest.mark.parametrize(
    "command",
    [
        ["java", "-cp", ".", "Main"],
        [sys.executable, "-c", "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()"],
    ],
    ids=["java", "spark"],
)
def test_without_a_marker_no_jvm_starts(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode != 0
    assert REFUSED in done.stderr


@pytest.mark.spark
def test_with_a_marker_java_is_the_real_one() -> None:
    command = '"${JAVA_HOME:+$JAVA_HOME/bin/}java" -version'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs nothing" not in done.stderr


def test_the_name_of_a_test_is_the_same_in_every_process(request: pytest.FixtureRequest) -> None:
    """Parallel test processes compare the names of collected tests, so a name must not contain an address."""
    assert [item.nodeid for item in request.session.items if " at 0x" in item.nodeid] == []


def test_tests_with_the_shared_session_are_marked(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    missing = [item.nodeid for item in items if "spark" in item.fixturenames and not item.get_closest_marker("spark")]
    assert missing == []

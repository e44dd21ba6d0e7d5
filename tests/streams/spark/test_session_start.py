"""Why Spark does not start, and whether the writer may try again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_process import gone
from weft.streams.pipeline.run.error_kinds import Ending

START_SECONDS = 600

pytestmark = pytest.mark.timeout(START_SECONDS + 60)

START = """
import sys
from pathlib import Path
from weft.storage.errors import TableError
from weft.streams.pipeline.run.error_kinds import ending_of
from weft.streams.spark.session import build_session
try:
    build_session("weft test", dict([sys.argv[2].split("=")]), scratch=Path(sys.argv[1]), quiet=True)
except TableError as error:
    print(error.code, error.message, error.hint)
    sys.exit(ending_of(error))
"""
KILLED_JAVA = """#!/bin/sh
case "$*" in
  *org.apache.spark.deploy.SparkSubmit*) kill -9 $$ ;;
esac
exec {java} "$@"
"""


def start(scratch: Path, setting: str, java_home: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if java_home is None else {"JAVA_HOME": java_home})}
    command = [sys.executable, "-c", START, str(scratch), setting]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False)


@pytest.mark.spark
def test_a_jvm_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    fake = tmp_path / "home" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text(KILLED_JAVA.format(java=java))
    fake.chmod(0o755)
    ended = start(tmp_path / "scratch", "spark.master=local[1]", str(tmp_path / "home"))
    assert ended.stdout.startswith("SPARK_NOT_STARTED Spark does not start: "), ended.stdout + ended.stderr
    assert ended.returncode == Ending.FAILED, "the supervisor restarts it"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("spark.master=local[x]", "local[x]"),
        ("spark.driver.maxResultSize=much", "much"),
        ("spark.plugins=org.example.Missing", "org.example.Missing"),
    ],
)
def test_a_setting_that_spark_refuses_is_not_tried_again(tmp_path: Path, setting: str, words: str) -> None:
    ended = start(tmp_path / "scratch", setting)
    assert ended.stdout.startswith("INVALID_INPUT Spark refuses a setting: "), ended.stdout + ended.stderr
    assert words in ended.stdout
    assert ended.returncode == Ending.REFUSED


END_WHILE_IT_STARTS = """
import threading
from pyspark import java_gateway
from weft.streams.spark.session import ends_with_this_process
launched = threading.Event()
def start():
    with ends_with_this_process():
        process = java_gateway.Popen(["sleep", "100"])
        print(process.pid, flush=True)
        launched.set()
        process.wait()
threading.Thread(target=start, daemon=True).start()
launched.wait()
"""


def test_a_jvm_that_starts_ends_with_its_process() -> None:
    """It would find no folder for its address, and stay: Ctrl-C while Spark starts."""
    command = [sys.executable, "-c", END_WHILE_IT_STARTS]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=START_SECONDS)
    assert gone(int(ended.stdout))

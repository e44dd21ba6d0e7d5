"""Planning data sources in threads: the script that Spark starts instead of Python, and the handshake of Spark."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark import SparkFiles
from pyspark.accumulators import _accumulatorRegistry

from weft.streams.spark.planning_threads import PlanningThreads

LOOKUP = ("-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources")
SECONDS = 120


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanningThreads]:
    # Spark's functions change these as if they had the process alone, but other tests have sessions in this process.
    for name in ("_root_directory", "_is_running_on_worker"):
        monkeypatch.setattr(SparkFiles, name, getattr(SparkFiles, name))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    accumulators = dict(_accumulatorRegistry)
    with PlanningThreads(tmp_path / "a folder 'of' mine") as running:
        yield running
    _accumulatorRegistry.clear()
    _accumulatorRegistry.update(accumulators)


@contextmanager
def started(python: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process like Spark; its standard input is open until the block ends."""
    process = subprocess.Popen(
        [python, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def connected(process: subprocess.Popen[bytes]) -> Iterator[IO[bytes]]:
    """Connect to the port that a daemon prints; it must reply with its process id."""
    assert process.stdout is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection, connection.makefile("rwb") as file:
        assert struct.unpack("!i", file.read(4)) == (process.pid,)
        yield file


def text(value: str) -> bytes:
    return struct.pack("!i", len(value)) + value.encode()


def read_text(file: IO[bytes]) -> str:
    (length,) = struct.unpack("!i", file.read(4))
    return file.read(length).decode()


def lookup_request() -> bytes:
    """The request of Spark 4.3: version, folder of files, no includes, no broadcasts, no settings; then the end."""
    version = "{}.{}".format(*sys.version_info[:2])
    nothing = struct.pack("!i", 0)
    return text(version) + text("/nowhere") + nothing + b"\0" + nothing + nothing + struct.pack("!i", -4)


def test_a_task_that_is_not_planning_is_done_by_python(threads: PlanningThreads) -> None:
    assert threads.python != sys.executable
    done = subprocess.run(
        [threads.python, "-c", "import sys; print(sys.executable, sys.argv[1])", "an argument"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{sys.executable} an argument\n"


@pytest.mark.parametrize("name", ["PYSPARK_PLANNER_MEMORY_MB", "SPARK_PREFER_IPV6"])
def test_work_that_needs_a_separate_process_is_done_by_python(threads: PlanningThreads, name: str) -> None:
    settings = {name: "1", "PYTHON_WORKER_FACTORY_SECRET": "s"}
    with started(threads.python, *LOOKUP, **settings) as process:
        assert process.stdout is not None
        process.stdout.read(4)  # it listens, so it is Spark's daemon
        assert "pyspark.daemon" in Path(f"/proc/{process.pid}/cmdline").read_text()


def test_a_planner_serves_a_client_that_knows_its_secret(threads: PlanningThreads) -> None:
    with started(threads.python, *LOOKUP, PYTHON_WORKER_FACTORY_SECRET="right") as process:
        with connected(process) as file:
            file.write(text("right"))
            file.flush()
            assert read_text(file) == "ok"
            for _ in range(2):  # a worker is reused
                file.write(lookup_request())
                file.flush()
                assert struct.unpack("!i", file.read(4)) == (0,), "it finds no data source"
                (accumulators,) = struct.unpack("!i", file.read(4))
                for _ in range(accumulators):
                    read_text_bytes(file)
                assert struct.unpack("!i", file.read(4)) == (-4,), "the end of the reply"
        assert process.poll() is None, "the daemon runs until Spark ends it"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECONDS) == 0


def read_text_bytes(file: IO[bytes]) -> bytes:
    (length,) = struct.unpack("!i", file.read(4))
    return file.read(length)


def test_a_client_without_the_secret_is_refused(threads: PlanningThreads) -> None:
    with (
        started(threads.python, *LOOKUP, PYTHON_WORKER_FACTORY_SECRET="right") as process,
        connected(process) as file,
    ):
        file.write(text("wrong") + lookup_request())
        file.flush()
        assert read_text(file) == "err"
        assert file.read() == b""


def test_the_runner_of_a_source_connects_with_its_secret(threads: PlanningThreads) -> None:
    module = "pyspark.sql.streaming.python_streaming_source_runner"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        settings = {"PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": "its"}
        with started(threads.python, "-m", module, **settings) as process:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as file:
                assert read_text(file) == "its"
                file.write(text("ok"))
                file.flush()
                assert struct.unpack("!i", file.read(4)) == (process.pid,)
                file.write(text("0.0"))  # of another Python
                file.flush()
                assert struct.unpack("!i", file.read(4)) == (-2,), "Spark's code for an exception"
                assert "PYTHON_VERSION_MISMATCH" in read_text(file)


def test_no_files_or_threads_remain_at_the_end(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with PlanningThreads(tmp_path / "planning"):
        # Sessions of other tests may start threads, too.
        threads = {thread for thread in set(threading.enumerate()) - before if thread.name == "weft-planning"}
        assert threads
        folder = tmp_path / "planning" / str(os.getpid())
        assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert not (tmp_path / "planning").exists()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


OTHER_PROCESS = """
import sys
from pathlib import Path
from weft.streams.spark.planning_threads import PlanningThreads
with PlanningThreads(Path(sys.argv[1])) as threads:
    print(threads.python, flush=True)
    sys.stdin.read()
"""


def test_the_end_of_a_replaced_process_leaves_the_script_of_its_successor(tmp_path: Path) -> None:
    folder = tmp_path / "planning"
    with started(sys.executable, "-c", OTHER_PROCESS, str(folder)) as replaced:
        assert replaced.stdin is not None
        assert replaced.stdout is not None
        its = Path(replaced.stdout.readline().decode().strip())
        with PlanningThreads(folder) as threads:
            assert its.exists(), "a process that is alive keeps its script"
            replaced.stdin.close()
            assert replaced.wait(SECONDS) == 0
            assert not its.exists()
            assert Path(threads.python).exists()


def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "planning"
    with started(sys.executable, "-c", OTHER_PROCESS, str(folder)) as killed:
        assert killed.stdout is not None
        its = Path(killed.stdout.readline().decode().strip())
    assert its.exists()
    (folder / "starts").write_text("of an earlier version")
    with PlanningThreads(folder) as threads:
        assert [path.name for path in folder.iterdir()] == [Path(threads.python).parent.name]


def test_without_pipes_spark_starts_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkfifo", refuse)
    with PlanningThreads(tmp_path / "planning") as threads:
        assert threads.python == sys.executable


def test_where_scripts_cannot_run_spark_starts_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.streams.spark.planning_threads._SCRIPT", "#!/no/such/shell\n")
    with PlanningThreads(tmp_path / "planning") as threads:
        assert threads.python == sys.executable

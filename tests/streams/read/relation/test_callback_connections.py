"""Connections that JVM threads open to call Python: those of ended threads are closed, and no other."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import weft.streams.catalog
import weft.streams.read.relation
from tests.streams.read.relation.planner import Files
from weft.streams.read.relation import callback_connections
from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import Jvm
from weft.streams.read.relation.live_view import create_relation_view
from weft.streams.read.relation.spark_scan import check_interfaces

SECONDS = 120.0
FEW = 3


class Called(Callback, java=("java.util.concurrent.Callable",)):
    """A task of an executor, which calls back into the JVM, as callbacks of Spark do."""

    calls = 0

    def call(self) -> Any:
        Called.calls += 1
        return self.jvm.optional_long(Called.calls)


@pytest.fixture
def jvm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Jvm:
    monkeypatch.setattr(callback_connections, "CHECK_SECONDS", 0.05)
    return Jvm.of(spark, check_interfaces)


def sockets() -> int:
    folder = Path("/proc/self/fd")
    found = 0
    for each in folder.iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(each.readlink()).startswith("socket:")
    return found


def run_tasks(jvm: Jvm, threads: int, calls: int) -> None:
    """Call `Called` from new threads of the JVM, which end afterwards."""
    executors: Any = jvm.spark.sparkContext._gateway.jvm.java.util.concurrent
    pool = executors.Executors.newFixedThreadPool(threads)
    tasks = [Called(jvm, f"task {number}") for number in range(calls)]
    for future in [pool.submit(task) for task in tasks]:
        assert future.get().isPresent()
    pool.shutdown()
    assert pool.awaitTermination(120, executors.TimeUnit.SECONDS)


def wait_until(few: int) -> tuple[int, int]:
    """Wait until there are at most so many threads; the numbers of threads and sockets then, or after a while."""
    end = time.monotonic() + SECONDS
    while threading.active_count() > few and time.monotonic() < end:
        time.sleep(0.05)
    return threading.active_count(), sockets()


def test_connections_of_ended_threads_are_closed(jvm: Jvm) -> None:
    threads, before = threading.active_count(), sockets()
    for _ in range(10):
        run_tasks(jvm, 20, 40)
    found = wait_until(threads + FEW)
    assert found <= (threads + FEW, before + FEW), "200 threads of the JVM have called"


def test_a_thread_that_lives_keeps_its_connection(jvm: Jvm) -> None:
    executors: Any = jvm.spark.sparkContext._gateway.jvm.java.util.concurrent
    pool = executors.Executors.newFixedThreadPool(1)
    for number in range(20):
        assert pool.submit(Called(jvm, f"a {number}")).get().isPresent()
        run_tasks(jvm, 5, 5)  # others come and go
    pool.shutdown()


def test_callbacks_answer_while_connections_are_closed(jvm: Jvm) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                run_tasks(jvm, 6, 18)
        except BaseException as error:
            failed.append(error)

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert not failed
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.usefixtures("jvm")
def test_joins_leave_no_connections(spark: SparkSession, files: Files, name: str) -> None:
    create_relation_view(spark, name, files)
    threads, before = threading.active_count(), sockets()
    with short_lived_pools(spark.sparkContext._gateway) as largest:
        made = largest()
        for _ in range(5):
            joined = " ".join(f"JOIN {name} t{number} ON t{number}.id = t0.id" for number in range(1, 7))
            assert spark.sql(f"SELECT count(*) FROM {name} t0 {joined}").collect() == [(70,)]
            time.sleep(0.2)
        assert largest() >= max(made, 8)
        found = wait_until(threads + FEW)
    assert found <= (threads + FEW, before + FEW)


@contextlib.contextmanager
def short_lived_pools(gateway: Any) -> Iterator[Callable[[], int]]:
    """Let the threads of the pools in which Spark plans exchanges end at once; yields how many there have been."""
    exchange, unit = gateway.jvm.org.apache.spark.sql.execution.exchange, gateway.jvm.java.util.concurrent.TimeUnit
    objects = [getattr(getattr(exchange, f"{kind}ExchangeExec$"), "MODULE$") for kind in ("Broadcast", "Shuffle")]
    pools = [each.executionContext().executor() for each in objects]
    kept = [pool.getKeepAliveTime(unit.MILLISECONDS) for pool in pools]
    try:
        for pool in pools:
            pool.setKeepAliveTime(20, unit.MILLISECONDS)
        yield lambda: sum(pool.getLargestPoolSize() for pool in pools)
    finally:
        for pool, milliseconds in zip(pools, kept, strict=True):
            pool.setKeepAliveTime(milliseconds, unit.MILLISECONDS)


STOPPED = """
    import sys, threading, time
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from pyspark.sql import SparkSession
    from weft.streams.read.relation import callback_connections
    from weft.streams.read.relation.live_view import create_relation_view
    from tests.streams.read.relation.planner import Files, rows
    from tests.streams.read.relation.test_callback_connections import short_lived_pools

    callback_connections.CHECK_SECONDS = 0.1
    files = Files(Path(sys.argv[2]) / "table")
    files.add(rows(0, 10))
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    gateway = spark.sparkContext._gateway
    create_relation_view(spark, "v", files)
    with short_lived_pools(gateway):
        print("found", spark.sql("SELECT count(*) FROM v a JOIN v b USING (id) JOIN v c USING (id)").first()[0])
        opened = threading.active_count()
        spark.stop()
        end = time.monotonic() + 240
        known = callback_connections.connections_of(gateway)
        while len(known._open) > 1 and time.monotonic() < end:
            time.sleep(0.1)
        print("left", len(known._open), threading.active_count() < opened)
"""


@pytest.mark.spark
@pytest.mark.timeout(660)
def test_a_stopped_session_leaves_the_connection_of_the_main_thread_alone(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(textwrap.dedent(STOPPED))
    root = str(Path(__file__).parents[4])
    command = [sys.executable, str(script), root, str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.splitlines() == ["found 10", "left 1 True"], done.stderr


def test_each_method_that_spark_calls_remembers_its_connection(jvm: Jvm) -> None:
    missing = [
        f"{kind.__name__}.{name}"
        for kind in callbacks(Callback)
        for interface in getattr(kind, "Java", Called.Java).implements
        for name in sorted(jvm.method_names(interface))
        if hasattr(kind, name) and not hasattr(getattr(kind, name), "__wrapped__")
    ]
    assert not missing, "not wrapped"


def callbacks(kind: type) -> list[type]:
    """All callbacks of weft."""
    for package in (weft.streams.catalog, weft.streams.read.relation):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return [found for each in kind.__subclasses__() for found in (each, *callbacks(each))]

"""Shared by the Spark tests: one small local session, and Kafka brokers, for the whole run.

embedded   always
real       Apache Kafka; marked `integration`; skipped, with the reason, if it is not available
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from tests.download_cache import Unavailable
from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.real_broker import RealBroker, start_real_broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the python3 on the PATH
    session = (
        SparkSession.builder.master("local[2]")
        .appName("weft-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        # Stopping a query inside `foreachBatch` makes Spark run a recursive regex over the error's text
        # (StreamExecution.PROXY_ERROR); on the default stack that overflows, and the query ends without its error.
        .config("spark.driver.extraJavaOptions", "-Xss4m")
        # A query that does not stop must fail the test instead of blocking it.
        .config("spark.sql.streaming.stopTimeout", "120s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # tests make queries fail on purpose, and each logs a page of Java
    yield session
    session.stop()


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays_cached() -> Iterator[None]:
    """Fail a file that leaves data cached: views keep their plan while Spark has any (`LiveView.stable_parts`)."""
    yield
    session = SparkSession.getActiveSession()
    if session is not None and not session._jsparkSession.sharedState().cacheManager().isEmpty():
        session.catalog.clearCache()
        pytest.fail("tests of this file left cached data in the shared session")


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[FaultyBroker]:
    """Shared by all tests: use a separate topic."""
    with FaultyBroker() as running:
        yield running


@pytest.fixture(scope="session")
def real_broker() -> Iterator[RealBroker]:
    """Shared by all tests: use a separate topic, and do not stop it."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(start_real_broker())
        except Unavailable as reason:
            pytest.skip(f"no real Kafka broker: {reason}")
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window, for the tests of one module; they skip if there is none."""
    # Most tests need neither a browser nor what drives it.
    from tests.streams.ui.browser import Unavailable as NoBrowser
    from tests.streams.ui.browser import chromium

    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(chromium())
        except NoBrowser as reason:
            pytest.skip(f"NO BROWSER: {reason}")
        yield found


@pytest.fixture(scope="session")
def broker(embedded_broker: FaultyBroker) -> FaultyBroker:
    """The broker of tests for which either will do; tests of the Kafka source run on both (`tests.streams.kafka`)."""
    return embedded_broker


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading and writing end of a pipe for a `Reporter`, which does not block when it is full."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    yield ends
    for end in ends:
        os.close(end)

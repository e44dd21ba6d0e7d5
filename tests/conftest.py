"""Markers and their enforcement, the order of the tests, and Hypothesis profiles.

pyproject.toml says what each marker means. Those that follow from a test itself (from its fixtures, or from Hypothesis)
are added here, so that they cannot be forgotten. A test that starts a JVM in another way needs an explicit marker:
without one it finds only a `java` that fails.

Hypothesis profiles:

quick     the default: seconds per test, a failure is printed without shrinking
fast      a few examples per test, for the fast loop
shrink    like quick, but a failure is shrunk first, which may take minutes
mutation  the same few examples in every run, for mutation testing of the kernel
deep      thousands of examples per test: ``pytest tests/storage/test_laws.py --hypothesis-profile=deep --timeout=0``
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests import durations
from tests.class_sharing import sharing_options

# An example is the history of a whole table: it is large, and slow on a busy machine.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
}
_WITHOUT_SHRINKING = [phase for phase in Phase if phase is not Phase.shrink]

settings.register_profile("quick", max_examples=20, phases=_WITHOUT_SHRINKING, **_COMMON)
settings.register_profile("fast", max_examples=5, phases=_WITHOUT_SHRINKING, **_COMMON)
settings.register_profile("mutation", max_examples=10, phases=_WITHOUT_SHRINKING, derandomize=True, **_COMMON)
settings.register_profile("shrink", max_examples=200, **_COMMON)
settings.register_profile("deep", max_examples=3_000, **_COMMON)
settings.load_profile("quick")

# The JVMs of Spark that tests start live for seconds or minutes. In that time the optimizing compiler takes more CPU
# than its code saves: 17 of 40 CPU seconds of the tests of planning.
if "SPARK_SUBMIT_OPTS" not in os.environ:  # the processes of pytest-xdist inherit it from the first one
    # A JVM that a test kills leaves its temporary folders behind.
    _jvm_folder = tempfile.mkdtemp(prefix="weft-tests-jvm-")
    atexit.register(shutil.rmtree, _jvm_folder, ignore_errors=True)
    _quick = f"{sharing_options()}-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_quick} -Djava.io.tmpdir={_jvm_folder}"

_MARKER_OF_FIXTURE = {"spark": "spark", "java": "models", "real_broker": "integration"}
_MAY_START_JAVA = ("spark", "models", "integration")
_NO_JAVA = """#!/bin/sh
# The command line asks for the version before it starts Spark, also where it starts none in the end.
if [ "$*" = -version ]; then echo 'a version "17" that runs nothing' >&2; exit; fi
echo "this test starts a JVM: mark it with one of {markers} (pyproject.toml says which)" >&2
exit 1
"""

_SEPARATE = ["test_more_schedules.py", "test_broken_implementations.py", "test_models.py"]
"""Files whose tests share nothing: started last, each wherever a process is free."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `tests.durations`."""
    group = parser.getgroup("durations")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.tsv")
    group.addoption("--at-most", type=float, metavar="SECONDS", help="leave out tests that were recorded as longer")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests if that is asked for, in each process of pytest-xdist."""
    if config.getoption("record_durations"):
        config.pluginmanager.register(durations.Recorder(writes=not hasattr(config, "workerinput")))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Add the markers that follow from the test itself, before pytest selects by marker; then put the longest files
    first, in the same order everywhere.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("laws")
        for name in getattr(item, "fixturenames", ()):
            if name in _MARKER_OF_FIXTURE:
                item.add_marker(_MARKER_OF_FIXTURE[name])
    seconds = config.getoption("at_most")
    if seconds is not None:
        longer = [item for item in items if not durations.is_quick(item, seconds)]
        config.hook.pytest_deselected(items=longer)
        left_out = {id(item) for item in longer}
        items[:] = [item for item in items if id(item) not in left_out]
    yield
    seconds_of_files = durations.wall_seconds_of_files(items)
    items.sort(key=lambda item: (_separate_place(item), -seconds_of_files[item.nodeid.partition("::")[0]]))


def _separate_place(item: pytest.Item) -> int:
    return _SEPARATE.index(item.path.name) + 1 if item.path.name in _SEPARATE else 0


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print CPU seconds; those of a JVM are in them if the test that started it has waited for it."""
    terminalreporter.write_line(f"{sum(os.times()[:4]):.0f} s of CPU in this process and those that have ended")


@pytest.hookimpl(optionalhook=True)  # mutation testing runs without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of ``--dist loadfile``, let the tests of some files run in different processes."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return nodeid if path.rpartition("/")[2] in _SEPARATE else path

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def _no_java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Java home whose `java` runs nothing and prints what is wrong."""
    home = tmp_path_factory.mktemp("no-java")
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_NO_JAVA.format(markers=", ".join(_MAY_START_JAVA)), encoding="utf-8")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _java_needs_a_marker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide Java from tests without a marker for it, and from every process that they start."""
    if any(request.node.get_closest_marker(marker) for marker in _MAY_START_JAVA):
        return
    home = request.getfixturevalue("_no_java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)

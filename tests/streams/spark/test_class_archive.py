"""The archive of Spark's classes: where it is, what invalidates it, and that a JVM uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.class_sharing import use_archive
from weft.storage.errors import NotFound, StoreUnavailable
from weft.streams.demo.train_classes import LIMIT_SECONDS, make_class_archive
from weft.streams.spark.class_archive import archive_path, find_archive

START_SECONDS = 600
JAVA = 'openjdk version "17.0.15" 2025-04-15'


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spark" / "jars"
    folder.mkdir(parents=True)
    (folder / "core.jar").write_bytes(b"core")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return folder


def test_another_java_or_spark_has_another_archive(jars: Path) -> None:
    paths = [archive_path(JAVA), archive_path(JAVA.replace("15", "16"))]
    (jars / "more.jar").write_bytes(b"more")
    paths.append(archive_path(JAVA))
    (jars / "core.jar").write_bytes(b"core of another version")
    paths.append(archive_path(JAVA))
    os.utime(jars / "core.jar", (1, 1))
    paths.append(archive_path(JAVA))
    assert len(set(paths)) == len(paths)
    assert archive_path(JAVA) == paths[-1]


@pytest.mark.usefixtures("jars")
def test_the_folder_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive_path(JAVA).parent == tmp_path / "cache"
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert archive_path(JAVA).parent == tmp_path / "caches" / "weft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert archive_path(JAVA).parent == tmp_path / ".cache" / "weft"


@pytest.mark.usefixtures("jars")
def test_a_user_without_a_home_has_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert find_archive(JAVA) is None
    with pytest.raises(NotFound, match="no folder for caches") as caught:
        archive_path(JAVA)
    assert caught.value.hint == "set WEFT_CACHE"


@pytest.mark.usefixtures("jars")
def test_it_is_used_only_if_it_is_there() -> None:
    assert find_archive(JAVA) is None
    archive_path(JAVA).parent.mkdir()
    archive_path(JAVA).write_bytes(b"classes")
    assert find_archive(JAVA) == archive_path(JAVA)
    assert find_archive("another") is None


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreUnavailable, match="cannot be written") as caught:
        make_class_archive()
    assert "WEFT_CACHE" in caught.value.hint


USES = """
import sys
from pathlib import Path
from weft.streams.spark.session import build_session
spark = build_session("weft test", {"spark.master": "local[1]"}, scratch=Path(sys.argv[1]))
jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print("maps", sys.argv[2] in Path(f"/proc/{jvm}/maps").read_text())
spark.stop()
"""


def check_a_session_maps(path: Path, scratch: Path) -> None:
    here = str(Path(__file__).resolve().parents[3])
    # Where tests run, it would name the archive that the test loop has made.
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", USES, str(scratch), str(path)],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
        env={**environment, "PYTHONPATH": here},
    )
    assert "maps True" in done.stdout, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_session_maps_the_archive_that_the_test_loop_has_made(tmp_path: Path) -> None:
    path = use_archive()
    assert path is not None, "`python -m tests.class_sharing` makes it"
    check_a_session_maps(path, tmp_path / "scratch")


# Nightly: to make one takes as long as many tests, and the test loop has made one by the same command.
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_SECONDS + START_SECONDS + 60)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_session_maps_an_archive_in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "a cache"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # a JVM that uses an archive makes none
    path = make_class_archive()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "nothing else is left"
    check_a_session_maps(path, tmp_path / "scratch")

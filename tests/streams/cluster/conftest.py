"""The packed environment of the cluster's executors."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.class_sharing import sharing_options
from weft.streams.spark.environment_archive import pack_environment


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed by the code of ``weft package``; not compressed, because it is only read on this machine.

    Every executor unpacks it, so it has only what weft itself needs, and S3: 0.4 GB of more than one. Test processes
    that run side by side share it.
    """
    here = tmp_path_factory.getbasetemp()
    folder = here.parent if "PYTEST_XDIST_WORKER" in os.environ else here
    output = folder / "weft-env.tar.gz"
    with (folder / "weft-env.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            left_out = [f"lib/*/site-packages/{name}{below}" for name in _unused() for below in ("", "/*")]
            left_out += ["*/tests/*", "lib/*/site-packages/pyarrow/include/*", "bin/weed", "bin/ruff", "share/*"]
            making = folder / "making-weft-env.tar.gz"
            pack_environment(making, exclude=left_out, compress_level=0).path.rename(output)
    return output


def _unused() -> set[str]:
    """Files and folders at the top of site-packages that belong only to packages that executors do not need."""
    needed, kept, unused = _needed("weft", "s3"), set[str](), set[str]()
    for found in importlib.metadata.distributions():
        tops = kept if canonicalize_name(found.name) in needed else unused
        tops.update(file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"})
    return unused - kept


def _needed(name: str, *extras: str) -> set[str]:
    """A package with some extras, and all that it requires here."""
    needed, waiting = set[tuple[str, frozenset[str]]](), [(canonicalize_name(name), frozenset(extras))]
    while waiting:
        wanted = waiting.pop()
        if wanted in needed:
            continue
        needed.add(wanted)
        for text in importlib.metadata.requires(wanted[0]) or ():
            required = Requirement(text)
            if required.marker is None or any(required.marker.evaluate({"extra": e}) for e in ("", *wanted[1])):
                waiting.append((canonicalize_name(required.name), frozenset(required.extras)))
    return {name for name, _ in needed}


@pytest.fixture
def on_executors(environment: Path) -> dict[str, str]:
    """Spark settings of a pipeline for small executors that have only what is sent to them."""
    return {
        "spark.archives": f"{environment}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"{sharing_options()}-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder

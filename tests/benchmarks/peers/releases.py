"""Which releases of `tests.lake_releases` the peers are, and how they are fetched.

A release that the registry of this machine does not have is replaced by the next one of its list, and the table says
so; without any of them the system is skipped.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.deploy.tools import python_packages
from tests.download_cache import Unavailable
from tests.lake_releases import DELTA, HUDI, ICEBERG, PAIMON, PAIMON_0_9, Release
from tests.maven import maven_jars

ROOT: Final = Path(__file__).resolve().parents[3]

RELEASES: Final[Mapping[str, Sequence[Release]]] = {
    "paimon": (PAIMON, PAIMON_0_9),
    "hudi": (HUDI,),
    "delta": (DELTA,),
    "iceberg": (ICEBERG,),
}
"""By the name of a peer, the newest first."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A system that can be started.

    Attributes:
        version: Of the system.
        spark: The version of Spark.
        python: The interpreter with its options.
        environment: Variables that the process needs besides those of this one.
        jars: For Spark's class path.
        missing: Why a newer release is not used, or empty.
    """

    version: str
    spark: str
    python: Sequence[str]
    environment: Mapping[str, str]
    jars: Sequence[str]
    missing: str = ""


def install(system: str, given: Path | None = None) -> Installed:
    """Fetch a system and its Spark, if no run before has.

    Args:
        system: Its name.
        given: A folder of jars to use instead of Maven's, for the newest release.

    Raises:
        Unavailable: No release can be fetched.
    """
    if system.startswith("weft"):
        environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        return Installed(_own_version(), pyspark.__version__, [sys.executable], environment, [])
    missing: list[str] = []
    for release in RELEASES[system]:
        try:
            found = _install(release, given)
        except Unavailable as reason:
            # What the package manager printed is long.
            missing.append(f"no {release.version}: {str(reason).partition(': ')[0]}")
            continue
        version, spark, environment, jars = found
        # Without the packages of this environment: its Spark is another one.
        return Installed(version, spark, [sys.executable, "-S", "-P"], environment, jars, "; ".join(missing))
    raise Unavailable("; ".join(missing))


def _install(release: Release, given: Path | None) -> tuple[str, str, dict[str, str], list[str]]:
    folder = given or maven_jars(release.folder, release.jars, alone=True)
    packages = python_packages(*release.spark)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
        "SPARK_HOME": str(packages / "pyspark"),
        "PYSPARK_PYTHON": sys.executable,
    }
    jars = sorted(str(jar) for jar in folder.glob("*.jar"))
    version = f"{release.version} (given jars)" if given else release.version
    return version, release.spark[0].partition("==")[2], environment, jars


def _own_version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])

"""Versions of the peers and of their Sparks, in one place, and where they are fetched from: PyPI and Maven.

The newest releases of 2026-11-23. A release that the registry of this machine does not have is replaced by the next
one of its list, and the table says so; without any of them the system is skipped. Everything is kept in the folder of
`tests.download_cache`; Maven compares checksums.
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
from tests.maven import maven_jars

ROOT: Final = Path(__file__).resolve().parents[3]

SPARK_3_5: Final = ("pyspark==3.5.9", "py4j==0.10.9.7")
SPARK_4_0: Final = ("pyspark==4.0.5", "py4j==0.10.9.9")
SPARK_4_1: Final = ("pyspark==4.1.4", "py4j==0.10.9.9")
SPARK_4_2: Final = ("pyspark==4.2.1", "py4j==0.10.9.9")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a peer.

    Attributes:
        version: Of the peer.
        spark: Packages of PyPI: pyspark and py4j.
        jars: Version by ``group:artifact``; all that are needed besides Spark's own.
    """

    version: str
    spark: tuple[str, ...]
    jars: Mapping[str, str]


RELEASES: Final[Mapping[str, Sequence[Release]]] = {
    "paimon": (
        Release("1.4.2", SPARK_4_0, {"org.apache.paimon:paimon-spark-4.0_2.13": "1.4.2"}),
        Release("0.9.0", SPARK_3_5, {"org.apache.paimon:paimon-spark-3.5": "0.9.0"}),
    ),
    "hudi": (Release("1.2.0", SPARK_3_5, {"org.apache.hudi:hudi-spark3.5-bundle_2.12": "1.2.0"}),),
    "delta": (
        Release("4.4.0", SPARK_4_2, {"io.delta:delta-spark_4.2_2.13": "4.4.0", "io.delta:delta-storage": "4.4.0"}),
    ),
    "iceberg": (Release("1.12.0", SPARK_4_1, {"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13": "1.12.0"}),),
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
            found = _install(system, release, given)
        except Unavailable as reason:
            # What the package manager printed is long.
            missing.append(f"no {release.version}: {str(reason).partition(': ')[0]}")
            continue
        version, spark, environment, jars = found
        # Without the packages of this environment: its Spark is another one.
        return Installed(version, spark, [sys.executable, "-S", "-P"], environment, jars, "; ".join(missing))
    raise Unavailable("; ".join(missing))


def _install(system: str, release: Release, given: Path | None) -> tuple[str, str, dict[str, str], list[str]]:
    folder = given or maven_jars(f"peer-{system}-{release.version}", release.jars, alone=True)
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

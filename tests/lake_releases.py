"""Releases of other table formats, and the Sparks that they need, which tests and benchmarks fetch from PyPI and Maven.

The only place that names their versions: the newest of 2026-11-23. Everything is kept in the folder of
`tests.download_cache`; Maven compares checksums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SPARK_3_5: Final = ("pyspark==3.5.9", "py4j==0.10.9.7")
SPARK_4_0: Final = ("pyspark==4.0.5", "py4j==0.10.9.9")
SPARK_4_1: Final = ("pyspark==4.1.4", "py4j==0.10.9.9")
SPARK_4_2: Final = ("pyspark==4.2.1", "py4j==0.10.9.9")


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a table format for one version of Spark.

    Attributes:
        version: Of the format.
        spark: Packages of PyPI: pyspark and py4j.
        jars: Version by ``group:artifact``; all that are needed besides Spark's own.
    """

    version: str
    spark: tuple[str, ...]
    jars: Mapping[str, str]

    @property
    def folder(self) -> str:
        """Name of the folder of the jars: the first artifact and its version."""
        artifact, version = next(iter(self.jars.items()))
        return f"{artifact.partition(':')[2]}-{version}-alone"


PAIMON: Final = Release("1.4.2", SPARK_4_0, {"org.apache.paimon:paimon-spark-4.0_2.13": "1.4.2"})
PAIMON_0_9: Final = Release("0.9.0", SPARK_3_5, {"org.apache.paimon:paimon-spark-3.5": "0.9.0"})
HUDI: Final = Release("1.2.0", SPARK_3_5, {"org.apache.hudi:hudi-spark3.5-bundle_2.12": "1.2.0"})
DELTA: Final = Release(
    "4.4.0", SPARK_4_2, {"io.delta:delta-spark_4.2_2.13": "4.4.0", "io.delta:delta-storage": "4.4.0"}
)
# Iceberg has no jar for Spark 4.2 yet, so what reads both formats in one session takes that of Delta for Spark 4.1.
DELTA_4_1: Final = Release(
    "4.4.0", SPARK_4_1, {"io.delta:delta-spark_4.1_2.13": "4.4.0", "io.delta:delta-storage": "4.4.0"}
)
ICEBERG: Final = Release("1.12.0", SPARK_4_1, {"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13": "1.12.0"})

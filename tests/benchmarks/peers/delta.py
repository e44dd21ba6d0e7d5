"""Delta Lake: ``MERGE INTO`` with deletion vectors, which its documents recommend for it, and ``OPTIMIZE``.

The table is not clustered: each batch has keys of the whole table, so clustering by the key would skip no file and
would make ``OPTIMIZE`` dearer. ``OPTIMIZE`` rewrites files of which more than 5 % of the rows are deleted, which after
these batches are all that have deletion vectors. ``VACUUM`` may delete what is younger than a week.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.system import System


class Delta(System):
    session_settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }

    @property
    def location(self) -> Path:
        return self.folder / self.name

    def create(self, *, concurrent: bool = False) -> None:
        self.spark.sql(
            f"CREATE TABLE {self.table} ({self.data.definition()}) USING delta LOCATION '{self.location}' "
            "TBLPROPERTIES ('delta.enableDeletionVectors'='true')"
        )

    def load(self, path: str) -> None:
        """In as many files as the others have buckets."""
        hint = f"/*+ REPARTITION({self.data.buckets}, {KEY}) */"
        self.spark.sql(f"INSERT INTO {self.table} SELECT {hint} {self.select_columns()} FROM parquet.`{path}`")

    def compact(self, *, everything: bool = True) -> None:
        self.spark.sql(f"OPTIMIZE {self.table}").collect()

    def clean(self) -> None:
        self.spark.sql(f"VACUUM {self.table} RETAIN 0 HOURS").collect()

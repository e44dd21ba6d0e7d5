"""Apache Iceberg: format version 3 with deletion vectors, merge-on-read, which its documents recommend for frequent
updates, and a table that is bucketed by the key.

``rewrite_data_files`` rewrites each file that has a delete; by default it would leave most as they are. Isolation is
serializable, the default.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.system import System


class Iceberg(System):
    session_settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "{folder}/iceberg",
    }

    @property
    def table(self) -> str:
        return f"ice.d.{self.name}"

    @property
    def location(self) -> Path:
        return self.folder / "iceberg" / "d" / self.name

    def create(self, *, concurrent: bool = False) -> None:
        modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("merge", "update", "delete"))
        self.spark.sql(
            f"CREATE TABLE {self.table} ({self.data.definition()}) USING iceberg "
            f"PARTITIONED BY (bucket({self.data.buckets}, {KEY})) "
            f"TBLPROPERTIES ('format-version'='3', 'write.parquet.compression-codec'='zstd', {modes})"
        )

    def load(self, path: str) -> None:
        self.spark.sql(f"INSERT INTO {self.table} SELECT {self.select_columns()} FROM parquet.`{path}`")

    def compact(self, *, everything: bool = True) -> None:
        options = "'delete-file-threshold', '1', 'min-input-files', '2', 'remove-dangling-deletes', 'true'"
        self.spark.sql(
            f"CALL ice.system.rewrite_data_files(table => 'd.{self.name}', options => map({options}))"
        ).collect()

    def clean(self) -> None:
        self.spark.sql(
            f"CALL ice.system.expire_snapshots(table => 'd.{self.name}', retain_last => 1, "
            "older_than => TIMESTAMP '2099-01-01 00:00:00')"
        ).collect()

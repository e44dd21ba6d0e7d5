"""Apache Hudi: a merge-on-read table with the bucket index, and ``MERGE INTO`` that writes partial updates.

Merge-on-read, partial updates and the simple bucket index are what its documents recommend for frequent updates of
some columns in all parts of a table. The merge mode is event-time ordering, the default of a table with an ordering
field, which they recommend for events that arrive late. Its value belongs to the row, not to a group: here it is the
moment of the event that is written, so what is newest for its group, but older than the row, loses. These are the
wrong rows. Commit-time ordering would let every late event win. With it, a ``MERGE`` whose condition compares the
moments of the group reports success and changes no row (1.2.0, 20,000 keys: ``ArrayIndexOutOfBoundsException`` in the
log for each row). What is left is a merger of one's own, in Java. The compaction is scheduled and run by itself, after
any number of commits (by default only after five).
Several writers use non-blocking concurrency control, which needs just this index and table type; they are in one
process, and so is their lock provider.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.system import System

_ORDERING: Final = "row_ts"


class Hudi(System):
    session_settings: ClassVar[dict[str, str]] = {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }

    @property
    def location(self) -> Path:
        return self.folder / self.name

    def create(self, *, concurrent: bool = False) -> None:
        options = {
            "type": "mor",
            "primaryKey": KEY,
            "orderingFields": _ORDERING,
            "hoodie.index.type": "BUCKET",
            "hoodie.index.bucket.engine": "SIMPLE",
            "hoodie.bucket.index.num.buckets": str(self.data.buckets),
            "hoodie.parquet.compression.codec": "zstd",
            "hoodie.compact.inline": "false",
            "hoodie.compact.inline.max.delta.commits": "1",
            "hoodie.clean.automatic": "false",
            "hoodie.spark.sql.insert.into.operation": "bulk_insert",
            "hoodie.spark.sql.merge.into.partial.updates": "true",
        }
        if concurrent:
            options |= {
                "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
                "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
                "hoodie.clean.failed.writes.policy": "LAZY",
            }
        for name, value in options.items():
            if name.startswith("hoodie."):
                self.spark.conf.set(name, value)
        properties = ", ".join(f"'{name}'='{value}'" for name, value in options.items())
        self.spark.sql(
            f"CREATE TABLE {self.table} ({self.data.definition()}, {_ORDERING} bigint) USING hudi "
            f"TBLPROPERTIES ({properties}) LOCATION '{self.location}'"
        )

    def load(self, path: str) -> None:
        moments = ", ".join(self.data.ordering(group) for group in self.data.groups)
        newest = f"greatest({moments}) {_ORDERING}"
        self.spark.sql(f"INSERT INTO {self.table} SELECT {self.select_columns()}, {newest} FROM parquet.`{path}`")

    def commit(self, path: str, group: str) -> None:
        """A partial update of keys that exist: Hudi's MERGE with an INSERT clause writes whole rows."""
        source = f"source_{self.name}_{group}"
        rows = self.spark.read.parquet(path)
        rows.withColumn(_ORDERING, rows[self.data.ordering(group)]).createOrReplaceTempView(source)
        columns = [*self.data.groups[group], _ORDERING]
        sets = ", ".join(f"t.{name} = s.{name}" for name in columns)
        self.spark.sql(
            f"MERGE INTO {self.table} t USING {source} s ON t.{KEY} = s.{KEY} WHEN MATCHED THEN UPDATE SET {sets}"
        )

    def compact(self, *, everything: bool = True) -> None:
        for step in ("schedule", "run"):
            self.spark.sql(f"CALL run_compaction(op => '{step}', table => '{self.table}')").collect()

    def clean(self) -> None:
        policy = "clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 1"
        self.spark.sql(f"CALL run_clean(table => '{self.table}', {policy})").collect()

    def refresh(self) -> None:
        self.spark.sql(f"REFRESH TABLE {self.table}")

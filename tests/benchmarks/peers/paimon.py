"""Apache Paimon: a primary-key table with the merge engine ``partial-update`` and a sequence group for each group.

That is Paimon's design for this very work. ``write-only`` with a compaction of its own is what its documents ask for
when several jobs write one table (*dedicated compaction*). Fixed buckets, Parquet (the default). Merge-on-read is the
default of this merge engine; its documents recommend merge-on-write for ``deduplicate`` tables.
*Its own policy* is ``compact_strategy => 'minor'``: universal compaction picks sorted runs.
Version 0.9 does not know the strategy: its compaction is always full.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.system import System

_WITHOUT_STRATEGY: Final = "0."


class Paimon(System):
    session_settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.paimon.warehouse": "file:{folder}/paimon",
    }
    own_policy = True

    @property
    def table(self) -> str:
        return f"paimon.d.{self.name}"

    @property
    def location(self) -> Path:
        return self.folder / "paimon" / "d.db" / self.name

    def create(self, *, concurrent: bool = False) -> None:
        options = {
            "primary-key": KEY,
            "bucket": str(self.data.buckets),
            "merge-engine": "partial-update",
            "file.format": "parquet",
            "write-only": "true",
        }
        for group, columns in self.data.groups.items():
            *values, ordering = columns
            options[f"fields.{ordering}.sequence-group"] = ",".join(values)
            assert ordering == self.data.ordering(group)
        properties = ", ".join(f"'{name}'='{value}'" for name, value in options.items())
        self.spark.sql("CREATE DATABASE IF NOT EXISTS paimon.d")
        self.spark.sql(f"CREATE TABLE {self.table} ({self.data.definition()}) TBLPROPERTIES ({properties})")

    def load(self, path: str) -> None:
        self.spark.sql(f"INSERT INTO {self.table} SELECT {self.select_columns()} FROM parquet.`{path}`")
        self.compact()

    def commit(self, path: str, group: str) -> None:
        """Columns of other groups are NULL, which changes nothing of them."""
        given = {KEY, *self.data.groups[group]}
        if self.version.startswith(_WITHOUT_STRATEGY):  # nor does it accept a list of columns
            values = ", ".join(
                name if name in given else f"CAST(NULL AS {kind}) {name}" for name, kind in self.data.columns().items()
            )
            self.spark.sql(f"INSERT INTO {self.table} SELECT {values} FROM parquet.`{path}`")
            return
        names = ", ".join([KEY, *self.data.groups[group]])
        self.spark.sql(f"INSERT INTO {self.table} ({names}) SELECT {names} FROM parquet.`{path}`")

    def compact(self, *, everything: bool = True) -> None:
        strategy = f", compact_strategy => '{'full' if everything else 'minor'}'"
        if self.version.startswith(_WITHOUT_STRATEGY):
            strategy = ""
        self.spark.sql(f"CALL paimon.sys.compact(table => 'd.{self.name}'{strategy})").collect()

    def clean(self) -> None:
        kept = "retain_max => 1, retain_min => 1, older_than => '2099-01-01 00:00:00'"
        self.spark.sql(f"CALL paimon.sys.expire_snapshots(table => 'd.{self.name}', {kept})").collect()

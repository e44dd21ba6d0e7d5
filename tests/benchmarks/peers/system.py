"""What every measured table can do: a subclass for each format."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.benchmarks.peers.dataset import KEY, Dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class System(ABC):
    """One table of a format.

    Attributes:
        session_settings: Of the Spark session; ``{folder}`` is the folder of the process.
        own_policy: Whether `compact` knows a policy of the format that decides what is due.
    """

    session_settings: ClassVar[dict[str, str]] = {}
    own_policy: ClassVar[bool] = False

    def __init__(self, spark: SparkSession, folder: Path, data: Dataset, name: str, version: str) -> None:
        """A table that does not exist yet.

        Args:
            spark: The session, with `session_settings`.
            folder: Of the process.
            data: What the table gets.
            name: Of the table, in SQL.
            version: Of the system.
        """
        self.spark, self.folder, self.data, self.name, self.version = spark, folder, data, name, version

    @property
    def table(self) -> str:
        """The table's name in a query."""
        return self.name

    @property
    @abstractmethod
    def location(self) -> Path:
        """Folder of all files of the table."""

    @abstractmethod
    def create(self, *, concurrent: bool = False) -> None:
        """Create the table; ``concurrent``: for several writers at the same time."""

    @abstractmethod
    def load(self, path: str) -> None:
        """Fill the table, until a query of it costs no merging."""

    def commit(self, path: str, group: str) -> None:
        """Commit new events of one group: of each key the newest one wins. By default ``MERGE INTO``."""
        columns = list(self.data.groups[group])
        source = f"source_{self.name}_{group}"
        self.spark.read.parquet(path).createOrReplaceTempView(source)
        names = ", ".join([KEY, *columns])
        values = ", ".join(f"s.{name}" for name in [KEY, *columns])
        moment = self.data.ordering(group)
        self.spark.sql(
            f"MERGE INTO {self.table} t USING {source} s ON t.{KEY} = s.{KEY} "
            f"WHEN MATCHED AND (t.{moment} IS NULL OR s.{moment} >= t.{moment}) "
            f"THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )

    @abstractmethod
    def compact(self, *, everything: bool = True) -> None:
        """Compact until reads merge nothing; or what the format's policy says, if it has one."""

    @abstractmethod
    def clean(self) -> None:
        """Delete files that only older states of the table need."""

    def refresh(self) -> None:
        """Make sure that the next query sees the newest commit."""
        return

    def stored_files(self) -> dict[str, int]:
        """Bytes by path of all files of the table, with its metadata."""
        return {
            (path := os.path.join(root, name)): os.path.getsize(path)  # noqa: PTH118, PTH202 - there are many
            for root, _, names in os.walk(self.location)
            for name in names
        }

    def stored_bytes(self) -> int:
        return sum(self.stored_files().values())

    def select_columns(self) -> str:
        """All columns in the order of the table, for an ``INSERT ... SELECT``."""
        return ", ".join(self.data.columns())

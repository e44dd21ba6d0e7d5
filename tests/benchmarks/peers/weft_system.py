"""weft, as its README says: `weft.write_batch` for each batch, a view, and `weft.compact`.

The load is a batch of a stream with all groups, and a compaction. *Its own policy* is the default `DuePolicy`, which
``weft compact --due`` and pipelines use.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import weft
from tests.benchmarks.peers.dataset import KEY
from tests.benchmarks.peers.system import System
from weft import DuePolicy, Table


class Weft(System):
    own_policy = True
    overlays = False

    @property
    def location(self) -> Path:
        return self.folder / self.name

    def create(self, *, concurrent: bool = False) -> None:
        groups = self.data.groups
        Table.create(
            self.location,
            {
                "key": [KEY],
                "buckets": self.data.buckets,
                "columns": self.data.columns(),
                "groups": {
                    group: {"columns": list(columns), "ordering": [self.data.ordering(group)]}
                    for group, columns in groups.items()
                },
                "streams": {"load": {"groups": list(groups)}} | {group: {"groups": [group]} for group in groups},
                "overlays": self.overlays,
            },
        )

    def load(self, path: str) -> None:
        weft.write_batch(self.spark.read.parquet(path), str(self.location), "load")
        self.compact()
        weft.create_view(self.spark, str(self.location), self.table)

    def commit(self, path: str, group: str) -> None:
        weft.write_batch(self.spark.read.parquet(path), str(self.location), group)

    def compact(self, *, everything: bool = True) -> None:
        weft.compact(self.spark, str(self.location), None if everything else DuePolicy())

    def clean(self) -> None:
        Table.open(self.location).clean(dt.timedelta(0))


class WeftOverlays(Weft):
    """A compaction may write only the column groups that changed."""

    overlays = True

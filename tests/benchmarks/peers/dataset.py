"""What a measured process is given: where the inputs are, and what columns they have. Needs nothing but Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

KEY: Final = "k"
_FILE: Final = "dataset.json"


@dataclass(frozen=True, slots=True)
class Batch:
    """New events of one column group, to be committed. Those of one round may be committed at the same time."""

    round: int
    group: str
    path: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs and their right result, as Parquet files.

    Attributes:
        folder: Of all files; paths are relative to it.
        keys: Number of different keys, which are numbers.
        buckets: Number of file groups that a table should have.
        groups: Spark's type by column, by group. The last column of a group orders it.
        batches: In the order in which they are committed after the load.
    """

    folder: Path
    keys: int
    buckets: int
    groups: Mapping[str, Mapping[str, str]]
    batches: Sequence[Batch]

    @property
    def load(self) -> str:
        """Folder of the first load: a row of all groups for each key."""
        return str(self.folder / "load")

    @property
    def oracle(self) -> str:
        """Folder of the rows that the table must have at the end."""
        return str(self.folder / "oracle")

    def path(self, batch: Batch) -> str:
        return str(self.folder / batch.path)

    def columns(self) -> dict[str, str]:
        """Spark's type by column; the key comes first."""
        return {KEY: "bigint"} | {name: kind for group in self.groups.values() for name, kind in group.items()}

    def ordering(self, group: str) -> str:
        return list(self.groups[group])[-1]

    def definition(self) -> str:
        """The columns as in ``CREATE TABLE``."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns().items())

    def rounds(self) -> Iterator[list[Batch]]:
        """The batches of each round."""
        for number in sorted({batch.round for batch in self.batches}):
            yield [batch for batch in self.batches if batch.round == number]

    def numbers(self, group: str) -> list[str]:
        """Up to two columns of a group with numbers, for sums: without the ordering."""
        kinds = self.groups[group].items()
        return [name for name, kind in kinds if kind != "string" and name != self.ordering(group)][:2]

    def save(self) -> None:
        """Written last: a folder with this file is complete."""
        content = asdict(self) | {"folder": None}
        (self.folder / _FILE).write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """The dataset in a folder, if it is complete."""
        file = folder / _FILE
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        content |= {"folder": folder, "batches": [Batch(**batch) for batch in content["batches"]]}
        return cls(**content)

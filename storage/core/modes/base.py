"""Interface of merge modes, and their input. MERGE.md describes each mode.

A *register* is the merge state of one key in one group: its values, its arrival (non-null exactly when the group is
present) and the further state of its mode. Registers merge associatively and commutatively (PROTOCOL.md, S13), and
each event is merged exactly once (PROTOCOL.md, S11), so a compaction at any time changes no read (MERGE.md, M3).

Code outside `weft.storage.core.modes` does not distinguish modes by name. It uses the flags and methods of `MergeMode`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector, Mask
from weft.storage.core.model import Column, Group

Merger = Callable[[pa.Table, npt.NDArray[np.int64]], pa.Table]
"""(rows, offsets) -> one row per key. Key i has rows ``offsets[i]`` to ``offsets[i + 1]`` (MERGE.md, "Custom")."""

Mergers = Mapping[str, Merger]
"""Custom mergers by their name in the configuration, ``module:function``."""

NO_MERGERS: Final[Mergers] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupEvents:
    """Events that touch one group, in (arrival, position) order.

    Attributes:
        keys: The key of each event, unsorted.
        arrival: int64, one per event.
        op: int8 `weft.storage.core.model.Op`, one per event.
        ordering: The group's ordering columns.
        values: The requested columns among the group's other columns; NULL where a batch omitted the column.
        supplied: Mask of the NULLs that are values, by value column. A column that is missing here has no such NULL.
    """

    keys: KeyVector
    arrival: pa.Array
    op: pa.Array
    ordering: Arrays
    values: Arrays
    supplied: Mapping[str, Mask]


@dataclass(frozen=True, slots=True)
class Registers:
    """One register per key; keys are sorted and distinct, ``columns`` are named as in a slice."""

    keys: KeyVector
    columns: Arrays

    def __len__(self) -> int:
        return len(self.keys)


class MergeMode(ABC):
    """A merge mode; stateless.

    Attributes:
        name: Name in the configuration, and in the table's feature ``merge-<name>``.
        accepts_partial: A batch may have only some of the group's columns, and may mark with ``_supplied`` that a NULL
            is a value.
        replaces: A register with a larger first ordering value replaces an older one completely, so the older one need
            not be read.
        retracts: The group gets RETRACT events (update-before rows), and a delete subtracts values instead of making
            the group absent.
        may_hide_upsert: A group may be absent although its newest event is an upsert, so a reader must decide for every
            row whether it is visible.
        takes_functions: The configuration names a function for every value column.
        runs_merger: A function of the user merges; a process must allow and load it.
        takes_state: The configuration declares state columns.
        frozen_columns: No column of the group can be added or widened later.
        null_if_added_later: Rows that were written before a column without a default was added show NULL in it, so
            `renew` is not needed.
        chooses_values: A column of a merged register has the value of one of the registers, or NULL.
        may_overflow: An exact value may not fit its column, see `overflows`.
    """

    name: ClassVar[str]
    accepts_partial: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    retracts: ClassVar[bool] = False
    may_hide_upsert: ClassVar[bool] = False
    takes_functions: ClassVar[bool] = False
    runs_merger: ClassVar[bool] = False
    takes_state: ClassVar[bool] = False
    frozen_columns: ClassVar[bool] = False
    null_if_added_later: ClassVar[bool] = True
    chooses_values: ClassVar[bool] = False
    may_overflow: ClassVar[bool] = False

    def matches(self, merge: str) -> bool:
        """Whether ``merge``, as in the configuration of a group, names this mode."""
        return merge == self.name

    @property
    def spelling(self) -> str:
        """The text that users write as ``merge``."""
        return self.name

    @property
    def known_features(self) -> frozenset[str]:
        """The reader features of the mode that this version supports."""
        return frozenset({f"merge-{self.name}"})

    def features(self, group: Group) -> frozenset[str]:
        """The reader features that a table with this group needs."""
        return frozenset({f"merge-{self.name}"})

    def in_commit_order(self, group: Group) -> bool:
        """Whether the order of commits decides the values of a row, not only between equal ordering values."""
        return not group.ordering

    def with_merger(self, merger: Merger | None) -> MergeMode:
        """This mode with the merger of the user, which is None if this process has not loaded it."""
        return self

    @abstractmethod
    def state(self, group: Group, columns: Mapping[str, Column]) -> Mapping[str, pa.DataType]:
        """Hidden slice columns of the group, arrival first; part of the format, never reordered."""

    @abstractmethod
    def reads(self, group: Group, columns: Mapping[str, Column], values: Collection[str]) -> tuple[str, ...]:
        """Slice columns of an older register that `merge` needs to merge these value columns."""

    @abstractmethod
    def collapse(self, group: Group, columns: Mapping[str, Column], events: GroupEvents) -> Registers:
        """Merge the events of every key to one register."""

    @abstractmethod
    def merge(
        self, group: Group, columns: Mapping[str, Column], new_keys: KeyVector, old: Arrays, new: Arrays
    ) -> tuple[Mask, Arrays]:
        """Merge registers row by row.

        Args:
            group: The group that both belong to.
            columns: The table's columns by name.
            new_keys: Keys of the n rows.
            old: The columns of `reads`, n rows; a register that does not exist is NULL in all hidden columns.
            new: Columns of `Registers`, n rows with the same keys.

        Returns:
            Mask of the rows that differ from ``old``, and the merged columns of those rows.
        """

    def renewal_reads(
        self,
        group: Group,
        columns: Mapping[str, Column],
        changed: Collection[str],
        requested: Collection[str],
    ) -> tuple[str, ...]:
        """Slice columns that `renew` needs to produce any of ``requested``; empty if it has nothing to do.

        Args:
            group: The group.
            columns: The table's columns by name.
            changed: Columns of the group that were added or changed since the registers were written.
            requested: Slice columns, of any groups.
        """
        return ()

    def renew(
        self,
        group: Group,
        columns: Mapping[str, Column],
        added: Collection[str],
        rows: Arrays,
    ) -> Arrays:
        """Adapt older registers to the current schema; returns the changed columns, except added columns that are NULL.

        Args:
            group: The group in the current schema.
            columns: The table's columns by name.
            added: Value columns of the group that the registers do not have.
            rows: The columns of `renewal_reads`, with their current types except for fixed-size binaries; NULL where
                missing.
        """
        return {}

    def overflows(self, group: Group, columns: Mapping[str, Column], rows: Arrays) -> dict[int, int]:
        """Number of rows of a slice, by column id, in which the exact value does not fit the type of the column."""
        return {}

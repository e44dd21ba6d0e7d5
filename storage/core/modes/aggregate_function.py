"""Interface of aggregate functions, and their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import Mask
from weft.storage.core.model import Column, Function, Group
from weft.storage.core.modes.versions import History

Takes = Literal["values", "elements", "anything"]


class Refusal(NamedTuple):
    """A reason why a column cannot have a function, and what to do instead."""

    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Context:
    """One column of an aggregate group.

    Attributes:
        group: The group.
        column: The column.
        ordering: The group's ordering columns as schema columns.
        function: Its function, with options.
    """

    group: Group
    column: Column
    ordering: tuple[Column, ...]
    function: Function

    def hidden(self, what: str) -> str:
        """Name of a hidden slice column of this column."""
        return names.column_state(self.column.id, what)

    @property
    def version_fields(self) -> list[pa.Field]:
        """Fields of one version: its ordering values and its arrival."""
        return [
            *(pa.field(f"o{i}", column.type) for i, column in enumerate(self.ordering)),
            pa.field("arrival", pa.int64()),
        ]


@dataclass(frozen=True, slots=True)
class ColumnEvents:
    """Events of one column, sorted by (key, version). All arrays are in that order.

    Attributes:
        history: Keys, and the order of their events.
        values: The column's values.
        retracts: Mask of the events whose value is subtracted.
        ordering: The values of each ordering column.
        arrival: The arrival of each event, int64.
    """

    history: History
    values: pa.Array
    retracts: Mask
    ordering: list[pa.Array]
    arrival: pa.Array

    @property
    def valid(self) -> Mask:
        """Mask of the values that are not NULL."""
        return np.asarray(self.values.is_valid())


class AggregateFunction(ABC):
    """An aggregate function; stateless. By default its state is the value that it shows, without hidden columns.

    Attributes:
        retractable: Whether a delete can subtract values.
        ordered: Whether the result depends on the order of the events.
        may_overflow: Whether a result may not fit the column; its first hidden column is then non-null.
        takes: Input in batches: values of the column's type, elements of it, or values of any type.
        has_delimiter: Whether the function has the option ``delimiter``.
    """

    retractable: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    may_overflow: ClassVar[bool] = False

    @property
    def takes(self) -> Takes:
        return "values"

    @property
    def has_delimiter(self) -> bool:
        return False

    def refuses(self, column: pa.DataType) -> Refusal | None:
        """Why a column of this type cannot have the function; None if it can."""
        return None

    def state(self, context: Context) -> Mapping[str, pa.DataType]:
        """Hidden slice columns besides the visible one; part of the format, never reordered."""
        return {}

    @abstractmethod
    def collapse(self, context: Context, events: ColumnEvents) -> dict[str, pa.Array]:
        """State of every key, by column: hidden columns, and the visible one if it is part of the state."""

    @abstractmethod
    def merge(self, context: Context, old: Arrays, new: Arrays) -> dict[str, pa.Array]:
        """Merge states row by row; ``old`` and ``new`` have the columns of `collapse`, NULL for no state."""

    def show(self, context: Context, state: Arrays) -> pa.Array:
        """The value to show to readers."""
        return state[context.column.name]

    def state_without_values(self, context: Context, present: pa.Array) -> dict[str, pa.Array]:
        """State of keys whose events all came before the column was added, if it is not NULL.

        Args:
            context: The column.
            present: Boolean per key: whether the group is present.
        """
        return {}

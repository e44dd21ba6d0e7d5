"""A process that dies at any request that changes the store: before it takes effect, or before its answer comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tests.faulty_store import Fault, FaultyStore

_CHANGES: Final = ("put", "put_if_absent", "delete", "open_output")
Change = tuple[str, str]
"""A call, and the folder of its object: that does not depend on random names."""


class Died(BaseException):
    """The process has ended here."""


@dataclass(frozen=True)
class Death:
    """The death of a process at one of its changes, which is the one after ``earlier`` equal ones."""

    number: int
    change: Change
    earlier: int
    when: Literal["before", "after"]

    def __str__(self) -> str:
        return f"{self.number}-{self.when}"

    def happens_in(self, store: FaultyStore) -> FaultyStore:
        """The same store, in which it happens."""
        store.faults.append(Fault(*self.change, times=self.earlier, action=lambda: None))
        store.faults.append(Fault(*self.change, self.when, error=Died()))
        return store


def changes(watched: FaultyStore) -> list[Change]:
    """The changes that a store was asked for."""
    return [(call, path.rsplit("/", 1)[0] + "/") for call, path in watched.calls if call in _CHANGES]


def deaths(made: list[Change]) -> Iterator[Death]:
    """All deaths of a process that makes some changes."""
    for number, change in enumerate(made):
        yield Death(number, change, made[:number].count(change), "before")
        yield Death(number, change, made[:number].count(change), "after")

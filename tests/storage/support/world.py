"""A real table and the oracle: runs histories of `tests.strategies` on both, and compares the results."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import pyarrow as pa

from tests.elsewhere import elsewhere
from tests.oracle import Oracle
from tests.strategies import Append, Compact, Config, Fold, Remember, Step, input_type
from weft.storage import Table, mergers
from weft.storage.core.types import parse_type
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.write.writer import Commit, Writer

_EXACT = decimal.Context(prec=100)  # the default context rounds values of a decimal(38,s)
Answer = dict[tuple[Any, ...], dict[str, Any]]


class World:
    """Runs steps. Writers stay open between appends, as those of live streams do."""

    def __init__(self, config: Config, uri: str | None = None) -> None:
        self.config = config
        self.uri = uri or f"memory://world/{uuid.uuid4().hex}"
        mergers.allow("tests.mergers")
        self.table = Table.create(self.uri, config)
        self.oracle = Oracle(config)
        self.arrival = 0
        self.remembered: list[tuple[str, Answer]] = []
        self._rounds = 0
        self._writers: dict[str, Writer] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            match step:
                case Append():
                    self.append(step)
                case Compact():
                    self.compact(step)
                case Fold():
                    self.table.fold(execute=self._place())
                case Remember():
                    self.remember()

    def append(self, append: Append, batch: tuple[str, int] | None = None) -> Commit:
        commit = self.writer(append).append(to_arrow(self.config, append.rows, append.stream), batch=batch)
        if not commit.replayed:
            self.arrival += 1
            self.oracle.append(append.stream, append.rows, self.arrival)
        return commit

    def writer(self, append: Append) -> Writer:
        if append.lane not in self._writers:
            self.reopen(append)
        return self._writers[append.lane]

    def reopen(self, append: Append) -> None:
        """A new writer of the lane, which fences the previous one."""
        writer = Table.open(self.uri).writer(append.stream, lane=append.lane)
        self._writers[append.lane] = self._stack.enter_context(writer)

    def compact(self, step: Compact) -> None:
        groups = [file_slice.group for file_slice in self.table.snapshot().slices]
        chosen = {group for number, group in enumerate(groups) if number % 8 in step.chosen}
        self.table.compact(only=lambda file_slice: file_slice.group in chosen, execute=self._place())

    def _place(self) -> Execute:
        """Here and elsewhere in turns: where the tasks of a service run makes no difference."""
        self._rounds += 1
        return elsewhere if self._rounds % 2 else one_by_one

    def remember(self) -> None:
        self.check_remembered()
        snapshot = self.table.snapshot()
        self.remembered.append((str(snapshot.cut), self.expected()))

    def check_remembered(self) -> None:
        """S9: earlier snapshots still give the same rows, after any appends and compactions."""
        for cut, answer in self.remembered:
            for table in (self.table, Table.open(self.uri)):
                assert self.answer(table.snapshot(cut).to_arrow()) == answer, cut

    def expected(self, require: Iterable[str] = ()) -> Answer:
        return {
            canonical(key): {name: canonical(value) for name, value in row.items()}
            for key, row in self.oracle.read(require).items()
        }

    def answer(self, table: pa.Table) -> Answer:
        """All rows by key; a duplicate key is an error."""
        result: Answer = {}
        for row in table.to_pylist():
            key = canonical(tuple(row[name] for name in self.config["key"]))
            assert key not in result, f"key {key} comes twice"
            result[key] = {name: canonical(value) for name, value in row.items()}
        return result

    def check(self) -> None:
        """Check that the newest snapshot, of the open table and of one opened again, equals the oracle."""
        expected = self.expected()
        for table in (self.table, Table.open(self.uri)):
            snapshot = table.snapshot()
            got = snapshot.to_arrow()
            assert got.schema == snapshot.schema
            got.validate(full=True)
            assert self.answer(got) == expected
        self.check_remembered()


def bag(table: pa.Table) -> list[str]:
    """Rows in a defined order, for results without keys."""
    return sorted(repr(canonical(tuple(row.items()))) for row in table.to_pylist())


def expected_bag(answer: Answer, columns: Sequence[str]) -> list[str]:
    return sorted(repr(tuple((name, row[name]) for name in columns)) for row in answer.values())


def snapshot_bag(snapshot: Snapshot, columns: Sequence[str], **arguments: Any) -> list[str]:
    return bag(snapshot.to_arrow(list(columns), **arguments))


def canonical(value: Any) -> Any:
    """A value that can be compared: NaN equals itself, containers are tuples, decimals have no trailing zeros."""
    match value:
        case float():
            # -0.0 in an ordering column is stored as 0.0; the two are equal elsewhere.
            return "NaN" if math.isnan(value) else value + 0.0
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        case decimal.Decimal():
            return value.normalize(_EXACT)
        case list() | tuple():
            return tuple(canonical(item) for item in value)
        case Mapping():
            return tuple((name, canonical(item)) for name, item in value.items())
    return value


def to_arrow(config: Config, rows: Sequence[Mapping[str, Any]], stream: str) -> pa.Table:
    """Rows as a batch with the table's types; without rows, a batch with the stream's columns."""
    columns = set(rows[0]) if rows else {c for g in config["streams"][stream]["groups"] for c in _columns(config, g)}
    names = [*(name for name in config["columns"] if name in columns or name in config["key"])]
    table = {name: pa.array([row[name] for row in rows], parse_type(input_type(config, name))) for name in names}
    for name, arrow_type in (("_op", pa.string()), ("_supplied", pa.list_(pa.string()))):
        if name in columns:
            table[name] = pa.array([row[name] for row in rows], arrow_type)
    return pa.table(table)


def _columns(config: Config, group: str) -> list[str]:
    return config["groups"][group]["columns"]

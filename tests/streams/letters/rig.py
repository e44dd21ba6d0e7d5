"""A table whose sums show how often a message was stored, dead letters of its stream, and replays of them.

A message is ``{"id": 1, "n": 1}``; the table shows the sum of ``n`` by id. So a message that was stored twice shows 2.
The value of a bad message is ``{"id": 1, "n": 1, "bad": true}``: it is a dead letter until the pipeline accepts it.
Everything is the real code, except that messages are decoded here instead of by Spark.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tests.faulty_store import FaultyStore
from weft import Table
from weft.storage.clock import Stamps, SystemClock
from weft.storage.core.names import Path as StorePath
from weft.storage.environment import Environment
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket
from weft.streams.letters.letter_files import default_folder, read_letters
from weft.streams.letters.letter_folder import LetterFolder, State
from weft.streams.letters.plans import Plan
from weft.streams.write.dead_letter import SOURCE, DeadLetters
from weft.streams.write.replay import ReplayResult, Run, replay
from weft.streams.write.replay_frame import message_of
from weft.streams.write.sink_task import TaskReport, write_task

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "n": "bigint", "at": "bigint"},
    "groups": {"g": {"columns": ["n", "at"], "merge": "aggregate", "functions": {"n": "sum", "at": "max"}}},
    "streams": {"s": {"groups": ["g"], "on_delete": "ignore"}},
}

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SOURCE_TYPE = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("value", pa.binary()),
        pa.field("schema_id", pa.int32()),
        pa.field("reason", pa.string()),
    ]
)


class Killed(BaseException):
    """The process is dead: it does nothing any more."""


class MomentStore(FaultyStore):
    """Passes calls on. At one moment it dies, or lets others work; a moment is before or after a call that changes."""

    def __init__(self, inner: ObjectStore, moments: Moments) -> None:
        super().__init__(inner)
        self._moments = moments

    def _call(self, call: str, path: StorePath, run: Callable[[], Any]) -> Any:
        if call not in {"put_if_absent", "put", "delete"}:
            self._moments.check()
            return run()
        self._moments.reached(f"before {call} {path}")
        result = run()
        self._moments.reached(f"after {call} {path}")
        return result

    @contextlib.contextmanager
    def open_output(self, path: StorePath) -> Iterator[BinaryIO]:
        self._moments.reached(f"before writing {path}")
        with self.inner.open_output(path) as file:
            yield file
            self._moments.reached(f"before closing {path}")
        self._moments.reached(f"after writing {path}")


@dataclass
class Moments:
    """Counts the moments of a process, and does something at one of them.

    Attributes:
        at: Number of the moment, from 1.
        action: What others do then; None: the process dies.
        what: The moment that was reached.
    """

    at: int
    action: Callable[[], None] | None = None
    what: str = ""
    _count: int = 0
    _dead: bool = field(default=False)

    def check(self) -> None:
        if self._dead:
            raise Killed

    def reached(self, what: str) -> None:
        self.check()
        self._count += 1
        if self._count != self.at:
            return
        self.what = what
        if self.action is not None:
            self.action()
        else:
            self._dead = True
            raise Killed


@dataclass
class Place:
    """A table in a folder, and the dead letters of its stream ``s``.

    Attributes:
        folder: The folder.
        batches: Number of batches that the live writer has begun.
        cuts: The snapshot after each of them.
    """

    folder: Path
    batches: int = 0
    cuts: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, folder: Path) -> Place:
        folder.mkdir(parents=True)
        place = cls(folder)
        Table.create(place.uri, CONFIG)
        return place

    @property
    def uri(self) -> str:
        return str(self.folder / "table")

    @property
    def letters_uri(self) -> str:
        return default_folder(self.uri, "s")

    def table(self, moments: Moments | None = None) -> Table:
        store: ObjectStore = open_store(self.uri)
        if moments is not None:
            store = MomentStore(store, moments)
        return Table(Environment(store, SystemClock()), Stamps())

    def letters(self, moments: Moments | None = None) -> LetterFolder:
        store: ObjectStore = open_store(self.letters_uri)
        if moments is not None:
            store = MomentStore(store, moments)
        return LetterFolder.of(store, "s", self.table(), None)

    def write(self, *messages: dict[str, Any], query_id: str = "q", commit: bool = True) -> None:
        """A batch of the live writer. Bad messages become dead letters."""
        number, table = self.batches, self.table()
        with table.writer("s", query_id=query_id, takeover=True) as writer:
            last = writer.last_batch(query_id)
            ticket = writer.begin((query_id, 0 if last is None else last + 1))
            assert isinstance(ticket, WriteTicket)
            assert ticket.batch is not None
            letters = DeadLetters(open_store(self.letters_uri), query_id, ticket.batch[1], "s", "s")
            offsets = range(number * 100, number * 100 + len(messages))
            rows = [
                {"topic": "t", "partition": 0, "offset": offset, "timestamp": 1_000 + offset, "value": encode(message)}
                for offset, message in zip(offsets, messages, strict=True)
            ]
            reports = write_messages(rows, ticket, letters, accepts=())
            letters.discard_others({report.task for report in reports if report.letters})
            if commit:
                writer.commit(ticket, [report.written for report in reports])
        self.batches += 1
        self.cuts.append(str(self.table().snapshot().cut))

    def replay(self, moments: Moments | None = None, accepts: Collection[int] = range(100)) -> list[ReplayResult]:
        """Replay the letters with a pipeline that accepts bad messages of some ids."""
        folder = self.letters(moments)
        return replay(folder, self.table(moments), "s", run_of(folder.store, accepts))

    def sums(self) -> dict[int, int]:
        rows = self.table().snapshot().to_arrow(["id", "n"]).to_pylist()
        return {row["id"]: row["n"] for row in rows}

    def waiting(self) -> list[int]:
        """Ids of the letters that wait, one item a letter."""
        return sorted(self.ids(State.WAITING))

    def ids(self, *states: State) -> list[int]:
        found = self.letters().survey().chosen(*states)
        return [json.loads(letter.content["value"])["id"] for letter in found]


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def bad(key: int) -> dict[str, Any]:
    return {"id": key, "n": 1, "bad": True}


def good(key: int) -> dict[str, Any]:
    return {"id": key, "n": 1}


def run_of(store: ObjectStore, accepts: Collection[int]) -> Run:
    """Writes the letters of a plan, as tasks of Spark would."""

    def run(plan: Plan, ticket: WriteTicket, letters: DeadLetters) -> Sequence[TaskReport]:
        found = [letter for file in plan.letters for letter in read_letters(store, file) if plan.has(file, letter.line)]
        return write_messages([message_of(letter) for letter in found], ticket, letters, accepts)

    return run


def write_messages(
    messages: Iterable[dict[str, Any]], ticket: WriteTicket, letters: DeadLetters, accepts: Collection[int]
) -> list[TaskReport]:
    rows: list[dict[str, Any]] = []
    for message in messages:
        value = json.loads(message["value"])
        reason = "it is bad" if value.get("bad") and value["id"] not in accepts else None
        time = message["timestamp"]
        time_ms = time if time is None or isinstance(time, int) else round(time.timestamp() * 1000)
        decoded = {"id": value["id"], "n": value["n"], "at": message["offset"]}
        rows.append({**decoded, SOURCE: {**message, "timestamp": time_ms, "reason": reason}})
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("at", pa.int64()), pa.field(SOURCE, SOURCE_TYPE)])
    parts = [rows[0::2], rows[1::2]]  # two tasks
    return [
        write_task(ticket, letters, task, [pa.RecordBatch.from_pylist(part, schema=schema)])
        for task, part in enumerate(parts)
    ]

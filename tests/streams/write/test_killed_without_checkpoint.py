"""A writer's process is killed at each kind of moment, and finds an empty scratch folder when it starts again.

The process is that of a pipeline (`weft.streams.write.writer_job`) with `resume: table`. Its table is on S3, which the
test plays, so that the kill comes before or after a certain request. `tests.streams.write.sink.test_lost_checkpoint`
has the list of the moments. All processes of the writer are killed, as if its pod or machine died.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.stores.moto_server import moto_server, one_step
from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.write.sink.conftest import CONFIG
from tests.streams.write.sink.writer_of_topic import MESSAGE, WriterOfTopic
from weft import Table

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1_500)]

LIFE_SECONDS: Final = 400  # a life takes ten seconds of an idle machine
POLL_SECONDS: Final = 0.01
ENTRY: Final = r"/lanes/orders/\d+\.json"
LOG_FILE: Final = r"/log/orders/.+\.arrow"
LETTERS: Final = r"_dead_letters/orders/.+\.jsonl"


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill a process.

    Attributes:
        path: Pattern of the object that it puts; empty to wait for ``file`` instead.
        number: The how many-th such put of its life.
        done: Whether the put takes effect before the kill.
        file: Pattern of a file of its checkpoint.
    """

    path: str = ""
    number: int = 1
    done: bool = False
    file: str = ""


# The first entry of a life is its claim, the second one records the start of the query, the third one has rows.
MOMENTS: Final = {
    "before the claim": Moment(ENTRY, 1),
    "claimed": Moment(ENTRY, 1, done=True),
    "started": Moment(file="*/metadata"),
    "planned the start": Moment(ENTRY, 2),
    "committed the start": Moment(ENTRY, 2, done=True),
    "planned": Moment(LOG_FILE, 1),
    "writing": Moment(LOG_FILE, 1, done=True),
    "a dead letter is written": Moment(LETTERS, 1, done=True),
    "written": Moment(ENTRY, 3),
    "committed": Moment(ENTRY, 3, done=True),
    "finished": Moment(file="*/commits/1"),
}
ONE_OF_EACH_PHASE: Final = ("committed the start", "writing", "committed")
"""Moments that the extended loop tries: the start of a query, its tasks, the end of a batch. The nightly loop tries
all, each twice; `tests.streams.write.sink.test_lost_checkpoint` has most of them in the same loop, where the query ends
with an error."""


@dataclass
class KillingStore:
    """A wrapper of the S3 server that kills a process at a moment.

    Attributes:
        moment: The moment; None to let everything pass.
        kill: Kills the process.
        seen: Number of puts so far that match.
    """

    moment: Moment | None = None
    kill: Callable[[], None] = field(default=lambda: None)
    seen: int = 0

    def __call__(self, app: WSGIApplication) -> WSGIApplication:
        def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if not self._is_now(environ):
                return app(environ, start_response)
            assert self.moment is not None
            if self.moment.done:
                list(app(environ, lambda *_: lambda _: None))
            self.kill()
            raise ConnectionResetError

        return one_step(run)

    def _is_now(self, environ: WSGIEnvironment) -> bool:
        if self.moment is None or not self.moment.path or environ["REQUEST_METHOD"] != "PUT":
            return False
        self.seen += re.search(self.moment.path, environ["PATH_INFO"]) is not None
        return self.seen == self.moment.number


class Killed:
    """A writer of a topic, and lives of its process that end with SIGKILL."""

    def __init__(self, writer: WriterOfTopic, store: KillingStore, folder: Path) -> None:
        self._writer, self._store, self._folder = writer, store, folder
        source = {"type": "kafka", "topic": writer.topic, "starting_offsets": "earliest", "max_offsets_per_trigger": 20}
        whole = {
            "table": {"uri": writer.table.uri, "storage_options": dict(writer.storage_options or {})},
            "kafka": {"bootstrap.servers": writer.broker.bootstrap_servers},
            "writers": {"orders": {"source": source, "schema": MESSAGE, "trigger": "100 ms", "resume": "table"}},
            "state": "./state",
            "spark": {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        }
        self._file, self._state = folder / "p.yaml", folder / "state"
        self._file.write_text(yaml.safe_dump(whole))

    def live(self, moment: Moment) -> None:
        """Start the process with an empty folder, and kill it at the moment."""
        shutil.rmtree(self._state, ignore_errors=True)
        log = self._folder / "victim.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "weft.streams.write.writer_job", str(self._file), "orders"],
                start_new_session=True,
                stdout=output,
                stderr=output,
            )
        self._store.kill = lambda: kill_session(process.pid)
        self._store.seen, self._store.moment = 0, moment
        try:
            deadline = time.monotonic() + LIFE_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if moment.file and list(self._state.glob(f"checkpoints/{moment.file}")):
                    break
                time.sleep(POLL_SECONDS)
        finally:
            kill_session(process.pid)
            ended = process.wait(LIFE_SECONDS)
            self._store.moment = None
        assert ended == -signal.SIGKILL, log.read_text(errors="replace")[-3_000:]
        assert time.monotonic() < deadline, "the moment did not come"


def kill_session(leader: int) -> None:
    """Kill all processes of a session: Spark's Python workers are a process group of their own."""
    listed = subprocess.run(["ps", "-eo", "pid=,sess="], capture_output=True, text=True, check=True).stdout
    for pid, session in map(str.split, listed.splitlines()):
        if int(session) == leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def store() -> KillingStore:
    return KillingStore()


@pytest.fixture
def writer(spark: SparkSession, broker: FaultyBroker, tmp_path: Path, store: KillingStore) -> Iterator[WriterOfTopic]:
    with moto_server(store) as backend:
        place = backend.new_place()
        table = Table.create(place.uri, CONFIG, storage_options=place.options)
        yield WriterOfTopic(spark, broker, table, tmp_path, place.options)


def check_lives(writer: WriterOfTopic, store: KillingStore, folder: Path, moments: Sequence[Moment]) -> None:
    killed = Killed(writer, store, folder)
    for moment in moments:
        writer.send(50)
        killed.live(moment)
        assert writer.live_rows() <= len(writer.good)
    writer.run()
    writer.check()


def test_killed_in_one_phase_after_the_other(writer: WriterOfTopic, store: KillingStore, tmp_path: Path) -> None:
    check_lives(writer, store, tmp_path, [MOMENTS[name] for name in ONE_OF_EACH_PHASE])


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_killed_twice_at_the_same_moment(
    writer: WriterOfTopic, store: KillingStore, tmp_path: Path, moment: Moment
) -> None:
    check_lives(writer, store, tmp_path, [moment, moment])

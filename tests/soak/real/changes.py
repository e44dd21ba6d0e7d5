"""What an operator does during the soak, with the commands of weft and as its documents say. Each function is an event.

Messages, queries and scrapes go on meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tests.soak.real.feed import KEYS, Change
from tests.soak.real.topics import FORMATS, NEW_COLUMN, PARTITIONS, write_pipeline
from weft.storage.core.log.cut import parse_cut
from weft.storage.core.names import lane_name

if TYPE_CHECKING:
    from tests.soak.real.run import Soak

COMMAND_SECONDS: Final = 240.0
CAUGHT_UP_SECONDS: Final = 240.0
ERASED_KEYS: Final = 5
SCRAPES: Final = 3  # with which an alert without a delay fires
KILL_SECONDS: Final = 1.5  # after the start of a command: it reads and plans then, or has not begun yet


def add_column(soak: Soak) -> None:
    """A schema evolves, consumers first: the table, the pipeline file, and then the producer with a new version of its
    schema. Only once."""
    feed = soak.feeds["payments"]
    if feed.evolved:
        return
    group, name, kind = NEW_COLUMN
    if _command(soak, "alter", "add-column", str(soak.file), group, name, kind) is None:
        return
    soak.evolved = True
    _restart_with_file(soak)
    feed.evolved = True  # its first event registers the new schema


def erase_keys(soak: Soak) -> None:
    """Some keys are erased, while a part is killed. First no more events of them are sent, and the table has the ones
    that were."""
    retired = soak.feeds["clicks"].retired
    keys = frozenset(soak.rng.sample([key for key in range(KEYS) if key not in retired], ERASED_KEYS))
    for feed in soak.feeds.values():
        feed.retire(keys, soak.produce)
    soak.flush()
    reached = soak.sent_offsets()
    if not soak.until(lambda: soak.has_reached(reached), CAUGHT_UP_SECONDS, "the last events of keys to erase"):
        return
    file = soak.folder / "keys.jsonl"
    file.write_text("".join(json.dumps({"id": key}) + "\n" for key in sorted(keys)), encoding="utf-8")
    clicks = sum(one.row is not None and one.row["id"] in keys for one in soak.feeds["clicks"].sent)
    soak.answers.begin_erase(len(keys), clicks)
    soak.changes.append(Change(reached, keys=keys))
    _command(soak, "erase", str(soak.table.uri), "--keys", str(file), "--expire-snapshots", "--yes", kill=True)
    soak.answers.end_erase()


def rewrite_column(soak: Soak) -> None:
    """The values of a column are changed, beside a writer that goes on writing it, while a part is killed."""
    assignment = "method = concat(method, '!')"
    result = _command(soak, "rewrite", str(soak.table.uri), "--set", assignment, "--yes", kill=True)
    if result is None:
        return
    soak.lanes.refresh()
    lanes = parse_cut(result["cut"]).lanes
    cut = {stream: lanes.get(lane_name(stream), 0) for stream in FORMATS}
    soak.changes.append(Change(soak.offsets(cut), column="method", function=lambda value: f"{value}!"))


def recreate_topic(soak: Soak) -> None:
    """A topic is deleted and created again, after the table had all of it.

    Its writer fails, because offsets of the new topic are not those of the old one. The operator sets failOnDataLoss to
    false, as the error says, and the writer reads the new topic from its beginning.
    """
    # A writer that may lose data needs no restart of weft run, which lives long from the second round on.
    streams = soak.victims(sorted(soak.lossy) if soak.spared else tuple(FORMATS))
    if not streams:
        return
    stream = soak.rng.choice(streams)
    soak.say(f"  topic: {stream}")
    feed = soak.feeds[stream]
    soak.paused.add(stream)
    soak.flush()
    if soak.until(lambda: soak.caught_up((stream,)), CAUGHT_UP_SECONDS, f"all of {stream}"):

        def recreate() -> None:
            soak.broker.delete_topic(stream)
            soak.broker.create_topics({stream: PARTITIONS})

        soak.beside(recreate, COMMAND_SECONDS, f"topic {stream} again")
        feed.life += 1
        if stream not in soak.lossy:

            def refused() -> bool:
                state = soak.states().get(stream, "")
                return state.startswith("failed") and "failOnDataLoss=false" in state

            if soak.until(refused, CAUGHT_UP_SECONDS, f"the refusal to read another topic {stream}"):
                soak.refused.add(stream)
                seen = soak.series.scrapes + SCRAPES
                soak.until(lambda: soak.series.scrapes >= seen, CAUGHT_UP_SECONDS, "scrapes of the refusal")
            soak.lossy.add(stream)
            _restart_with_file(soak)
    soak.paused.discard(stream)


def _restart_with_file(soak: Soak) -> None:
    """Write the pipeline file anew, and restart ``weft run`` with it."""
    write_pipeline(
        soak.folder, soak.broker.bootstrap_servers, soak.registry.url, evolved=soak.evolved, lossy=soak.lossy
    )

    def restart() -> None:
        status = soak.weft.stop(signal.SIGTERM)
        soak.weft.start()
        if status not in {0, 1}:  # 1: a part had failed
            raise RuntimeError(f"weft run ended with status {status} after SIGTERM")

    soak.beside(restart, COMMAND_SECONDS, "a restart of weft run with the new file")


def _command(soak: Soak, *arguments: str, kill: bool = False) -> Any:
    """Run a command of weft; returns what it prints with ``--json``, None if it failed.

    Args:
        soak: The run.
        arguments: Of the command.
        kill: Whether some part is killed meanwhile.
    """
    victim = soak.rng.choice(soak.victims((*FORMATS, "compaction", "clean"))) if kill else ""
    answers: list[Any] = []

    def run() -> None:
        command = [sys.executable, "-m", "weft.streams.cli.main", *arguments, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if victim:
                time.sleep(KILL_SECONDS)
                soak.kill(victim)
            try:
                output, errors = process.communicate(timeout=COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.returncode != 0:
            raise RuntimeError(f"weft {arguments[0]} ended with status {process.returncode}: {errors[-800:]}")
        answers.append(json.loads(output))

    soak.beside(run, COMMAND_SECONDS + 10, f"weft {arguments[0]}")
    return answers[0] if answers else None

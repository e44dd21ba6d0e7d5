"""Followers: consumers that repeatedly read the changes since their last read, while all other actors run.

S21 IncrementalComplete: the changes equal the difference of the oracle's two states, or the range is refused for a
reason that the history confirms: one end of it has expired, or it contains a restore. After that a follower starts
again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from storage.core.log.cut import PREFIX, Cut, parse_cut, within
from storage.errors import InvalidInput, OffsetExpired, OffsetInvalidated
from storage.read.changes import bounded_cut, expiring
from storage.table import Table
from tests.simulation.actors import Worker
from tests.simulation.scheduler import Process, Violation
from tests.storage.changing import State, expected, got
from tests.strategies import Config

STEPS = [1, 1, 2, 5]  # number of commits per step of a follower that reads in steps
LOOKS = 3  # number of savepoints and of cuts since which all changes are read in the end


def draw_followers(seed: int, share: float) -> list[int]:
    """How often each follower of a schedule reads; only ``share`` of the schedules have one, because checking it is
    slow.

    It is drawn separately, so that it does not affect other random decisions of a seed.
    """
    chance = random.Random(f"followers {seed}")
    return [chance.randint(2, 5)] if chance.random() < share else []


@dataclass(eq=False)
class Follower(Worker):
    """Reads changes several times; ``at`` is the text of the cut of its last read; None before the first one."""

    runs: int
    at: str | None = None

    @property
    def busy(self) -> bool:
        return self.runs > 0

    def work(self, process: Process, table: Table) -> None:
        self.runs -= 1
        chance, since, until = self.simulation.chance, self.at, None
        cuts = [text for text in self.simulation.kept if text.startswith(PREFIX)]
        saved = [str(Cut(*savepoint)) for savepoint in self.simulation.history.table.savepoints.values()]
        if saved and chance.random() < 1 / 3:
            since = chance.choice(saved)  # later files that the newest snapshot does not need may be gone
        elif cuts and chance.random() < 1 / 4:
            since, until = chance.choice([since, *cuts]), chance.choice([None, *cuts])
        self._ask(process, table, since, until)

    def look_back(self, process: Process, table: Table) -> None:
        """At the end: read the changes from savepoints and from earlier cuts to the newest snapshot."""
        chance, history = self.simulation.chance, self.simulation.history
        saved = [str(Cut(*savepoint)) for savepoint in history.table.savepoints.values()]
        cuts = [text for text in self.simulation.kept if text.startswith(PREFIX)]
        for since in [*saved[:LOOKS], *chance.sample(cuts, min(LOOKS, len(cuts)))]:
            self._ask(process, table, since, None)

    def _ask(self, process: Process, table: Table, since: str | None, until: str | None) -> None:
        """Read changes, compare them, and continue from their cut; a refusal must have a reason."""
        first, last = (None if text is None else parse_cut(text) for text in (since, until))
        try:
            with expiring():
                if last is None:
                    last = self._end(table, since)
            self._compare(table, first, last)
        except OffsetExpired as error:
            if all(self.simulation.history.table.promises(at.table, at.lanes) for at in (first, last) if at):
                raise Violation(f"S21 IncrementalComplete: {first} to {last} has not expired: {error}") from error
            self.at = None
            self.simulation.note(process, error)
        except OffsetInvalidated as error:
            if first is None or not self._is_restored(first, last):
                raise Violation(f"S21 IncrementalComplete: no restore after {first}: {error}") from error
            self.at = None
            self.simulation.note(process, error)
        except InvalidInput as error:
            if first is None or last is None or self._forwards(first, last):
                raise
            self.at = None
            self.simulation.note(process, error)
        else:
            self.at = str(last)

    def _end(self, table: Table, since: str | None) -> Cut:
        """The end of the range: the newest snapshot, or one that is some commits after the follower's cut."""
        newest = table.snapshot()
        if since is None or self.simulation.chance.random() < 2 / 3:
            return newest.cut
        start = table.snapshot(since)
        end = bounded_cut(start, newest, self.simulation.chance.choice(STEPS))
        if not self._forwards(start.cut, end) or not self._forwards(end, newest.cut):
            raise Violation(f"S21 IncrementalComplete: {end} is not between {since} and {newest.cut}")
        return end

    def _compare(self, table: Table, since: Cut | None, until: Cut) -> None:
        chance, judge = self.simulation.chance, self.simulation.judge
        config = judge.history.table.config(until.table)
        require = [] if chance.random() < 3 / 4 else chance.sample(list(config["groups"]), 1)
        with expiring():
            schema = table.snapshot(str(until)).table_schema
        start = None if since is None else str(since)
        answer = got(schema, table.changes(start, str(until), require=require, before=True))
        if since is not None and self._is_restored(since, until):
            raise Violation(f"S21 IncrementalComplete: no error, although a restore is between {since} and {until}")
        judge.reads += 1
        wanted = expected(schema, self._state(since, config, require), self._state(until, config, require))
        if answer != wanted:
            lines = [f"  {key}: got {answer.get(key)}\n  not {wanted.get(key)}" for key in {**answer, **wanted}]
            raise Violation("\n".join([f"S21 IncrementalComplete: wrong changes from {since} to {until}", *lines]))

    def _state(self, at: Cut | None, config: Config, require: Sequence[str]) -> State:
        """The rows that are visible at a cut, and their groups, under a later configuration."""
        if at is None:
            return {}
        judge = self.simulation.judge
        present = {name: judge.expected(at, config, [*require, name]) for name in config["groups"]}
        return {
            key: (row, frozenset(name for name, rows in present.items() if key in rows))
            for key, row in judge.expected(at, config, require).items()
        }

    def _is_restored(self, since: Cut, until: Cut | None) -> bool:
        """Whether a restore or an undo was completed between two snapshots."""
        restored = [restoration.done for restoration in self.simulation.history.table.restorations]
        return any(since.table < done and (until is None or done <= until.table) for done in restored)

    def _forwards(self, since: Cut, until: Cut) -> bool:
        """Whether one snapshot continues another; claims after the end of a closed lane do not count."""
        ends = self.simulation.history.table.closed
        lanes = {lane: min(seq, ends.get(lane, seq)) for lane, seq in since.lanes.items()}
        return since.table <= until.table and within(lanes, until.lanes)

"""Followers: consumers that repeatedly read the changes since their last read, while all other actors run.

S21 IncrementalComplete: the changes equal the difference of the oracle's two states, or the range is refused for a
reason that the history confirms: one end of it has expired, or it contains a restore. After that a follower starts
again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.actors import Worker
from tests.simulation.history import TABLE
from tests.simulation.scheduler import Process, Violation
from tests.simulation.table_lane import TableLane
from tests.simulation.two_tables import cuts_of, joined, kept_cut, references_of, with_groups
from tests.storage.support.changing import State, expected, got
from tests.strategies import Config
from weft.storage.core.log.cut import PREFIX, Cut, parse_cut, within
from weft.storage.errors import InvalidInput, OffsetExpired, OffsetInvalidated
from weft.storage.read.changes.change_scan import expiring
from weft.storage.read.changes.consumer_cuts import bounded_cut
from weft.storage.table import Table

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
        saved = self._saved()
        if saved and chance.random() < 1 / 3:
            since = chance.choice(saved)  # later files that the newest snapshot does not need may be gone
        elif cuts and chance.random() < 1 / 4:
            since, until = chance.choice([since, *cuts]), chance.choice([None, *cuts])
        self._ask(process, table, since, until)

    def look_back(self, process: Process, table: Table) -> None:
        """At the end: read the changes from savepoints and from earlier cuts to the newest snapshot."""
        chance, saved = self.simulation.chance, self._saved()
        cuts = [text for text in self.simulation.kept if text.startswith(PREFIX)]
        for since in [*saved[:LOOKS], *chance.sample(cuts, min(LOOKS, len(cuts)))]:
            self._ask(process, table, since, None)

    def _saved(self) -> list[str]:
        """The cuts of all savepoints, with those of the referenced table."""
        table = self.simulation.history.table
        made = (entry for entry in self.simulation.history.lanes[TABLE] if entry["kind"] == "SAVEPOINT")
        return [kept_cut(entry) for entry in made if entry["name"] in table.savepoints]

    def _ask(self, process: Process, table: Table, since: str | None, until: str | None) -> None:
        """Read changes, compare them, and continue from their cut; a refusal must have a reason."""
        first, last = (None if text is None else parse_cut(text) for text in (since, until))
        try:
            with expiring():
                if last is None:
                    last = self._end(table, since)
            self._compare(table, first, last)
        except OffsetExpired as error:
            if all(self.simulation.judge.is_promised(at) for at in (first, last) if at):
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
        if newest.table_is_moment:
            self.simulation.judge.check_moment(newest.cut)
        if newest.references:
            newest.schema  # noqa: B018 - raises the error that leaves the cut of a referenced table out
            return newest.cut
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
        names = [*config["groups"], *references_of(config)]
        require = [] if chance.random() < 3 / 4 else chance.sample(names, 1)
        with expiring():
            schema = table.snapshot(str(until)).table_schema
        start = None if since is None else str(since)
        if judge.referenced is not None:
            schema = with_groups(schema, config, judge.referenced.config)
        answer = got(schema, table.changes(start, str(until), require=require, before=True))
        if since is not None and self._is_restored(since, until):
            raise Violation(f"S21 IncrementalComplete: no error, although a restore is between {since} and {until}")
        judge.reads += 1
        wanted = expected(schema, self._state(since, config, require), self._state(until, config, require))
        if answer != wanted:
            lines = [f"  {key}: got {answer.get(key)}\n  not {wanted.get(key)}" for key in {**answer, **wanted}]
            raise Violation("\n".join([f"S21 IncrementalComplete: wrong changes from {since} to {until}", *lines]))

    def _state(self, at: Cut | None, config: Config, require: Sequence[str]) -> State:
        """The rows that are visible at a cut, and their groups and references, under a later configuration."""
        if at is None:
            return {}
        judge, references = self.simulation.judge, references_of(config)
        groups = [name for name in require if name not in references]
        present = {name: judge.expected(at, config, [*groups, name]) for name in config["groups"]}
        required = [name for name in require if name in references]
        # A reference that was added later has no rows at the cut.
        rows, found = joined(judge.expected(at, config, groups), references, judge.expected_beside(at), required)
        return {
            key: (row, found[key].union(name for name, there in present.items() if key in there))
            for key, row in rows.items()
        }

    def _is_restored(self, since: Cut, until: Cut | None) -> bool:
        """Whether a restore or an undo of one of the tables was completed between two snapshots."""
        judge = self.simulation.judge
        ranges = [(judge.history, since, until)]
        if judge.referenced is not None and until is not None:
            both = cuts_of(since).keys() & cuts_of(until).keys()
            ranges += [(judge.referenced.history, cuts_of(since)[name], cuts_of(until)[name]) for name in both]
        return any(
            start.table < restored.done and (end is None or restored.done <= end.table)
            for history, start, end in ranges
            for restored in history.table.restorations
        )

    def _forwards(self, since: Cut, until: Cut) -> bool:
        """Whether one snapshot continues another; claims after the end of a closed lane do not count."""
        judge = self.simulation.judge
        if judge.referenced is not None:
            both = cuts_of(since).keys() & cuts_of(until).keys()
            other = judge.referenced.history.table
            if not all(_continues(cuts_of(since)[name], cuts_of(until)[name], other) for name in both):
                return False
        return _continues(since, until, judge.history.table)


def _continues(since: Cut, until: Cut, table: TableLane) -> bool:
    lanes = {lane: min(seq, table.closed.get(lane, seq)) for lane, seq in since.lanes.items()}
    return since.table <= until.table and within(lanes, table.whole(until.table, until.lanes))

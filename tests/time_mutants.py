"""Mutants of what time and arrival mean: marks, times that are settled, undo since a time, commits in visible order."""

from __future__ import annotations

from tests.mutant import Mutant

ORDER = "tests/storage/test_arrival_order.py"

TIMES = "tests/storage/test_settled_times.py"

TIME_MUTANTS = {
    "S24 a time is called settled that is not": Mutant(
        "read/time_travel.py", "mark is not None)", "True)", (TIMES, "-k", "says_so_until_it_is_marked")
    ),
    "S24 what comes after a mark counts by its own clock": Mutant(
        "read/time_travel.py",
        "timeline.heads(newest, newest.seen) if mark is None else mark.lanes",
        "timeline.heads(newest, newest.seen)",
        (TIMES, "-k", "a_minute_behind"),
    ),
    "S24 what a mark has seen counts by its own clock": Mutant(
        "read/time_travel.py",
        "state.seen.get(name, 0) if end is None",
        "0 if end is None",
        (TIMES, "-k", "dated_ahead"),
    ),
    "S24 a mark is not read anew after a lost race": Mutant(
        "log/time_marks.py",
        "timeline.heads(state, cut.highest(state.seen, known))",
        "known",
        (TIMES, "-k", "lost_a_race"),
    ),
    "S24 a clock that is behind records marks": Mutant(
        "log/time_marks.py",
        " or self._table_log.clock.now_ms() < state.committed_at_ms",
        "",
        (TIMES, "-k", "behind_the_table"),
    ),
    "S24 an idle table is marked for ever": Mutant(
        "log/time_marks.py", "return None if idle else made", "return made", (TIMES, "-k", "something_was_committed")
    ),
    "S24 checkpoints forget what was seen": Mutant(
        "core/log/checkpoint_codec.py", "seen=own.seen,", "seen={},", (TIMES, "-k", "survive_checkpoints")
    ),
    "a mark that fails fails the commit": Mutant(
        "log/time_marks.py",
        "contextlib.suppress(TableError)",
        "contextlib.nullcontext()",
        (TIMES, "-k", "fails_no_commit"),
    ),
    "an undo does not tell what is in doubt": Mutant(
        "services/restore.py", "in_doubt=doubt", "in_doubt={}", (TIMES, "-k", "clocks_alone")
    ),
    "W7 a writer does not look at other lanes before it commits": Mutant(
        "write/writer.py", "self._others.look(table)", "pass", (ORDER, "-k", "wins_though_its_clock_is_behind")
    ),
    "W7 a writer does not look for new lanes": Mutant(
        "write/observed_lanes.py",
        "if tails.pop(TABLE_LANE):",
        "if tails.pop(TABLE_LANE) and False:",
        (ORDER, "-k", "was_added"),
    ),
    "W7 every lane is looked at": Mutant(
        "core/modes/__init__.py", "if group.ordering:", "if False:", (ORDER, "-k", "only_lanes_that_share")
    ),
}

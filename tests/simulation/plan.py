"""Draws a schedule from a seed: the table, the batches, the actors, the faults, and tuning values of the code under
test.

Everything about a schedule except its interleaving is decided here, before it begins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.changes import Change, draw_changes, with_column
from tests.simulation.faults import MOODS
from tests.simulation.followers import draw_followers
from tests.simulation.history import Batch
from tests.simulation.operators import ACTIONS
from tests.simulation.tables import draw_batch, draw_config, draw_index, draw_keys, draw_overlays
from tests.simulation.two_tables import draw_references, refer
from tests.strategies import Config, Row

WATCHES = 40  # about as many as there are commits
FAULT_STEPS = 600  # step at which faults stop; a schedule without faults ends about there

LIMITS: Mapping[str, list[int]] = {
    "block_min_bytes": [40, 256 * 1024],
    "block_max_bytes": [160, 16 * 1024 * 1024],
    "inline_index_bytes": [1, 64 * 1024, 64 * 1024],
    "row_group_rows": [2, 64 * 1024, 64 * 1024],
    "compaction_part_bytes": [1, 512 * 1024 * 1024],
    "inline_list_bytes": [1, 64 * 1024, 64 * 1024],
    "recent_commits": [1, 1_000, 1_000],
    "table_checkpoint_every": [2, 5, 64],
    "checkpoint_end_bytes": [80, 64 * 1024],
    "lane_checkpoint_every": [2, 5, 1_000],
    "lane_window": [1, 2, 64],
    "round_bytes": [1, 16 * 1024 * 1024],
    "search_probes": [3, 7],
    "look_up_entries": [1, 1_000],
    "shared_row_group_rows": [1, 3, 16 * 1024],
    "small_group_bytes": [0, 2 * 1024 * 1024, 2 * 1024 * 1024],
    "shared_file_bytes": [1, 8_000, 16 * 1024 * 1024, 16 * 1024 * 1024],
    "archive_chunk": [2, 3, 5, 256],
    "overlay_percent": [100_000],
    "overlay_files": [1, 4],
    "archive_single_requests": [0, 8],
    "archive_kept_bytes": [1, 64 * 1024 * 1024],
}
"""Values for fields of `weft.storage.environment.Tuning`, of which each schedule draws one. Small values run
code that otherwise only large tables run."""

_CLEANING = ["clean", "clean", "clean", "savepoint", "release"]


@dataclass(frozen=True)
class Theme:
    """The mix of a schedule: the actions of operators, and the numbers of compactors and readers.

    ``moods``: of the faults; all if empty. ``followed``: share of the schedules with followers. ``referring``: share of
    those whose table refers to another one. ``overlays``: share of those whose compactions may write overlays.
    ``watchers``: processes that take snapshots all the time. ``most``: the largest numbers of batches of a lane and
    compactions of a compactor. ``limits``: sizes that replace those that are drawn. ``shots``: share of the schedules
    with batches without a query id. ``queries``: the largest number of queries of one batch each, which close their
    lanes. ``verified``: whether the table is verified after each action of an operator or compactor. ``damaged``: share
    of those in which the environment damages a file meanwhile.
    """

    actions: list[str]
    compactors: list[int] = field(default_factory=lambda: [0, 1, 1, 2])
    readers: list[int] = field(default_factory=lambda: [1, 1, 2])
    moods: list[str] = field(default_factory=list)
    followed: float = 1 / 4
    referring: float = 1 / 12
    overlays: float = 1 / 2
    watchers: int = 0
    most: int = 4
    limits: Mapping[str, int] = field(default_factory=dict)
    shots: float = 1 / 6
    queries: int = 0
    verified: bool = False
    damaged: float = 1 / 12


THEMES: Mapping[str, Theme] = {
    "none": Theme([]),
    "outages": Theme([], compactors=[3, 4], moods=["network"]),
    "everything": Theme([action for action in ACTIONS if action != "split"]),
    "clean": Theme(_CLEANING, compactors=[2, 3], readers=[2, 3], shots=0, queries=2),
    "clean in peace": Theme(_CLEANING, compactors=[2, 3], readers=[2, 3], moods=["quiet", "freezes"]),
    "restore": Theme(["restore", "restore", "undo", "clean", "clean", "savepoint", "release"]),
    "barriers": Theme(["restore", "undo", "close"], compactors=[0], readers=[1], moods=["quiet", "freezes", "storm"]),
    "lanes": Theme(["close", "fence", "schema", "verify", "clean"]),
    "archive": Theme(
        ["clean", "clean", "clean", "fence"],
        compactors=[3, 4],
        readers=[2, 3],
        moods=["freezes", "crashes", "storm"],
        limits={
            "archive_chunk": 2,
            "lane_checkpoint_every": 2,
            "table_checkpoint_every": 2,
        },
    ),
    "erase": Theme(
        ["erase", "erase", "rewrite", "forget", "expire", "ttl", "clean", "savepoint", "release", "restore"],
        compactors=[1, 2, 3],
    ),
}
"""Themes: in these schedules, actions that rarely coincide by chance coincide often."""
ASKED_FOR: Mapping[str, Theme] = {
    "times": Theme(
        ["mark", "mark", "mark", "undo", "restore", "clean", "savepoint", "close"],
        compactors=[0, 1],
        readers=[3],
        moods=["quiet", "time", "storm"],
        followed=0,
    ),
    "moments": Theme(
        ["mark", "savepoint", "savepoint"],
        compactors=[0],
        readers=[0, 1],
        moods=["quiet", "freezes", "storm"],
        followed=0,
        watchers=3,
        most=12,
    ),
    "together": Theme(
        ["mark", "savepoint"],
        compactors=[0],
        readers=[0],
        moods=["quiet", "freezes"],
        followed=0,
        referring=1,
        watchers=3,
        most=12,
    ),
    "publish": Theme(
        ["publish", "publish", "publish", "publish", "clean", "savepoint", "restore", "undo", "erase", "rewrite"],
        compactors=[2, 3],
        readers=[0],
        followed=0,
        overlays=0,  # a publication refuses them
    ),
    "overlays": Theme(
        ["clean", "clean", "savepoint", "release", "restore", "erase", "schema", "verify"],
        compactors=[2, 3, 4],
        readers=[2, 3],
        followed=1 / 4,
        overlays=1,
        most=10,
        limits={"small_group_bytes": 0},
    ),
    "splits": Theme(
        ["split", "split", "split", "clean", "savepoint", "release", "restore", "erase", "rewrite", "schema", "verify"],
        compactors=[1, 2, 3],
        readers=[2, 3],
        followed=1 / 2,
        referring=1 / 4,
        most=8,
    ),
    "verified": Theme(
        [action for action in ACTIONS if action != "verify"] + ["split", "split"],
        compactors=[1, 2, 3],
        readers=[0],
        moods=["quiet", "freezes", "crashes"],
        followed=0,
        most=8,
        verified=True,
    ),
    "checkpoints": Theme(
        ["delete checkpoints", "delete checkpoints", "delete checkpoints", "clean", "savepoint", "erase"],
        compactors=[2, 3],
        most=8,
        limits={"checkpoint_end_bytes": 80, "table_checkpoint_every": 2},
        damaged=1,
    ),
    "ttl": Theme(["ttl", "ttl", "ttl", "clean", "savepoint", "restore"], compactors=[1, 2], followed=0),
    "batches": Theme(
        ["clean", "fence", "close", "restore", "undo", "schema", "verify"],
        compactors=[0, 1],
        readers=[1, 2],
        followed=0,
        limits={"archive_chunk": 3, "lane_checkpoint_every": 4},
        shots=1,
    ),
    "retire": Theme(
        [*["clean"] * 8, "close", "savepoint", "release", "restore", "undo", "mark", "verify", "erase"],
        compactors=[3, 4],
        readers=[1, 2],
        moods=["quiet", "freezes", "crashes", "storm"],
        followed=1 / 2,
        most=8,
        shots=0,
        queries=3,  # with the lanes of jobs at most 8 rivals, of which a writer reads all (S25)
    ),
    "changes": Theme(["savepoint", "savepoint", "clean", "restore"], moods=["quiet", "freezes"], followed=1),
    "references": Theme(
        ["savepoint", "savepoint", "release", "clean", "clean", "restore", "schema"],
        compactors=[1, 2],
        readers=[2, 3],
        followed=1 / 2,
        referring=1,
    ),
}
"""Themes that are never drawn: they contain more of what all schedules contain."""
REFERENCED: Mapping[str, Theme] = {
    "none": Theme([], readers=[0]),
    "clean": Theme([*_CLEANING, "fence"], compactors=[1, 2], readers=[0, 1]),
    "restore": Theme(["restore", "undo", "clean", "savepoint", "release", "schema", "mark"], readers=[0, 1]),
    "erase": Theme(["erase", "rewrite", "forget", "expire", "ttl", "clean", "close"], compactors=[1], readers=[0]),
}
"""Themes of referenced tables. Their actors are fewer, because a schedule has those of both tables."""


@dataclass(frozen=True)
class Plan:
    """One schedule, except for its interleaving.

    Attributes:
        distinct: No two events tie.
        lanes: Batches of the job of each lane, in order.
        compactions: Number of compactions of each compactor.
        reads: Number of reads of each reader.
        follows: Number of reads of each follower of changes.
        watches: Number of snapshots of each watcher.
        operators: Actions of each operator.
        shots: Batches without a query id of each of their senders.
        queries: Batches of queries that close their lanes, by lane.
        damage_step: Step at which the environment damages a file; None for never.
        verified: Whether the table is verified after each action of an operator or compactor.
        referenced: The plan of the table that this one refers to; None if it refers to none.
    """

    seed: int
    config: Config
    distinct: bool
    changes: list[Change]
    lanes: Mapping[str, list[Batch]]
    compactions: list[int]
    reads: list[int]
    follows: list[int]
    watches: list[int]
    operators: list[list[str]]
    shots: list[list[Batch]]
    queries: Mapping[str, list[Batch]]
    mood: str
    stickiness: float
    damage_step: int | None
    limits: Mapping[str, int]
    verified: bool = False
    referenced: Plan | None = None

    @property
    def _sent(self) -> list[list[Batch]]:
        return [*self.lanes.values(), *self.shots, *self.queries.values()]

    @property
    def batches(self) -> dict[int, Batch]:
        return {batch.id: batch for batches in self._sent for batch in batches}


def draw_plan(seed: int, name: str | None = None) -> Plan:
    """The plan of a seed; its theme is drawn unless one is given."""
    chance = random.Random(f"plan {seed}")
    theme = ASKED_FOR.get(name or "") or THEMES[name or chance.choice(list(THEMES))]
    if name in THEMES:  # a theme that is given by name has only its actions
        theme = replace(theme, followed=0, referring=0)
    return _draw(seed, chance, theme, _draw_referenced(seed, theme.referring))


def _draw_referenced(seed: int, share: float) -> Plan | None:
    """The plan of the referenced table. It is drawn separately, so that it does not affect schedules without it."""
    chance = random.Random(f"referenced {seed}")
    if chance.random() >= share:
        return None
    theme = replace(chance.choice(list(REFERENCED.values())), followed=0)
    return replace(_draw(seed, chance, theme, None), damage_step=None)


def _merge_bytes(seed: int) -> dict[str, int]:
    """Drawn separately, so that schedules stay as they were if their compactions have one key range."""
    together = random.Random(f"together {seed}").choice([1, 3_000, 32 * 1024 * 1024, 32 * 1024 * 1024])
    return {
        "merge_bytes": random.Random(f"merge {seed}").choice([1, 2_000, 128 * 1024 * 1024]),
        "merge_together_bytes": together,
    }


def _draw(seed: int, chance: random.Random, theme: Theme, referenced: Plan | None) -> Plan:
    distinct = chance.random() < 1 / 3
    config = draw_config(chance, distinct=distinct) | draw_overlays(seed, theme.overlays)
    config |= draw_index(seed, config)
    references: list[Change] = []
    if referenced is not None:
        config, references = draw_references(chance, config, referenced.config)
    changes = [*draw_changes(chance, config), *references]
    keys = draw_keys(chance, config)
    known = [] if referenced is None else _keys(referenced)
    versions = iter(chance.sample(range(10_000), 2_000)) if distinct else None
    ids = itertools.count(1)

    def batch(chance: random.Random, lane: str, stream: str, position: int) -> Batch:
        return _batch(chance, next(ids), lane, stream, position, config, changes, keys, versions, known)

    lanes: dict[str, list[Batch]] = {}
    for stream in config["streams"]:
        for lane in [stream, f"{stream}-fix"][: chance.choice([1, 1, 2])]:
            lanes[lane] = [batch(chance, lane, stream, number) for number in range(chance.randint(1, theme.most))]
    plan = Plan(
        seed=seed,
        config=config,
        distinct=distinct,
        changes=changes,
        lanes=lanes,
        compactions=[chance.randint(1, theme.most) for _ in range(chance.choice(theme.compactors))],
        reads=[chance.randint(1, 4) for _ in range(chance.choice(theme.readers))],
        follows=draw_followers(seed, theme.followed),
        watches=[WATCHES] * theme.watchers,
        operators=_operators(chance, theme.actions),
        shots=_shots(seed, theme, list(config["streams"]), batch),
        queries=_queries(seed, theme, list(config["streams"]), batch),
        mood=chance.choice(theme.moods or list(MOODS)),
        stickiness=chance.choice([0.0, 0.3, 0.7, 0.9]),
        damage_step=chance.randrange(50, 400) if chance.random() < theme.damaged else None,
        limits={name: chance.choice(values) for name, values in LIMITS.items()} | _merge_bytes(seed) | theme.limits,
        verified=theme.verified,
    )
    if referenced is None:
        return plan
    # One process opens both tables, with one set of sizes.
    return replace(plan, referenced=replace(referenced, limits=plan.limits))


def _keys(plan: Plan) -> list[tuple[Any, ...]]:
    """The keys that the batches of a table have."""
    rows = [row for batch in plan.batches.values() for row in batch.rows]
    return list(dict.fromkeys(tuple(row[name] for name in plan.config["key"]) for row in rows))


DrawBatch = Callable[[random.Random, str, str, int], Batch]
"""Draws a batch of a lane and a stream, at a position of its query."""


def _batch(
    chance: random.Random,
    number: int,
    lane: str,
    stream: str,
    position: int,
    config: Config,
    changes: list[Change],
    keys: list[Row],
    versions: Iterator[int] | None,
    referenced: list[tuple[Any, ...]],
) -> Batch:
    """A batch of a sender that knows the table as it was created, or with one of the new columns."""
    stream_groups = config["streams"][stream]["groups"]
    new = [change for change in changes if change.column is not None and change.arguments["group"] in stream_groups]
    change = chance.choice(new) if new and chance.random() < 1 / 2 else None
    known = config if change is None else with_column(config, change)
    rows = draw_batch(chance, known, keys, stream, versions)
    refer(chance, known, rows, referenced)
    return Batch(number, lane, stream, f"q-{lane}", position, rows, known, change)


def _shots(seed: int, theme: Theme, streams: list[str], draw: DrawBatch) -> list[list[Batch]]:
    """Batches without a query id. Drawn separately: no other decision depends on them."""
    chance = random.Random(f"shots {seed}")
    if chance.random() >= theme.shots:
        return []
    return [
        [
            replace(draw(chance, "", stream, 0), query="", number=0)
            for stream in chance.choices(streams, k=chance.randint(1, 2 * theme.most))
        ]
        for _ in range(chance.randint(1, 4))
    ]


def _queries(seed: int, theme: Theme, streams: list[str], draw: DrawBatch) -> dict[str, list[Batch]]:
    """Queries of one batch. Drawn separately: no other decision depends on them."""
    if not theme.queries:
        return {}
    chance = random.Random(f"queries {seed}")
    drawn = {}
    for number in range(chance.randint(1, theme.queries)):
        stream = chance.choice(streams)
        lane = f"{stream}-query-{number}"
        drawn[lane] = [draw(chance, lane, stream, 0)]
    return drawn


def _operators(chance: random.Random, kinds: list[str]) -> list[list[str]]:
    if not kinds:
        return []
    return [chance.choices(kinds, k=chance.randint(1, 5)) for _ in range(chance.choice([1, 2, 3]))]

"""A real table beside the oracle, driven by Hypothesis step by step.

Unlike the histories of `test_laws`, every step is chosen while the table exists, with reads in between; a failure
prints the steps as a program.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.storage.support.world import World, expected_bag, snapshot_bag
from tests.strategies import Append, Compact, Config, Fold, appends, configs, pools
from tests.tuning import tune
from weft import Table

MAX_STEPS = 12  # short, because only the deep profile has enough examples for longer histories


class TableMachine(RuleBasedStateMachine):
    """One table. Appends include deletes; every lane has one writer at a time, which may be replaced by another."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        tune(self.patches, block_min_bytes=40, block_max_bytes=160, row_group_rows=2)
        self.batches: list[tuple[Append, tuple[str, int]]] = []
        self.numbers: dict[str, int] = {}

    @initialize(data=st.data(), config=configs())
    def create(self, data: st.DataObject, config: Config) -> None:
        self.config = config
        self.world = World(config)
        self.pool = data.draw(pools(config), label="pools")

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        append = data.draw(appends(self.config, self.pool, max_rows=6), label="append")
        number = self.numbers[append.lane] = self.numbers.get(append.lane, -1) + 1
        batch = (f"query-{append.lane}", number)
        assert not self.world.append(append, batch).replayed
        self.batches.append((append, batch))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        append, batch = data.draw(st.sampled_from(self.batches), label="replayed")
        assert self.world.append(append, batch).replayed

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        append, _ = data.draw(st.sampled_from(self.batches), label="lane of")
        self.world.reopen(append)

    @rule(chosen=st.just(frozenset(range(8))) | st.frozensets(st.integers(0, 7)))
    def compact(self, chosen: frozenset[int]) -> None:
        self.world.compact(Compact(chosen))

    @rule()
    def fold(self) -> None:
        self.world.run([Fold()])

    @rule()
    def reopen(self) -> None:
        self.world.table = Table.open(self.world.uri)

    @rule()
    def remember(self) -> None:
        self.world.remember()

    @rule()
    def travel(self) -> None:
        self.world.check_remembered()

    @rule(data=st.data())
    def project(self, data: st.DataObject) -> None:
        columns = data.draw(st.lists(st.sampled_from(list(self.config["columns"])), unique=True), label="columns")
        require = data.draw(st.lists(st.sampled_from(list(self.config["groups"])), unique=True), label="require")
        got = snapshot_bag(self.world.table.snapshot(), columns, require=require)
        assert got == expected_bag(self.world.expected(require), columns)

    @invariant()
    def reads_as_the_oracle_does(self) -> None:
        answer = self.world.answer(self.world.table.snapshot().to_arrow())
        assert answer == self.world.expected()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.__exit__()
        self.patches.undo()


TestTable = TableMachine.TestCase
TestTable.settings = settings(stateful_step_count=MAX_STEPS, max_examples=settings().max_examples * 2)

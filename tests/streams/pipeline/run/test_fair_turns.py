"""Turns are fair, whatever the tables do. Without tables."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft.streams.pipeline.run.fair_turns import FairTurns

QUANTUM = 100
STEPS = st.lists(st.integers(1, 1_000), min_size=1, max_size=4)
TABLES = st.dictionaries(st.sampled_from("abcdef"), STEPS, min_size=1)


def run(tables: dict[str, list[int]], steps: int) -> list[tuple[str, int]]:
    """Run a number of steps of tables that always have work; the sizes of their steps repeat."""
    turns = FairTurns(tables, QUANTUM)
    done: list[tuple[str, int]] = []
    count: Counter[str] = Counter()
    for _ in range(steps):
        name = turns.next(lambda _: True)
        assert name is not None
        cost = tables[name][count[name] % len(tables[name])]
        count[name] += 1
        turns.charge(name, cost)
        done.append((name, cost))
    return done


@given(TABLES)
def test_a_table_waits_at_most_one_turn_of_every_other_table(tables: dict[str, list[int]]) -> None:
    """While a table waits, another reads at most its quantum and one step per turn that the first misses."""
    largest = {name: max(sizes) for name, sizes in tables.items()}
    for waiting in tables:
        since: Counter[str] = Counter()
        turns = 1 + largest[waiting] // QUANTUM
        for name, cost in run(tables, 300):
            if name == waiting:
                since.clear()
                continue
            since[name] += cost
            assert since[name] <= turns * QUANTUM + largest[name]


@given(TABLES)
def test_all_tables_read_equally_much_in_the_long_run(tables: dict[str, list[int]]) -> None:
    read: Counter[str] = Counter(dict.fromkeys(tables, 0))
    largest = max(max(sizes) for sizes in tables.values())
    for name, cost in run(tables, 500):
        read[name] += cost
        assert max(read.values()) - min(read.values()) <= 2 * (QUANTUM + largest)


@given(TABLES, st.lists(st.frozensets(st.sampled_from("abcdef")), max_size=60))
def test_only_tables_with_work_get_turns(tables: dict[str, list[int]], rounds: list[frozenset[str]]) -> None:
    turns = FairTurns(tables, QUANTUM)
    for working in rounds:
        name = turns.next(working.__contains__)
        assert (name is None) == (not working & tables.keys())
        if name is not None:
            assert name in working
            turns.charge(name, tables[name][0])


def test_credit_is_not_saved_up() -> None:
    turns = FairTurns("ab", QUANTUM)
    for _ in range(10):  # a has hardly anything to do
        assert turns.next("a".__contains__) == "a"
        turns.charge("a", 1)
        assert turns.next("".__contains__) is None
    served = []
    for _ in range(12):
        name = turns.next("ab".__contains__)
        assert name is not None
        turns.charge(name, 50)
        served.append(name)
    assert "".join(served) in {"aabbaabbaabb", "bbaabbaabbaa"}


def test_a_table_with_negative_credit_continues_if_no_other_table_waits() -> None:
    turns = FairTurns("ab", QUANTUM)
    assert turns.next("a".__contains__) == "a"
    turns.charge("a", 100 * QUANTUM)
    assert turns.next("a".__contains__) == "a"
    turns.charge("a", 5 * QUANTUM)
    assert [turns.next("ab".__contains__) for _ in range(3)] == ["b"] * 3
    assert FairTurns("", QUANTUM).next("a".__contains__) is None

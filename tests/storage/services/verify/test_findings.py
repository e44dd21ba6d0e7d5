"""Findings of tasks are in the same order as if the tasks had run at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.storage.services.verify.findings import MAX_ALIKE, Findings, Part

WHATS = st.lists(st.tuples(st.sampled_from(["S1", "S2"]), st.integers(1, MAX_ALIKE)), max_size=3)
PIECES = st.lists(st.tuples(st.booleans(), WHATS), max_size=8)


def report(findings: Findings, whats: list[tuple[str, int]], number: int) -> None:
    """Report a number of findings of each rule."""
    for rule, count in whats:
        for i in range(count):
            findings.at(f"piece {number}").damage(rule, f"{rule} {i}")
        findings.count(rule, count)


@given(PIECES, st.integers(1, 4))
def test_parts_that_are_filled_later_change_nothing(
    pieces: list[tuple[bool, list[tuple[str, int]]]], every: int
) -> None:
    expected, findings = Findings(), Findings()
    parts: list[tuple[Part, Findings]] = []
    for number, (of_a_task, whats) in enumerate(pieces):
        report(expected, whats, number)
        if of_a_task:
            task = Findings()
            report(task, whats, number)
            parts.append((findings.part(), task))
        else:
            report(findings, whats, number)
        if number % every == 0:
            for part, task in reversed(parts):
                part.found = task.result()
            findings.settle()
            parts.clear()
    for part, task in reversed(parts):
        part.found = task.result()
    findings.settle()
    assert findings.found == expected.found
    assert findings.omitted == expected.omitted
    assert findings.checked == expected.checked


def test_finished_parts_are_added_up_to_the_first_unfinished_one() -> None:
    findings = Findings()
    first, second = findings.part(), findings.part()
    findings.at("after").damage("S1", "x")
    task = Findings()
    task.at("second").damage("S1", "y")
    second.found = task.result()
    findings.settle()
    assert findings.found == ()
    first.found = Findings().result()
    findings.settle()
    assert [finding.where for finding in findings.found] == ["second", "after"]

"""Findings of tasks are counted and limited as if the tasks had reported them directly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.storage.services.verify.findings import MAX_ALIKE, Findings

WHATS = st.lists(st.tuples(st.sampled_from(["S1", "S2"]), st.integers(1, MAX_ALIKE)), max_size=3)
PIECES = st.lists(st.tuples(st.booleans(), WHATS), max_size=8)


def report(findings: Findings, whats: list[tuple[str, int]], number: int) -> None:
    """Report a number of findings of each rule."""
    for rule, count in whats:
        for i in range(count):
            findings.at(f"piece {number}").damage(rule, f"{rule} {i}")
        findings.count(rule, count)


@given(PIECES)
def test_findings_of_tasks_are_as_those_that_are_reported_directly(
    pieces: list[tuple[bool, list[tuple[str, int]]]],
) -> None:
    expected, findings = Findings(), Findings()
    for number, (of_a_task, whats) in enumerate(pieces):
        report(expected, whats, number)
        if of_a_task:
            task = Findings()
            report(task, whats, number)
            findings.include(task.result())
        else:
            report(findings, whats, number)
    assert findings.by_severity == expected.by_severity
    assert findings.omitted == expected.omitted
    assert findings.checked == expected.checked

"""What EXPLAIN says of a scan."""

from __future__ import annotations

from weft.streams.read.scan_facts import ARROW, ScanFacts


def test_the_text_of_a_scan_has_singulars_and_plurals() -> None:
    one = ScanFacts("cut:1", ARROW, 1, 0, 1, 20, 10, ("id",), "", tasks=1, divided=1)
    assert str(one) == (
        "weft cut:1, 1 file group (1 with logs), 0 skipped, 1 task (1 file group divided), logs 20 bytes, "
        "base 10 bytes, 1 column"
    )
    more = ScanFacts("cut:1", ARROW, 2, 3, 0, 0, 10, ("id", "a"), "(id == 3)", tasks=2, divided=0, known=4)
    assert str(more) == (
        "weft cut:1, 2 file groups (0 with logs), 3 skipped, 4 known from statistics, 2 tasks (0 file groups divided), "
        "logs 0 bytes, base 10 bytes, 2 columns, filter (id == 3)"
    )

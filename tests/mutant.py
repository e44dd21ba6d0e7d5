"""What a mutant is, and where the tests are that mutants are found by."""

from __future__ import annotations

from dataclasses import dataclass

LAWS = "tests/storage/test_laws.py"
WRITER = "tests/storage/test_writer.py"
COMPACTION = "tests/storage/test_compaction.py"
CONFORMANCE = "tests/conformance/test_conformance.py"


@dataclass(frozen=True)
class Mutant:
    """``old`` in ``file`` becomes ``new``; ``tests`` (pytest's words for a selection) must find it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

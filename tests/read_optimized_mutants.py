"""Mutants of read-optimized reads: what they show, what they say is lacking, and what is verified."""

from __future__ import annotations

from tests.mutant import Mutant

_TESTS = "tests/storage/test_read_optimized.py"

READ_OPTIMIZED_MUTANTS = {
    "a fold's commits are as young as the fold": Mutant(
        "read/read_optimized.py",
        "held.get(lane, 0) + 1 for lane in file.reach",
        "seq for lane, seq in file.reach.items()",
        (_TESTS, "-k", "fold"),
    ),
    "void commits make the base look stale": Mutant(
        "read/read_optimized.py", "and not cuts.in_spans(rolled_back, number)", "", (_TESTS, "-k", "void")
    ),
    "the last of several waiting commits counts": Mutant(
        "read/read_optimized.py",
        "min(seq, oldest.get(lane, seq))",
        "max(seq, oldest.get(lane, seq))",
        (_TESTS, "-k", "since_when"),
    ),
    "a dataset shows files of an older schema as they are": Mutant(
        "read/read_optimized.py", "if older:", "if False:", (_TESTS, "-k", "older_schema")
    ),
    "a dataset does not verify pages": Mutant(
        "read/read_optimized.py",
        "page_checksum_verification=True",
        "page_checksum_verification=False",
        (_TESTS, "-k", "damaged"),
    ),
    "a dataset does not verify footers": Mutant(
        "read/read_optimized.py", "verify_tail(source, file)", "pass", (_TESTS, "-k", "damaged")
    ),
    "a dataset takes what was given up for lost": Mutant(
        "read/read_optimized.py", "with reading(self._store, self._at):", "if True:", (_TESTS, "-k", "gone")
    ),
    "a read of base files sees logs": Mutant(
        "read/snapshot.py",
        "(base_slices(self._state), []) if read_optimized",
        "(base_slices(self._state), []) if False",
        (_TESTS, "-k", "last_compaction"),
    ),
}

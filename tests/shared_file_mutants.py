"""Mutants of files that file groups share: whose rows are whose, when a file is whole, and when it may go."""

from __future__ import annotations

from tests.mutant import Mutant

_TESTS = "tests/storage/test_shared_files.py"
_LEFT = "tests/storage/test_left_behind.py"

SHARED_FILE_MUTANTS = {
    "a slice is all rows of its file": Mutant(
        "files/base_file.py",
        "if parts is None:\n        return {number",
        "if True:\n        return {number",
        (_TESTS, "-k", "leaves_files"),
    ),
    "parts begin where the last row group ended": Mutant(
        "files/base_file.py",
        "first, end = self._part_from, self._rows + self._pending_rows",
        "first, end = self._rows, self._rows + self._pending_rows",
        (_TESTS, "-k", "rows_of_one_file"),
    ),
    "a file that some have left is read as it is": Mutant(
        "core/plan/slices.py",
        "for path, rows in rest.items() if rows == 0)",
        "for path, rows in rest.items() if rows >= 0)",
        (_TESTS, "-k", "not_read_as_they_are"),
    ),
    "a file with logs beside it is read as it is": Mutant(
        "core/plan/slices.py",
        "own.slice.base is not None and len(own.rows) == 0:",
        "own.slice.base is not None:",
        (_TESTS, "-k", "logs_beside"),
    ),
    "a file goes with the first slice that lost its race": Mutant(
        "services/compaction.py",
        "for path in _files(offered.values()) if path not in published)",
        "for path in _files(made for group, made in offered.items() if group not in kept))",
        (_TESTS, "-k", "lost_their_race"),
    ),
    "a dataset shows what has left a file": Mutant(
        "read/read_optimized.py",
        "parts=own.parts)",
        "parts=None)",
        (_TESTS, "-k", "current_of_a_file"),
    ),
    "an entry does not say that there are parts": Mutant(
        "services/compaction.py",
        "parts = any(",
        "parts = False and any(",
        (_TESTS, "-k", "wherever"),
    ),
    "verify does not look beside a part": Mutant(
        "services/verify/verify_files.py",
        "for row in (first - 1, end) if",
        "for row in () if",
        (_TESTS, "-k", "wrong_parts"),
    ),
    "who is left behind keeps the file": Mutant(
        "services/compaction.py",
        "[*cut_tasks(dirty), *cut_tasks(behind)]",
        "cut_tasks(dirty)",
        (_LEFT, "-k", "without_having_rows"),
    ),
    "who is left behind is put where others will leave again": Mutant(
        "services/compaction.py",
        "[*cut_tasks(dirty), *cut_tasks(behind)]",
        "cut_tasks(sorted([*dirty, *behind], key=lambda own: own.group))",
        (_LEFT, "-k", "without_having_rows"),
    ),
    "whoever shares a file with those that leave follows them": Mutant(
        "core/plan/mostly_unreferenced.py",
        "* LEFT_BEHIND < file.rows",
        "< file.rows",
        (_LEFT, "-k", "left_alone"),
    ),
    "a slice gets a successor of its own cut": Mutant(
        "core/plan/mostly_unreferenced.py",
        "if any(made.cut.get(lane, 0) != seq",
        "if any(True",
        (_LEFT, "-k", "no_successor"),
    ),
}

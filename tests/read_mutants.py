"""Mutants of what reads leave out: one line is broken, and the tests named beside it must turn red."""

from __future__ import annotations

from tests.mutant import Mutant

PRUNING = "tests/storage/test_pruning.py"
RUNS = "tests/storage/test_runs.py"
RUN_KEYS = "tests/storage/core/test_run_keys.py"
PREDICATE = "tests/storage/core/test_predicate.py"
BLOCKS = "tests/storage/test_log_blocks.py"


READ_MUTANTS = {
    "row groups are left out though logs touch them": Mutant(
        "read/pruning.py",
        "return self.touched is not None and (bounds is None or keys.any_within(self.touched, bounds))",
        "return False",
        (PRUNING, "-k", "logs_touch"),
    ),
    "of two conditions either of which will do one is forgotten": Mutant(
        "core/predicate.py",
        "            return None\n        found |= part",
        "            continue\n        found |= part",
        (PREDICATE, "-k", "column_can_have"),
    ),
    "a value rounded is taken for the value": Mutant(
        "core/predicate.py",
        "return bool(one == other or any(is_kind(one) and is_kind(other) for is_kind in _KINDS))",
        "return True",
        (PREDICATE,),
    ),
    "NaN is forgotten where a comparison is negated": Mutant(
        "core/predicate.py", "return floats or may_hold(", "return may_hold(", (PREDICATE, "-k", "may_hold")
    ),
    "statistics of an older schema are believed": Mutant(
        "files/base_file.py",
        "told = footer.leaves.keys() if older is None else {schema.sort_column}",
        "told = footer.leaves.keys()",
        (PRUNING, "-k", "older_schema"),
    ),
    "blocks at the end of their key range are left out": Mutant(
        "read/pruning.py",
        "keys.lower_bound(wanted, least) < keys.upper_bounds(wanted, largest)",
        "keys.lower_bound(wanted, least) < keys.lower_bound(wanted, largest)",
        (PRUNING, "-k", "get"),
    ),
    "file groups that are read together are taken for sorted": Mutant(
        "core/merge/run_keys.py",
        "return place << self.bits | number",
        "return number",
        (RUNS,),
    ),
    "log rows of a file are taken for one range whatever lies between them": Mutant(
        "core/plan/slices.py", " & (start[1:] == start[:-1] + rows[:-1])", "", (RUNS,)
    ),
    "rows of file groups that are read together are all taken for those of one": Mutant(
        "files/base_file.py",
        "known = places if len(wanted) > 1 else None",
        "known = [0] * len(places) if len(wanted) > 1 else None",
        (RUNS,),
    ),
    "what a part has in other row groups is counted again": Mutant(
        "files/base_file.py", "here = np.minimum(first + rows, end) - np.maximum(first, begin)", "here = rows", (RUNS,)
    ),
    "keys beyond those of the logs of a run are taken for these": Mutant(
        "core/merge/run_keys.py",
        "min(max(int(own.max()) for own in vectors) + 1,",
        "min(max(int(own.max()) for own in vectors),",
        (RUN_KEYS,),
    ),
    "keys too far apart to be put below a file group are taken for their neighbours": Mutant(
        "core/merge/run_keys.py", "number = 2 * position + found", "number = 2 * position + 1", (RUN_KEYS,)
    ),
    "a merger that fails names keys as they are in a run": Mutant(
        "read/scan.py", "            self._fail_alone(run, task, wanted)\n".strip(), "pass", (RUNS, "-k", "merger")
    ),
    "all that is expected is fetched at once": Mutant(
        "files/log_blocks.py",
        "if room < 0 and chosen:",
        "if False:",
        (BLOCKS,),
    ),
    "a file is fetched whole, however large it is": Mutant(
        "files/log_blocks.py",
        "if rest <= room:",
        "if True:",
        (BLOCKS,),
    ),
    "blocks are decoded as they are": Mutant(
        "files/log_file.py",
        "if zlib.crc32(stored) != self._blocks.crc32[number]:",
        "if False:",
        ("tests/storage/test_corruption.py",),
    ),
}

"""Mutants of schema changes: one line is broken, and the tests named beside it must turn red.

`tests.test_mutants` runs them.
"""

from __future__ import annotations

from tests.mutant import Mutant

EXAMPLES = "tests/storage/test_evolution.py"
REFUSED = "tests/storage/test_evolution_refused.py"

EVOLUTION = "core/schema/evolution.py"
SERVICE = "services/schema_changes.py"
PARTIAL = "core/modes/partial.py"

EVOLUTION_MUTANTS = {
    "S9 a snapshot sees entries of a newer schema": Mutant(
        "log/table_log.py",
        "if entry.table_rev > rev:",
        "if entry.table_rev > rev + 100:",
        (EXAMPLES, "-k", "never_sees"),
    ),
    "a schema is made of one that lost the race": Mutant(
        SERVICE,
        "        wanted = change(state.schema)\n",
        "        change.first = getattr(change, 'first', state.schema)\n        wanted = change(change.first)\n",
        (EXAMPLES, "-k", "concurrent_additions"),
    ),
    "a wider type is not noted": Mutant(
        SERVICE, "changed=old.changed if same else slot", "changed=old.changed", (EXAMPLES, "-k", "default_is_shown")
    ),
    "every column is noted as changed": Mutant(
        SERVICE, "changed=old.changed if same else slot", "changed=slot", (EXAMPLES, "-k", "read_as_they_are")
    ),
    "a new merge mode is no feature": Mutant(
        SERVICE,
        "reader_features=schema.reader_features",
        "reader_features=state.schema.reader_features",
        (EXAMPLES, "-k", "feature"),
    ),
    "a default is shown in place of a NULL of before": Mutant(
        EVOLUTION,
        "known[name] = pc.if_else(present, self._column",
        "known[name] = pc.if_else(self._column(known, name, count).is_valid(), self._column",
        (EXAMPLES, "-k", "default_is_shown"),
    ),
    "a default that was taken back stays in older files": Mutant(
        EVOLUTION,
        "(column.default is not None or name in self.stored)",
        "(column.default is not None)",
        (EXAMPLES, "-k", "default_is_shown"),
    ),
    "files are read as they are whatever has changed": Mutant(
        EVOLUTION, "return rev >= schema.changed or all(", "return True or all(", (EXAMPLES, "-k", "read_as_they_are")
    ),
    "an added count is read as NULL": Mutant(
        EVOLUTION, ' and group.merge != "aggregate"', "", (EXAMPLES, "-k", "added_count")
    ),
    "an added count is NULL": Mutant(
        "core/modes/functions.py",
        "pc.if_else(present, zero, pa.scalar(None, pa.int64()))",
        "pa.nulls(len(present), pa.int64())",
        (EXAMPLES, "-k", "added_count"),
    ),
    "a sum that fits now stays hidden": Mutant(
        "core/modes/aggregate.py",
        "        return _shown(group, columns, merged)\n\n\ndef overflows",
        "        return merged\n\n\ndef overflows",
        (EXAMPLES, "-k", "sum_that_did_not_fit"),
    ),
    "an added column was supplied by the newest event": Mutant(
        PARTIAL,
        "np.full((len(stored), width), _NOBODY, np.uint8)",
        "np.full((len(stored), width), 0, np.uint8)",
        (EXAMPLES, "-k", "supplied_by_a_late_event"),
    ),
    "suppliers of before are forgotten": Mutant(
        PARTIAL, "if known and explicit.any():", "if known and False:", (EXAMPLES, "-k", "keep_their_own_versions")
    ),
    "events keep the types of before": Mutant(
        "files/log_reader.py", "adapt_events(self._schema, batch)", "batch", (EXAMPLES, "-k", "wider_types")
    ),
    "registers keep the state of before": Mutant(
        "files/log_reader.py",
        "adapt_registers(self._schema, file.columns, batch)",
        "batch",
        (EXAMPLES, "-k", "keep_their_own_versions"),
    ),
    "any column may be left out": Mutant(
        "core/merge/events.py",
        "if name not in schema.added]",
        "if name is None]",
        (EXAMPLES, "-k", "under_a_live_writer"),
    ),
    "an added column may not be left out": Mutant(
        "core/merge/events.py",
        "needed = [name for name in whole if name not in schema.added]",
        "needed = whole",
        (EXAMPLES, "-k", "under_a_live_writer"),
    ),
    "hidden columns are numbered by their place": Mutant(
        "core/schema/table_schema.py",
        "_COLUMN_FIELD_IDS + column.id * _IDS_PER_COLUMN + i",
        "_COLUMN_FIELD_IDS + group.id * _IDS_PER_COLUMN + len(ids) + i",
        (EXAMPLES, "-k", "field_ids"),
    ),
    "what code merges is changed": Mutant(
        SERVICE, 'if mode_name(own) == "custom":', 'if mode_name(own) == "nothing":', (REFUSED, "-k", "code and merges")
    ),
    "any type is wider": Mutant(
        EVOLUTION,
        "return bool(old == pa.float32() and new == pa.float64())",
        "return bool(old != new)",
        (REFUSED, "-k", "nested or scale"),
    ),
}

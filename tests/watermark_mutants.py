"""Mutants of watermarks: what is promised, by whom, and what that makes of a stream."""

from __future__ import annotations

from tests.mutant import Mutant

_PROMISES = "tests/storage/test_watermarks.py"
_COMPLETE = "tests/storage/test_completeness.py"

WATERMARK_MUTANTS = {
    "S23 a promise falls": Mutant(
        "core/plan/watermarks.py", "from_ticks(max(ticks), first)", "from_ticks(ticks[-1], first)", (_PROMISES,)
    ),
    "S23 what is void was promised": Mutant(
        "read/lane_watermarks.py",
        "if isinstance(entry, Data) and not in_spans(spans, entry.seq)]",
        "if isinstance(entry, Data)]",
        (_PROMISES, "-k", "void"),
    ),
    "S23 the next writer forgets the promise": Mutant(
        "core/log/lane_state.py", "self.watermarks = entry.watermarks", "pass", (_PROMISES, "-k", "held_to")
    ),
    "S23 a checkpoint forgets the promise": Mutant(
        "core/log/checkpoint_codec.py", "watermarks=own.watermarks,", "", (_PROMISES, "-k", "checkpoint")
    ),
    "S23 one task speaks for all": Mutant(
        "core/plan/watermarks.py",
        "known = found.get(group, Seen(None, 0))",
        "known = Seen(None, 0)",
        (_PROMISES, "-k", "several_tasks"),
    ),
    "S23 a closed lane holds back": Mutant(
        "core/plan/watermarks.py",
        "[lane.value for lane in lanes if not lane.closed]",
        "[lane.value for lane in lanes]",
        (_PROMISES, "-k", "closed"),
    ),
    "S23 a lane that promises nothing is passed over": Mutant(
        "core/plan/watermarks.py",
        "if len(known) == len(values) else None",
        "if known else None",
        (_PROMISES, "-k", "last_open_lane"),
    ),
    "S23 a retraction is an event for everybody": Mutant(
        "core/plan/watermarks.py",
        'if retracts is not None and group.merge != "aggregate":',
        "if False:",
        (_PROMISES, "-k", "retraction"),
    ),
    "S23 a part of a day is no lateness": Mutant(
        "core/plan/watermarks.py",
        "return -(-lateness // _DAY)",
        "return lateness // _DAY",
        (_COMPLETE, "-k", "every_type"),
    ),
    "S23 a value that may still come is complete": Mutant(
        "core/plan/completeness.py", "to_ticks(mark.value) <= limit", "to_ticks(mark.value) < limit", (_COMPLETE,)
    ),
    "S23 silence is completeness": Mutant(
        "core/plan/completeness.py",
        "if mark.value is None or to_ticks",
        "if mark.value is not None and to_ticks",
        (_COMPLETE, "-k", "hold_back"),
    ),
}

"""Broken versions of the real code, one line each, that the simulation must find within a bounded number of schedules.

A mutant replaces a text in the source of one function. The function's code object is exchanged, so that everybody who
has imported it runs the mutant; it is put back afterwards. If the text is not there any more, the code has moved on:
choose its new form.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

MAX_SCHEDULES = 400  # of a mutant; the slowest to be found take about a quarter of it


@dataclass(frozen=True)
class Mutant:
    """``old`` in the source of ``function`` (module:qualified name) becomes ``new``."""

    function: str
    old: str
    new: str


MUTANTS: Mapping[str, Mutant] = {
    "S1 a slot is overwritten": Mutant(
        "storage.commit_log:CommitLog.publish",
        "if self._store.put_if_absent(path, data):",
        "if self._store.put(path, data) is None:",
    ),
    "S2 a slot is left out": Mutant(
        "storage.writer:Writer._header", '"seq": self._state.head + 1', '"seq": self._state.head + 2'
    ),
    "S2 the table lane is read with a gap": Mutant(
        "storage.timeline:Timeline.publish", "build(state, state.head + 1,", "build(state, state.head + 2,"
    ),
    "S3 a claim keeps the epoch": Mutant(
        "storage.writer:Writer._claim", "self._epoch = self._state.epoch + 1", "self._epoch = max(self._state.epoch, 1)"
    ),
    "S3 a fenced writer goes on after the claim": Mutant(
        "storage.writer:Writer.commit",
        "winner = self._timeline.log.publish(entry)",
        "winner = self._timeline.log.publish(entry)\n"
        "        while winner.commit_id != entry.commit_id:\n"
        "            entry = entry.model_copy(update={'seq': winner.seq + 1, 'prev_id': winner.commit_id})\n"
        "            winner = self._timeline.log.publish(entry)",
    ),
    "S4 a lost commit is acknowledged": Mutant(
        "storage.writer:Writer.commit", "if winner.commit_id != entry.commit_id:", "if winner.commit_id is None:"
    ),
    "S4 silence is taken for consent": Mutant(
        "storage.commit_log:CommitLog.publish", "if self._mine(entry):", "if True:"
    ),
    "S4 a lost answer is a lost race": Mutant(
        "storage.commit_log:CommitLog.publish",
        "return self._remember(entry) if winner.commit_id == entry.commit_id else winner",
        "return winner.model_copy(update={'commit_id': ''})",
    ),
    "S6 a batch is forgotten": Mutant("storage.writer:Writer._replayed", "if known is not None:", "if known is 7:"),
    "S6 an old batch is not looked up": Mutant(
        "storage.writer:Writer._look_up", "(entry.query_id, entry.batch) == batch", "entry.query_id == batch"
    ),
    "S7 an entry comes before its files": Mutant("storage.log_file:write_log_file", "store.put(path, data)", "pass"),
    "S8 a snapshot sees what comes after it": Mutant(
        "storage.timeline:Timeline.live_files", "start.get(lane, 0), until)", "start.get(lane, 0))"
    ),
    "S9 a cut is read with the newest slices": Mutant(
        "storage.timeline:Timeline.exact_cut", "state = self.at(wanted.table)", "state = self.refresh()"
    ),
    "S10 a slice is published on another's parent": Mutant(
        "storage.services.compaction:_Run._is_current",
        "return made.parent == (chain[-1].file.cut if chain else {})",
        "return True",
    ),
    "S11 the first commit after a slice is taken for folded": Mutant(
        "storage.core.slices:_after_cut", "return file_seq[position] > cuts[", "return file_seq[position] > 1 + cuts["
    ),
    "S11 a slice says that it holds more than it does": Mutant(
        "storage.services.compaction:_fold", "cut=dict(target)", "cut={lane: seq + 1 for lane, seq in target.items()}"
    ),
    "S12 a skipped group is stated as covered": Mutant(
        "storage.services.compaction:_Run._publish",
        "whole = last and self._complete and not self.skipped and len(kept) == len(self._waiting)",
        "whole = last",
    ),
    "S12 compaction forgets hidden rows": Mutant(
        "storage.services.compaction:_fold", "(shadow, stitched.hidden))", "(shadow, {}))"
    ),
    "S14 a floor orders nothing": Mutant(
        "storage.core.modes.latest:Latest.merge", "], pc.coalesce(arrival, floor)", "], arrival"
    ),
    "S15 a key's bucket depends on its row": Mutant(
        "storage.core.keys:buckets",
        "return np.asarray(transform.bucket(one_array(columns[0]), 1 << bits)).astype(np.int32)",
        "return (np.arange(len(columns[0])) & (1 << bits) - 1).astype(np.int32)",
    ),
    "S22 stamps follow the clock": Mutant(
        "storage.clock:Stamps.next", "stamp = max(clock.now_ms(), self._largest + 1)", "stamp = clock.now_ms()"
    ),
    "W2 a writer does not learn what was committed before": Mutant(
        "storage.writer:Writer.__enter__", "self._observe_all_lanes()", "pass"
    ),
    "K3 an aborted publication loses its files": Mutant(
        "storage.services.compaction:run_compaction", "except CommitUnknown:", "except ZeroDivisionError:"
    ),
    "L1 a compaction waits for open plans": Mutant(
        "storage.services.compaction:run_compaction",
        "    plan_id = new_id()",
        "    while timeline.refresh().plans:\n        timeline.clock.sleep(1)\n    plan_id = new_id()",
    ),
}


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a mutant in place of the real function."""
    function = _find(mutant.function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.function} has not exactly one {mutant.old!r}: choose its new form"
    source = source.replace(mutant.old, mutant.new)
    names: dict[str, Any] = {}
    # This module's `from __future__ import annotations` holds for what it compiles.
    exec(compile(source, f"<mutant of {mutant.function}>", "exec"), dict(function.__globals__), names)
    (made,) = names.values()
    original = function.__code__
    function.__code__ = _plain(made).__code__
    try:
        yield
    finally:
        function.__code__ = original


def _find(name: str) -> FunctionType:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    return _plain(found)


def _plain(found: Any) -> FunctionType:
    """The function beneath what decorators made of it."""
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(function, FunctionType), f"{found} is not a function"
    return function

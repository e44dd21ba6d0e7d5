"""All mutants of the protocol, by the rule that each breaks and how.

What is pure (merging, planning, codecs) is mutated by a tool instead: see `tests.mutation_score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation.batch_mutants import BATCHES
from tests.simulation.log_mutants import ARCHIVES, MOMENTS, READS, SLOTS_AND_CLAIMS
from tests.simulation.mutant import Mutant
from tests.simulation.overlay_mutants import OVERLAYS
from tests.simulation.publish_mutants import PUBLISHING
from tests.simulation.reference_mutants import REFERENCES
from tests.simulation.retire_mutants import RETIRING
from tests.simulation.service_mutants import BARRIERS, CLEANING, ERASING, ORDER_AND_TIMES, REWRITING
from tests.simulation.split_mutants import SPLITS

MUTANTS: Final[Mapping[str, Mutant]] = {
    **SLOTS_AND_CLAIMS,
    **READS,
    **MOMENTS,
    **CLEANING,
    **BARRIERS,
    **ERASING,
    **REWRITING,
    **ARCHIVES,
    **ORDER_AND_TIMES,
    **REFERENCES,
    **OVERLAYS,
    **PUBLISHING,
    **SPLITS,
    **BATCHES,
    **RETIRING,
}

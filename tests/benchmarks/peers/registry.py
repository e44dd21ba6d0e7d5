"""The systems that can be measured, by name. A process imports only the one that it measures."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.benchmarks.peers.system import System

SYSTEMS: Final = {
    "weft": ("weft_system", "Weft"),
    "weft-overlays": ("weft_system", "WeftOverlays"),
    "paimon": ("paimon", "Paimon"),
    "hudi": ("hudi", "Hudi"),
    "delta": ("delta", "Delta"),
    "iceberg": ("iceberg", "Iceberg"),
}
"""Module and class."""


def system_class(name: str) -> type[System]:
    module, class_name = SYSTEMS[name]
    found: type[System] = getattr(importlib.import_module(f"tests.benchmarks.peers.{module}"), class_name)
    return found

"""The pipeline file of the demo.

It is a file, because users read it: ``weft demo --keep DIR`` leaves it in the folder, and all commands accept it. The
four topics have different conventions for deletes, times and money (`weft.streams.demo.messages`), which SQL
expressions in the file handle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import weft.streams.cli
from weft.streams.spark.settings import QUICK_START

TABLE: Final = "orders_wide"
PIPELINE_FILE: Final = "pipeline.yaml"
STREAMS: Final = ("orders", "payments", "shipments", "clicks")
"""Names of the streams, which are also the names of their topics and lanes."""

_SERVERS: Final = "localhost:9092"


def write_pipeline(folder: Path, bootstrap_servers: str, *, java_options: str = QUICK_START) -> Path:
    """Write the pipeline file of a demo that keeps all its files in ``folder``, and return its path."""
    text = Path(weft.streams.cli.__file__).with_name("demo_pipeline.yaml").read_text(encoding="utf-8")
    path = folder / PIPELINE_FILE
    text = text.replace(_SERVERS, bootstrap_servers).replace(QUICK_START, java_options)
    path.write_text(text, encoding="utf-8")
    return path

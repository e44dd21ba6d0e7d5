"""A small table, pipeline files for it, and the command line in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from weft.streams.cli.main import app

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 2,
    "columns": {"id": "bigint", "a": "string", "at": "bigint", "b": "double"},
    "groups": {"ga": {"columns": ["a", "at"], "ordering": ["at"]}, "gb": {"columns": ["b"]}},
    "streams": {"sa": {"groups": ["ga"]}, "sb": {"groups": ["gb"]}},
}


def weft(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def weft_output(*arguments: str | Path) -> str:
    """Run a command that must succeed; returns its output."""
    done = weft(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def pipeline_file(folder: Path, **changes: Any) -> Path:
    path = folder / "p.yaml"
    source = {"type": "spark", "format": "rate"}
    whole = {"table": {"uri": "./wide", "config": CONFIG}, "writers": {"sa": {"source": source}}, **changes}
    path.write_text(yaml.safe_dump(whole))
    return path

"""Writes the page of a demo that has ended."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from storage.errors import InvalidInput
from streams.demo.outcome import Verdict
from streams.demo.report import Facts, report_html
from streams.demo.samples import Samples

_PACKAGES: Final = ("weft", "pyspark", "pyarrow", "confluent-kafka")


def write_report(
    file: Path,
    verdict: Verdict,
    samples: Samples,
    seconds: float,
    streams: Sequence[str],
    settings: Mapping[str, str],
) -> None:
    """Write the page.

    Args:
        file: Where; an existing file is replaced.
        verdict: The result.
        samples: What was measured.
        seconds: From the first message until the tables had all, or until the run ended early.
        streams: Names of the streams.
        settings: Settings of the run, by name.

    Raises:
        InvalidInput: The file cannot be written.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    machine = {"Python": platform.python_version(), "system": platform.system(), "cores": str(os.cpu_count())}
    page = report_html(
        Facts(
            equal=verdict.equal,
            verdict=verdict.text,
            seconds=seconds,
            streams=streams,
            samples=samples.all,
            events=samples.events,
            figures=verdict.figures,
            settings={**settings, **versions, **machine},
        )
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--report {file}: {error.strerror}", hint="give a file that can be written") from error


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"

"""Runs all checks of a pipeline, in the order in which a user would repair problems. START HERE for `weft doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from weft.storage.config.table_config import build_schema
from weft.streams import kafka
from weft.streams.doctor.finding import Finding, Findings, Level
from weft.streams.doctor.kafka_checks import check_registry, check_source
from weft.streams.doctor.machine_checks import check_machine
from weft.streams.doctor.store_checks import check_dead_letters, check_table
from weft.streams.pipeline.file.pipeline import Pipeline

SAMPLE: Final = 100


def diagnose(pipeline: Pipeline, writers: Sequence[str], *, sample: int = SAMPLE) -> list[Finding]:
    """Check a pipeline. Nothing is changed, and nothing is left behind.

    Args:
        pipeline: The pipeline.
        writers: Names of the writers to check.
        sample: Number of messages of each writer to decode; 0: do not start Spark.
    """
    findings, specs = Findings(), {name: pipeline.writer(name) for name in writers}
    applications = [dict(writer.spark) for writer in specs.values()]
    if pipeline.compacts_on_cluster:
        applications.append(dict(pipeline.spark))
    check_machine(pipeline, applications, findings)
    schema = check_table(pipeline, findings)
    if schema is None and pipeline.config is not None:
        schema = build_schema(pipeline.config)
    samples: dict[str, pa.Table] = {}
    for name, writer in specs.items():
        if writer.on_error == "dead_letter":
            check_dead_letters(writer, pipeline, findings)
        check_registry(writer, findings)
        if writer.reader_format != kafka.FORMAT:
            findings.skipped(f"writers.{name}.source", f"format {writer.reader_format} is not checked")
        elif (messages := check_source(writer, sample, findings)) is not None:
            samples[name] = messages
    java = all(finding.level is not Level.PROBLEM for finding in findings.all if finding.check == "java")
    if sample and specs and java:
        from weft.streams.doctor.message_checks import check_messages

        check_messages(applications[0], samples, specs, schema, findings)
    elif specs:
        findings.skipped("spark session", "Spark was not started, so no message was decoded")
    return findings.all

"""Checks of the stores of the table and of dead letters, and of the table itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weft.storage import Table
from weft.storage.config.table_config import build_schema
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import NotFound
from weft.storage.services.inspect.measure import measure
from weft.storage.services.inspect.references import reference_reports
from weft.storage.store.open_store import check_reachable, open_store
from weft.storage.store.probe_store import probe_store
from weft.storage.table_facts import clock_lead_ms
from weft.streams.doctor.finding import Findings
from weft.streams.letters.letter_files import default_folder, folder_options
from weft.streams.pipeline.file.check import check_writers, reference_problems, ttl_problems
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.file.pipeline import Pipeline
from weft.streams.pipeline.file.same_table import check_same_table

SKEW_SECONDS: Final = 5.0
TOO_MUCH_SKEW_SECONDS: Final = 60.0
"""With more skew, times cannot order commits (`weft.storage.table_facts.clock_lead_ms`)."""
STORES: Final = "storage/STORES.md lists stores that have it"


def check_table(pipeline: Pipeline, findings: Findings) -> TableSchema | None:
    """Test the store of the table, and compare the table with the file.

    Returns:
        The schema of the table; None if there is no table yet, or it cannot be opened.
    """
    location = pipeline.table
    check_store("table.uri", location.uri, location.storage_options, findings)
    with findings.guarded("table"):
        try:
            table = location.open()
        except NotFound as error:
            if pipeline.config is None:
                findings.problem("table", error.message, "add table.config to the pipeline, and weft run creates it")
            else:
                findings.ok("table", "there is none yet; weft run creates it")
                check_references(pipeline, build_schema(pipeline.config), findings)
            return None
        check_same_table(pipeline, table.schema)
        check_writers(pipeline, table.schema)
        if ahead := clock_lead_ms(table):
            text = f"its newest entry was written by a clock that is {ahead / 1000:.0f} s ahead of this machine's"
            findings.problem("table", text, "synchronise all clocks (NTP); until then times cannot order commits")
        else:
            findings.ok("table", f"{location.uri} is as the file describes it")
        check_buckets(table, findings)
        check_ttl(pipeline, table.schema, findings)
        check_references(pipeline, table.schema, findings)
        return table.schema
    return None


def check_buckets(table: Table, findings: Findings) -> None:
    """Compare the sizes of file groups with what a compaction should rewrite at once."""
    with findings.guarded("buckets"):
        measures = measure(table.snapshot(references=False), watermarks=False)
        if measures.unsplit_groups:
            text = f"{measures.unsplit_groups:,} file groups are not split into {measures.buckets:,} buckets yet"
            findings.warning("buckets", text, f"weft compact, or weft split {table.uri} --buckets {measures.buckets}")
        elif measures.proposed_buckets > measures.buckets:
            text = f"the file groups of {measures.buckets:,} buckets have more than 1 GiB, which a compaction rewrites"
            findings.warning("buckets", text, f"weft split {table.uri} --buckets {measures.proposed_buckets}")
        else:
            findings.ok("buckets", f"{measures.buckets:,}, which fits the sizes of the file groups")


def check_ttl(pipeline: Pipeline, schema: TableSchema, findings: Findings) -> None:
    """Compare the time to live of the table with the services and writers of the file."""
    problems = list(ttl_problems(pipeline, schema))
    for problem in problems:
        findings.warning("ttl", problem.message, problem.hint or "")
    if schema.ttl is not None and not problems:
        findings.ok("ttl", "a service of the file applies the time to live of the table")


def check_references(pipeline: Pipeline, schema: TableSchema, findings: Findings) -> None:
    """Check the tables that the table refers to."""
    if not schema.references:
        return
    with findings.guarded("references"):
        reports = reference_reports(pipeline.table.uri, schema, pipeline.table.storage_options)
        problems = list(reference_problems(pipeline, reports))
        for problem in problems:
            findings.problem("references", problem.message, problem.hint, problem.guide)
        if not problems:
            names = ", ".join(f"{report.name} ({report.table})" for report in reports)
            findings.ok("references", f"{names}: found, with the key and the columns")


def check_dead_letters(writer: WriterSpec, pipeline: Pipeline, findings: Findings) -> None:
    """Test the folder of dead letters of a writer.

    Args:
        writer: The writer.
        pipeline: The pipeline, whose options are used if the folder is in the table's kind of store.
        findings: Gets the findings.
    """
    check, table = f"writers.{writer.name}.dead_letter", pipeline.table
    with findings.guarded(check):
        folder = writer.dead_letter or default_folder(table.uri, writer.lane)
        options = folder_options(folder, table.uri, table.storage_options)
        check_store(check, folder, options or {}, findings, only_writable=True)


def check_store(
    check: str, uri: str, options: Mapping[str, Any], findings: Findings, *, only_writable: bool = False
) -> None:
    """Test a store: create an object, create it again, read, list and delete it.

    Args:
        check: Name of the check.
        uri: The folder.
        options: Options of the store.
        findings: Gets the findings.
        only_writable: Do not test conditional writes and the clock of the store.
    """
    with findings.guarded(check):
        check_reachable(uri, options)
        probe = probe_store(open_store(uri, options))
        if not probe.deleted:
            findings.problem(check, f"{uri}: {probe.path} could not be deleted, and is still there", "allow deletes")
        if not probe.listed:
            findings.problem(check, f"{uri}: a listing lacks a new object", "use a store with consistent listings")
        if not probe.exclusive and not only_writable:
            findings.problem(check, f"{uri} overwrites: a second create of one name was not refused", STORES)
        elif probe.deleted and probe.listed:
            abilities = "creates" if only_writable else "creates exclusively"
            findings.ok(check, f"{uri}: {abilities}, reads, lists and deletes")
        if not only_writable:
            _check_clock(probe.skew_seconds, findings)


def _check_clock(skew: float | None, findings: Findings) -> None:
    if skew is None:
        findings.skipped("clock", "the store does not report times")
        return
    text = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew >= 0 else 'behind'} this machine's"
    hint = "synchronise the clocks of all machines (NTP)"
    if abs(skew) > TOO_MUCH_SKEW_SECONDS:
        findings.problem("clock", text, hint)
    elif abs(skew) > SKEW_SECONDS:
        findings.warning("clock", text, hint)
    else:
        findings.ok("clock", "the store's clock and this machine's agree")

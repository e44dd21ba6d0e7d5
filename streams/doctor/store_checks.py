"""Checks of the stores of the table and of dead letters, and of the table itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from storage import Table
from storage.config import build_schema
from storage.engine import (
    TableSchema,
    check_reachable,
    clock_lead_ms,
    measure,
    open_store,
    probe_store,
    reference_reports,
)
from storage.errors import NotFound
from streams.doctor.finding import Findings
from streams.letters.letter_files import default_folder, folder_options
from streams.pipeline.check import check_same_table, check_writers, reference_problems, ttl_problems
from streams.pipeline.model import WriterSpec
from streams.pipeline.pipeline import Pipeline

SKEW_SECONDS: Final = 5.0
TOO_MUCH_SKEW_SECONDS: Final = 60.0  # from here on times cannot order commits (`storage.engine.clock_lead_ms`)
STORES: Final = "storage/STORES.md lists stores that have it"


def check_table(pipeline: Pipeline, found: Findings) -> TableSchema | None:
    """Try out the store of the table, and compare the table with the file.

    Returns:
        The schema of the table; None if there is no table yet, or it cannot be opened.
    """
    location = pipeline.table
    check_store("table.uri", location.uri, location.storage_options, found)
    with found.guarded("table"):
        try:
            table = location.open()
        except NotFound as error:
            if pipeline.config is None:
                found.problem("table", error.message, "add table.config to the pipeline, and weft run creates it")
            else:
                found.ok("table", "there is none yet; weft run creates it")
                check_references(pipeline, build_schema(pipeline.config), found)
            return None
        check_same_table(pipeline, table.schema)
        check_writers(pipeline, table.schema)
        if ahead := clock_lead_ms(table):
            text = f"its newest entry was written by a clock that is {ahead / 1000:.0f} s ahead of this machine's"
            found.problem("table", text, "set the clocks of all machines; until then times cannot order commits")
        else:
            found.ok("table", f"{location.uri} is as the file describes it")
        check_buckets(table, found)
        check_ttl(pipeline, table.schema, found)
        check_references(pipeline, table.schema, found)
        return table.schema
    return None


def check_buckets(table: Table, found: Findings) -> None:
    """Compare the sizes of file groups with what a compaction should rewrite at once."""
    with found.guarded("buckets"):
        measures = measure(table.snapshot(references=False), watermarks=False)
        if measures.unsplit_groups:
            text = f"{measures.unsplit_groups:,} file groups are not split into {measures.buckets:,} buckets yet"
            found.warning("buckets", text, f"weft split {table.uri} --buckets {measures.buckets}, or weft compact")
        elif measures.proposed_buckets > measures.buckets:
            text = f"the file groups of {measures.buckets:,} buckets have more than 1 GiB, which a compaction rewrites"
            found.warning("buckets", text, f"weft split {table.uri} --buckets {measures.proposed_buckets}")
        else:
            found.ok("buckets", f"{measures.buckets:,}, as the sizes of the file groups ask for")


def check_ttl(pipeline: Pipeline, schema: TableSchema, found: Findings) -> None:
    """Compare the time to live of the table with the services and writers of the file."""
    problems = list(ttl_problems(pipeline, schema))
    for problem in problems:
        found.warning("ttl", problem.message, problem.hint or "")
    if schema.ttl is not None and not problems:
        found.ok("ttl", "a service of the file applies the time to live of the table")


def check_references(pipeline: Pipeline, schema: TableSchema, found: Findings) -> None:
    """Check the tables that the table refers to."""
    if not schema.references:
        return
    with found.guarded("references"):
        reports = reference_reports(pipeline.table.uri, schema, pipeline.table.storage_options)
        problems = list(reference_problems(pipeline, reports))
        for problem in problems:
            found.problem("references", problem.message, problem.hint, problem.guide)
        if not problems:
            names = ", ".join(f"{report.name} ({report.table})" for report in reports)
            found.ok("references", f"{names}: there, with the key and the columns")


def check_dead_letters(writer: WriterSpec, pipeline: Pipeline, found: Findings) -> None:
    """Try out the folder of dead letters of a writer.

    Args:
        writer: The writer.
        pipeline: The pipeline, whose options are used if the folder is in the table's kind of store.
        found: Gets the findings.
    """
    check, table = f"writers.{writer.name}.dead_letter", pipeline.table
    with found.guarded(check):
        folder = writer.dead_letter or default_folder(table.uri, writer.lane)
        options = folder_options(folder, table.uri, table.storage_options)
        check_store(check, folder, options or {}, found, only_writable=True)


def check_store(
    check: str, uri: str, options: Mapping[str, Any], found: Findings, *, only_writable: bool = False
) -> None:
    """Try out a store: create an object, create it again, read, list and delete it.

    Args:
        check: Name of the check.
        uri: The folder.
        options: Options of the store.
        found: Gets the findings.
        only_writable: Conditional writes and clocks do not matter.
    """
    with found.guarded(check):
        check_reachable(uri, options)
        probe = probe_store(open_store(uri, options))
        if not probe.deleted:
            found.problem(check, f"{uri}: {probe.path} could not be deleted, and is still there", "allow deletes")
        if not probe.listed:
            found.problem(check, f"{uri}: a listing lacks a new object", "use a store with consistent listings")
        if not probe.exclusive and not only_writable:
            found.problem(check, f"{uri} overwrites: a second create of one name was not refused", STORES)
        elif probe.deleted and probe.listed:
            done = "creates" if only_writable else "creates exclusively"
            found.ok(check, f"{uri}: {done}, reads, lists and deletes")
        if not only_writable:
            _check_clock(probe.skew_seconds, found)


def _check_clock(skew: float | None, found: Findings) -> None:
    if skew is None:
        found.skipped("clock", "the store gives no times")
        return
    text = f"the store's clock is {abs(skew):.0f} s {'ahead of' if skew >= 0 else 'behind'} this machine's"
    hint = "synchronise the clocks of all machines (NTP)"
    if abs(skew) > TOO_MUCH_SKEW_SECONDS:
        found.problem("clock", text, hint)
    elif abs(skew) > SKEW_SECONDS:
        found.warning("clock", text, hint)
    else:
        found.ok("clock", "the store's clock and this machine's agree")

"""Runs a pipeline: opens or creates its table, then starts each writer and service as a job.

Used by ``weft run`` and by the demo.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from storage import Table
from storage.engine import check_reachable
from storage.errors import Conflict, InvalidInput, NotFound
from streams.pipeline import services
from streams.pipeline.check import check_same_table, check_writers
from streams.pipeline.error_kinds import describe
from streams.pipeline.outage import store_name, wait_out
from streams.pipeline.pipeline import Pipeline
from streams.pipeline.run_lock import hold_locks
from streams.pipeline.status import Report
from streams.pipeline.supervisor import Job, JobStatus, Phase, RestartPolicy, Supervisor

COMPACTION: Final = services.COMPACTION
CLEAN: Final = services.CLEAN

ONCE: Final = RestartPolicy(waits_out=False)
"""For ``--once``: an outage fails the run, because somebody waits for its end."""

OnStatus = Callable[[tuple[JobStatus, ...]], None]

# -P: a folder called `storage` or `streams` in the working directory must not hide the packages.
_PYTHON: Final = (sys.executable, "-P", "-m")


def check_sources(pipeline: Pipeline) -> None:
    """Check the options of Kafka sources before any process is started.

    Raises:
        InvalidInput: An option is wrong; the message names the writer and the option.
    """
    from streams.kafka import FORMAT
    from streams.kafka.options import parse_options

    for writer in pipeline.writers.values():
        if writer.reader_format == FORMAT:
            try:
                parse_options(writer.reader_options, default_starting="latest")
            except InvalidInput as error:
                where = f"{pipeline.path.name}: writers.{writer.name}.source"
                raise InvalidInput(f"{where}: {error.message}", hint=error.hint) from None


def open_table(pipeline: Pipeline) -> Table:
    """Open the table of a pipeline, or create it if the file has a configuration for it.

    Raises:
        NotFound: There is no table, and the file has no configuration for one.
        Conflict: The table differs from the configuration in the file.
        InvalidInput: The table has no such stream or column as a writer needs.
    """
    location = pipeline.table
    check_reachable(location.uri, location.storage_options)
    try:
        table = Table.open(location.uri, storage_options=location.storage_options)
    except NotFound:
        if pipeline.config is None:
            raise NotFound(
                f"there is no table at {location.uri}", hint="add table.config to the pipeline, and it is created"
            ) from None
        try:
            table = Table.create(location.uri, pipeline.config, storage_options=location.storage_options)
        except Conflict:  # another process created it first
            table = Table.open(location.uri, storage_options=location.storage_options)
    check_same_table(pipeline, table.schema)
    check_writers(pipeline, table.schema)
    return table


def writer_job(pipeline: Pipeline, name: str, *, once: bool = False) -> Job:
    """The job of one writer.

    Raises:
        InvalidInput: The pipeline has no such writer.
    """
    pipeline.writer(name)
    argv = (*_PYTHON, "streams.write.writer_job", str(pipeline.path), name, *(("--once",) if once else ()))
    return Job(name, argv, log=pipeline.state / "logs" / f"{name}.log")


def service_job(pipeline: Pipeline, service: str, *, once: bool = False) -> Job:
    """The job of a service, or of one round of it; named after the service, unless a writer has that name."""
    name = f"{service}-service" if service in pipeline.writers else service
    return Job(
        name,
        (
            *_PYTHON,
            "streams.pipeline.services",
            str(pipeline.path),
            "--service",
            service,
            *(("--once",) if once else ()),
        ),
        log=pipeline.state / "logs" / f"{name}.log",
        background=not once,
        stop_seconds=services.STOP_SECONDS,
    )


def make_jobs(pipeline: Pipeline) -> list[Job]:
    """One job for each writer and each service of the pipeline."""
    jobs = [writer_job(pipeline, name) for name in pipeline.writers]
    return [*jobs, *(service_job(pipeline, service) for service in _services(pipeline))]


def _services(pipeline: Pipeline) -> list[str]:
    """Names of the services. Compaction comes first, because cleaning deletes what it replaced."""
    wanted = {COMPACTION: pipeline.compaction, CLEAN: pipeline.clean}
    return [service for service, section in wanted.items() if section is not None]


def run_pipeline(
    pipeline: Pipeline,
    *,
    only: str | None = None,
    once: bool = False,
    exit_on_failure: bool = False,
    on_status: OnStatus = lambda _: None,
) -> bool:
    """Run a pipeline until it is stopped (SIGTERM, Ctrl-C) or done.

    Args:
        pipeline: The pipeline.
        only: Run this writer alone, without services.
        once: Process what the sources hold now, then run one round of each service. Do not wait for outages to end.
        exit_on_failure: Stop all jobs as soon as one has failed for good.
        on_status: Called several times a second with the status of each job.

    Returns:
        Whether all jobs succeeded.

    Raises:
        Conflict: Another process runs one of these jobs; nothing was started.
        TableError: See `open_table`; nothing was started.
    """
    if only is not None:
        pipeline.writer(only)
    writers = [writer_job(pipeline, name, once=once) for name in (pipeline.writers if only is None else [only])]
    kept = [service_job(pipeline, name, once=once) for name in (_services(pipeline) if only is None else [])]
    with hold_locks(pipeline.state, [job.name for job in (*writers, *kept)], pipeline.path.name) as locks:
        writers, kept = ([replace(job, held=(locks[job.name],)) for job in jobs] for jobs in (writers, kept))
        if once:
            open_table(pipeline)
            return _run_once(writers, kept, on_status, exit_on_failure=exit_on_failure)
        jobs = [*writers, *kept]
        _await_table(pipeline, jobs, on_status)
        return Supervisor(jobs).run(on_status, exit_on_failure=exit_on_failure)


def _run_once(writers: list[Job], kept: list[Job], on_status: OnStatus, *, exit_on_failure: bool) -> bool:
    first = Supervisor(writers, ONCE)
    good = first.run(on_status, exit_on_failure=exit_on_failure)
    ended, asked = list(first.statuses), first.was_asked_to_stop
    for job in kept:
        if asked or (exit_on_failure and not good):
            break
        before = tuple(ended)
        turn = Supervisor([job], ONCE)
        good &= turn.run(lambda now, before=before: on_status((*before, *now)))  # type: ignore[misc]
        ended, asked = [*ended, *turn.statuses], turn.was_asked_to_stop
    return good


def _await_table(pipeline: Pipeline, jobs: list[Job], on_status: OnStatus) -> None:
    """Open or create the table. While its store does not answer, show all jobs as waiting.

    Raises:
        TableError: See `open_table`, except for outages.
    """
    since_ms = time.time_ns() // 1_000_000
    statuses: list[JobStatus] = []

    def tell(error: Exception, _: float) -> None:
        reason = describe(error)
        report = Report(
            doing="waiting", message=reason, waiting_for=store_name(pipeline.table.uri), waiting_since_ms=since_ms
        )
        statuses[:] = [
            JobStatus(job.name, Phase.WAITING, None, 0, report, reason, job.log, (), None, job.background)
            for job in jobs
        ]

    def pause(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            on_status(tuple(replace(status, next_start_seconds=rest) for status in statuses))
            time.sleep(min(1.0, rest))
        return False

    wait_out(lambda: open_table(pipeline), tell, pause)

"""Runs a pipeline: opens or creates its table, then starts each writer and service as a job.

Used by ``weft run`` and by the demo.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from weft.storage import Table
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.streams.pipeline.file.check import check_writers
from weft.streams.pipeline.file.pipeline import Pipeline
from weft.streams.pipeline.file.same_table import check_same_table
from weft.streams.pipeline.run import services
from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.pipeline.run.outage import store_name, wait_out
from weft.streams.pipeline.run.part_states import PartFiles
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.run_lock import hold_locks
from weft.streams.pipeline.run.supervisor import Job, JobStatus, Phase, RestartPolicy, Supervisor

COMPACTION: Final = services.COMPACTION
TTL: Final = services.TTL
PUBLISH: Final = services.PUBLISH
CLEAN: Final = services.CLEAN

ONCE: Final = RestartPolicy(waits_out=False)
"""With ``--once`` an outage fails the run, because the caller waits for it to end."""

OnStatus = Callable[[tuple[JobStatus, ...]], None]

# -P: a folder called `weft` in the working directory must not hide the package.
_PYTHON: Final = (sys.executable, "-P", "-m")


def open_table(pipeline: Pipeline) -> Table:
    """Open the table of a pipeline, or create it. See `create_table`."""
    return create_table(pipeline)[0]


def create_table(pipeline: Pipeline) -> tuple[Table, bool]:
    """Create the table of a pipeline, or open it if it exists and is the one that the file describes.

    Several processes may do this at the same time: one of them creates the table, the others open it.

    Returns:
        The table, and whether this call created it.

    Raises:
        NotFound: There is no table, and the file has no configuration for one.
        Conflict: The table differs from the configuration in the file.
        InvalidInput: The table lacks a stream or column that a writer needs.
        StoreUnavailable: The store does not answer.
    """
    location, created = pipeline.table, False
    try:
        table = location.open()
    except NotFound:
        if pipeline.config is None:
            raise NotFound(
                f"there is no table at {location.uri}", hint="add table.config to the pipeline, and it is created"
            ) from None
        try:
            table = Table.create(location.uri, pipeline.config, storage_options=location.storage_options)
            created = True
        except Conflict:  # another process created it first
            table = Table.open(location.uri, storage_options=location.storage_options)
    check_same_table(pipeline, table.schema)
    check_writers(pipeline, table.schema)
    return table, created


def writer_job(pipeline: Pipeline, name: str, *, once: bool = False) -> Job:
    """The job of one writer.

    Raises:
        InvalidInput: The pipeline has no such writer.
    """
    pipeline.writer(name)
    argv = (*_PYTHON, "weft.streams.write.writer_job", str(pipeline.path), name, *(("--once",) if once else ()))
    return Job(name, argv, log=pipeline.state / "logs" / f"{name}.log")


def service_job(pipeline: Pipeline, service: str, *, once: bool = False) -> Job:
    """The job of a service, or of one round of it."""
    name = pipeline.service_name(service)
    command: tuple[str, ...] = ("weft.streams.pipeline.run.services", str(pipeline.path), "--service", service)
    if service == COMPACTION and pipeline.compacts_on_cluster:
        command = ("weft.streams.write.cluster_job", str(pipeline.path))
    return Job(
        name,
        (*_PYTHON, *command, *(("--once",) if once else ())),
        log=pipeline.state / "logs" / f"{name}.log",
        background=not once,
        stop_seconds=services.STOP_SECONDS,
    )


def choose_part(pipeline: Pipeline, only: str | None, *, once: bool = False) -> tuple[list[str], list[str]]:
    """Choose the writers and the services to run, by name.

    Args:
        pipeline: The pipeline.
        only: Name of one writer or service, as the status shows it. None: all of them.
        once: For a run that ends: its writers do not compact.

    Raises:
        InvalidInput: The pipeline has no such writer or service; the hint names those that it has.
    """
    if only is None:
        return list(pipeline.writers), _services(pipeline, once=once)
    if only in pipeline.writers:
        return [only], []
    service_of = {pipeline.service_name(service): service for service in _services(pipeline, once=once)}
    if only in service_of:
        return [], [service_of[only]]
    if only in {COMPACTION, TTL, PUBLISH, CLEAN}:
        reason = "it is false in the file" if only == COMPACTION else f"the file has no section {only}"
        if only == COMPACTION and pipeline.compacts_inline:
            reason = "the writers compact (inline)"
        raise InvalidInput(
            f"the pipeline has no service {only!r}: {reason}",
            hint=f"add a section {only} to the file; without --only, weft run starts every service of the file",
        )
    raise InvalidInput(
        f"the pipeline has no writer {only!r}, and no service of that name",
        hint=f"writers: {', '.join(pipeline.writers)}; services: {', '.join(service_of) or 'none'}",
    )


def watches_table(pipeline: Pipeline, chosen: Sequence[str]) -> bool:
    """Whether a process serves the metrics of the table: that of the first service of the pipeline does.

    Args:
        pipeline: The pipeline.
        chosen: The services that the process runs.
    """
    services_of_file = _services(pipeline)
    return not services_of_file or services_of_file[0] in chosen


def make_jobs(pipeline: Pipeline) -> list[Job]:
    """One job for each writer and each service of the pipeline."""
    jobs = [writer_job(pipeline, name) for name in pipeline.writers]
    return [*jobs, *(service_job(pipeline, service) for service in _services(pipeline))]


def _services(pipeline: Pipeline, *, once: bool = False) -> list[str]:
    """Names of the services. Cleaning comes last, because it deletes what the others replaced."""
    sections: dict[str, object | None] = {
        COMPACTION: pipeline.compaction,
        TTL: pipeline.ttl,
        PUBLISH: pipeline.publish,
        CLEAN: pipeline.clean,
    }
    if pipeline.compacts_inline and not once:
        del sections[COMPACTION]
    return [service for service, section in sections.items() if section is not None]


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
        only: Run this writer or service alone, see `choose_part`.
        once: Process what the sources hold now, then run one round of each service. Do not wait for outages to end.
        exit_on_failure: Stop all jobs as soon as one has failed permanently.
        on_status: Called several times a second with the status of each job.

    Returns:
        Whether all jobs succeeded; with ``once``, also whether all of them ended before they were stopped.

    Raises:
        Conflict: Another process runs one of these jobs; nothing was started.
        TableError: See `open_table`; nothing was started.
    """
    chosen, services_chosen = choose_part(pipeline, only, once=once)
    writers = [writer_job(pipeline, name, once=once) for name in chosen]
    service_jobs = [service_job(pipeline, name, once=once) for name in services_chosen]
    files = PartFiles(pipeline.state)

    def report(statuses: tuple[JobStatus, ...]) -> None:
        files.write(statuses)
        on_status(statuses)

    with hold_locks(pipeline.state, [job.name for job in (*writers, *service_jobs)], pipeline.path.name) as locks:
        writers, service_jobs = (
            [replace(job, lock_fds=(locks[job.name],)) for job in jobs] for jobs in (writers, service_jobs)
        )
        if once:
            open_table(pipeline)
            return _run_once(writers, service_jobs, report, exit_on_failure=exit_on_failure)
        if not writers:  # a service that runs alone does not end with the writers
            service_jobs = [replace(job, background=False) for job in service_jobs]
        jobs = [*writers, *service_jobs]
        _await_table(pipeline, jobs, report)
        return Supervisor(jobs).run(report, exit_on_failure=exit_on_failure)


def _run_once(writers: list[Job], service_jobs: list[Job], on_status: OnStatus, *, exit_on_failure: bool) -> bool:
    """Run the writers side by side, then the services one after the other."""
    succeeded, is_stopped = True, False
    ended: list[JobStatus] = []
    for jobs in ([writers] if writers else []) + [[job] for job in service_jobs]:
        if is_stopped:
            return False
        if exit_on_failure and not succeeded:
            break
        before = tuple(ended)
        turn = Supervisor(jobs, ONCE)
        succeeded &= turn.run(
            lambda now, before=before: on_status((*before, *now)),  # type: ignore[misc]
            exit_on_failure=exit_on_failure,
        )
        ended, is_stopped = [*ended, *turn.statuses], turn.is_stop_requested
        succeeded &= all(status.phase is not Phase.STOPPED for status in turn.statuses)
    return succeeded


def _await_table(pipeline: Pipeline, jobs: list[Job], on_status: OnStatus) -> None:
    """Open or create the table. While its store does not answer, show all jobs as waiting.

    Raises:
        TableError: See `open_table`, except for outages.
    """
    since_ms = time.time_ns() // 1_000_000
    statuses: list[JobStatus] = []

    def report_outage(error: Exception, _: float) -> None:
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

    wait_out(lambda: open_table(pipeline), report_outage, pause)

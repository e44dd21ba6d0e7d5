"""One process per part of a pipeline: ``weft run --only`` and ``weft create``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import Result

from tests.http_get import get
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.run import choose_part, make_jobs

PATIENCE_SECONDS = 120.0  # for operations of a second on an idle machine
RATE = {"source": {"type": "spark", "format": "rate"}}


def test_a_part_is_a_writer_or_a_service(tmp_path: Path) -> None:
    pipeline = load_pipeline(pipeline_file(tmp_path, clean={}))
    assert choose_part(pipeline, None) == (["sa"], ["compaction", "clean"])
    assert choose_part(pipeline, "sa") == (["sa"], [])
    assert choose_part(pipeline, "compaction") == ([], ["compaction"])
    assert choose_part(pipeline, "clean") == ([], ["clean"])
    with pytest.raises(InvalidInput) as refused:
        choose_part(pipeline, "orders")
    assert refused.value.message == "the pipeline has no writer 'orders', and no service of that name"
    assert refused.value.hint == "writers: sa; services: compaction, clean"


def test_a_time_to_live_has_a_service(tmp_path: Path) -> None:
    config = CONFIG | {"ttl": {"rows": "90 days"}}
    whole = {"table": {"uri": "./wide", "config": config}, "clean": {}}
    declared = load_pipeline(pipeline_file(tmp_path, **whole))
    assert choose_part(declared, None) == (["sa"], ["compaction", "ttl", "clean"])
    assert choose_part(declared, "ttl") == ([], ["ttl"])
    assert declared.ttl is not None
    assert declared.ttl.every == 600
    off = load_pipeline(pipeline_file(tmp_path, **whole, ttl=False))
    assert choose_part(off, None) == (["sa"], ["compaction", "clean"])
    with pytest.raises(InvalidInput, match="no service 'ttl': the file has no section ttl"):
        choose_part(off, "ttl")
    later = load_pipeline(pipeline_file(tmp_path, ttl={"every": "1 hour"}))
    assert choose_part(later, None) == (["sa"], ["compaction", "ttl"]), "weft alter may set it on a running pipeline"


def test_writers_that_compact_need_no_service(tmp_path: Path) -> None:
    pipeline = load_pipeline(pipeline_file(tmp_path, compaction="inline", clean={}))
    assert choose_part(pipeline, None) == (["sa"], ["clean"])
    assert choose_part(pipeline, None, once=True) == (["sa"], ["compaction", "clean"]), "its writers end at once"
    assert [job.name for job in make_jobs(pipeline)] == ["sa", "clean"]
    with pytest.raises(InvalidInput, match=r"no service 'compaction': the writers compact \(inline\)"):
        choose_part(pipeline, "compaction")


@pytest.mark.parametrize(
    ("service", "why"), [("compaction", "it is false in the file"), ("clean", "the file has no section clean")]
)
def test_a_service_that_the_file_does_not_have_is_refused(tmp_path: Path, service: str, why: str) -> None:
    path = pipeline_file(tmp_path, compaction=False)
    refused = weft("run", path, "--only", service)
    assert refused.exit_code == 2
    assert f"the pipeline has no service '{service}': {why}" in refused.stderr
    assert not (tmp_path / "wide").exists()


def test_cleaning_is_not_started_by_spark_submit(tmp_path: Path) -> None:
    path = pipeline_file(tmp_path, clean={})
    command = [sys.executable, "-m", "weft.streams.write.writer_job", str(path), "clean"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == Ending.REFUSED, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["message"].startswith("cleaning is not a Spark application")
    assert f"weft run {path} --only clean" in last["message"]


def test_compaction_on_a_cluster_is_another_process(tmp_path: Path) -> None:
    def modules(**compaction: object) -> list[str]:
        jobs = make_jobs(load_pipeline(pipeline_file(tmp_path, clean={}, compaction=compaction)))
        return [next(part for part in job.argv if part.startswith("weft.streams.")) for job in jobs]

    writer, service = "weft.streams.write.writer_job", "weft.streams.pipeline.run.services"
    assert modules() == modules(on="here") == [writer, service, service]
    assert modules(on="cluster") == [writer, "weft.streams.write.cluster_job", service]


def test_a_writer_may_have_the_name_of_a_service(tmp_path: Path) -> None:
    streams = {"compaction": {"groups": ["ga"]}, "compaction-service": {"groups": ["gb"]}}
    table = {"uri": "./wide", "config": {**CONFIG, "streams": streams}}
    pipeline = load_pipeline(pipeline_file(tmp_path, table=table, writers=dict.fromkeys(streams, RATE)))
    assert choose_part(pipeline, "compaction") == (["compaction"], [])
    assert choose_part(pipeline, "compaction-service") == (["compaction-service"], [])
    assert choose_part(pipeline, "compaction-service-service") == ([], ["compaction"])
    names = [job.name for job in make_jobs(pipeline)]
    assert names == ["compaction", "compaction-service", "compaction-service-service"]


def test_create_creates_the_table_once(tmp_path: Path) -> None:
    path = pipeline_file(tmp_path)
    uri = str(tmp_path / "wide")
    first = weft("create", path)
    assert (first.exit_code, first.stdout) == (0, f"{uri} is created\n")
    again = weft("create", path)
    assert (again.exit_code, again.stdout) == (0, f"{uri} already exists, as the pipeline describes it\n")
    assert json.loads(weft("create", path, "--json").stdout) == {"uri": uri, "created": False}
    assert Table.open(uri).schema.key == ("id",)


def test_create_refuses_a_table_that_differs_and_does_not_change_it(tmp_path: Path) -> None:
    Table.create(tmp_path / "wide", {**CONFIG, "buckets": 4})
    before = sorted((tmp_path / "wide").rglob("*"))
    refused = weft("create", pipeline_file(tmp_path))
    assert refused.exit_code == 1
    assert "buckets: 2 in the file, 4 in the table" in refused.stderr
    assert sorted((tmp_path / "wide").rglob("*")) == before


def test_create_needs_a_configuration(tmp_path: Path) -> None:
    refused = weft("create", pipeline_file(tmp_path, table={"uri": "./wide"}))
    assert refused.exit_code == 1
    assert "add table.config to the pipeline" in refused.stderr
    missing = weft("create", tmp_path / "none.yaml")
    assert (missing.exit_code, "there is no pipeline file" in missing.stderr) == (2, True)


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without Java, which services do not need."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))


@pytest.fixture
def with_rows(tmp_path: Path) -> Path:
    """A pipeline whose table has two commits in its log, with a writer that must not be started."""
    path = pipeline_file(tmp_path, compaction={"every": 0.2, "min_commits": 2}, clean={"every": 0.2, "retain": 0})
    assert weft("create", path).exit_code == 0
    with Table.open(tmp_path / "wide").writer("sb") as writer:
        for value in (1.0, 2.0):
            writer.append(pa.table({"id": [1, 2, 3], "b": [value] * 3}))
    return path


def states(result: Result) -> dict[str, str]:
    return {line["job"]: line["state"] for line in map(json.loads, result.stdout.splitlines())}


@pytest.mark.usefixtures("without_java")
def test_one_round_of_a_service_alone(with_rows: Path) -> None:
    table = Table.open(with_rows.parent / "wide")
    done = weft("run", with_rows, "--only", "compaction", "--once", "--json")
    assert (done.exit_code, states(done)) == (0, {"compaction": "done"})
    assert table.snapshot().slices
    done = weft("run", with_rows, "--only", "clean", "--once", "--json")
    assert (done.exit_code, states(done)) == (0, {"clean": "done"})
    assert list((with_rows.parent / "wide/log").rglob("*.arrow")) == [], "files that compaction replaced are deleted"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    yield running
    for process in running:
        process.kill()
        process.communicate()


def printed_url(process: subprocess.Popen[str]) -> str:
    """The address of the metrics of a process with ``--http 0``."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("--http 0: http://127.0.0.1:")
    return line.removeprefix("--http 0: ").strip()


@pytest.mark.usefixtures("without_java")
@pytest.mark.slow
def test_services_run_at_the_same_time_until_sigterm(with_rows: Path, started: list[subprocess.Popen[str]]) -> None:
    for service, more in (("compaction", ["--http", "0"]), ("clean", [])):
        command = [
            sys.executable,
            "-m",
            "weft.streams.cli.main",
            "run",
            str(with_rows),
            "--only",
            service,
            "--json",
            *more,
        ]
        with (with_rows.parent / f"{service}.out").open(
            "w"
        ) as out:  # a line a second: a pipe would be full in a minute
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True))
    url = printed_url(started[0])
    log, deadline = with_rows.parent / "wide/log", time.monotonic() + PATIENCE_SECONDS
    while list(log.rglob("*.arrow")):
        assert time.monotonic() < deadline, "one process compacts, the other deletes what it replaced"
        assert [process.poll() for process in started] == [None, None]
        time.sleep(0.1)
    # The process reports its commit, and what it sees of the table, later than the other one deletes.
    expected = {'weft_commits_total{part="compaction"} 1.0', f'weft_table_up{{table="{with_rows.parent}/wide"}} 1.0'}
    while not expected <= set((metrics := get(url)).splitlines()):
        assert time.monotonic() < deadline, metrics
        time.sleep(0.1)
    refused = weft("run", with_rows, "--only", "clean")
    assert refused.exit_code == 1
    assert f"p.yaml: clean is already running, by process {started[1].pid} on " in refused.stderr
    assert "--only" in refused.stderr
    for process, service in zip(started, ("compaction", "clean"), strict=True):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, err
        lines = (with_rows.parent / f"{service}.out").read_text().splitlines()
        assert json.loads(lines[-1])["state"] == "stopped"


@pytest.mark.usefixtures("without_java")
@pytest.mark.slow
@pytest.mark.parametrize("command", [["run", "--only", "clean"], ["services"]])
def test_a_free_port_is_printed(with_rows: Path, started: list[subprocess.Popen[str]], command: list[str]) -> None:
    arguments = [sys.executable, "-m", "weft.streams.cli.main", command[0], str(with_rows), *command[1:], "--http", "0"]
    started.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    assert get(printed_url(started[0]))

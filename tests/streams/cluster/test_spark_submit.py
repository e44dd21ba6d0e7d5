"""deploy/spark-submit.sh on a real standalone cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.moto_server import moto_server
from tests.streams.cluster.standalone import Cluster
from tests.streams.cluster.test_standalone import append, pipeline_file, produce
from weft import Table
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import open_table

SCRIPT = Path(__file__).parents[3] / "deploy/spark-submit.sh"
LIMIT_SECONDS = 420.0


def submit_options(master: str, settings: dict[str, str]) -> list[str]:
    """Options of spark-submit; the archive and its Python are set by the script."""
    sent = {key: value for key, value in settings.items() if key not in {"spark.archives", "spark.pyspark.python"}}
    return ["--master", master, *(part for item in sent.items() for part in ("--conf", "=".join(item)))]


def submit(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={**os.environ, "WEFT_PYTHON": sys.executable, "WEFT_ARCHIVE": str(environment)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_writer_is_started_by_the_script(
    tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str], environment: Path
) -> None:
    """With a table on S3, which its executors reach by the options in the file."""
    broker.create_topics({"submit-one": 2})
    produce(broker, "submit-one", range(100))
    with moto_server() as backend, Cluster(workers=1) as cluster:
        place = backend.new_place()
        path = pipeline_file(tmp_path, broker, "submit-one", {"spark.master": "local[1]"}, place)
        table = open_table(load_pipeline(path))
        done = submit(environment, *submit_options(cluster.master, on_executors), "--", str(path), "sa", "--once")
        found = table.snapshot().to_arrow(["id"]).sort_by("id").to_pylist()
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert "spark.master" in done.stdout + done.stderr, "it prints that the master of the file is not used"
    assert found == [{"id": number} for number in range(100)]


# Nightly: the script treats compaction like a writer, and test_killed_compaction.py runs it on executors.
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_compaction_is_started_by_the_script(
    tmp_path: Path, broker: EmbeddedBroker, on_executors: dict[str, str], environment: Path
) -> None:
    """One round, on the executors of two workers."""
    path = pipeline_file(tmp_path, broker, "submit-two", {"spark.master": "local[1]"})
    table = open_table(load_pipeline(path))
    for at in range(3):
        append(table, range(100 - at), at=at)
    with Cluster(workers=2) as cluster:
        options = submit_options(cluster.master, {**on_executors, "spark.cores.max": "2"})
        done = submit(environment, *options, "--", str(path), "compaction", "--once")
        executors = {file.parents[2].name for file in cluster.folder.glob("worker-*/app-*/*/stderr")}
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert executors == {"worker-1", "worker-2"}
    snapshot = Table.open(table.uri).snapshot()
    assert [len(file_slice.rows) for file_slice in snapshot.slices] == [0, 0], "no log files wait"
    found = snapshot.to_arrow(["id", "at"]).sort_by("id").to_pylist()
    assert found == [{"id": number, "at": min(2, 99 - number)} for number in range(100)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: spark-submit.sh"),
        (["--master", "yarn", "p.yaml", "sa"], "usage: spark-submit.sh"),
        (["--", "none.yaml", "sa"], "there is no pipeline file none.yaml"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, message in done.stderr) == (2, True)

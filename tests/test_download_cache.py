"""Clients of package registries: what cannot be fetched is a reason to skip a test, never its failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.download_cache import Unavailable, run_client


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-client"], "there is no program `no-such-client`"),
        ([sys.executable, "-c", "raise SystemExit('no network')"], "fails: no network"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "takes longer than 0.5 s"),
    ],
)
def test_what_cannot_be_fetched_is_unavailable(tmp_path: Path, command: list[str], reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        run_client(command, str(tmp_path), 0.5 if "longer" in reason else 60)


def test_a_client_runs_in_its_folder_with_its_environment(tmp_path: Path) -> None:
    code = "import os, pathlib; pathlib.Path('made').write_text(os.environ['WANTED'])"
    run_client([sys.executable, "-c", code], str(tmp_path), 60, {"WANTED": "a tool"})
    assert (tmp_path / "made").read_text() == "a tool"

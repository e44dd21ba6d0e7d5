"""A real browser for tests of the page: a Chromium of this machine, driven by Playwright; axe-core from npm.

Both are looked for, and fetched where that is possible; `Unavailable` says why they cannot be had.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.download_cache import locked_cache
from weft.streams.ui.application import build_application, build_list_application
from weft.streams.ui.guard import Access
from weft.streams.ui.listed_tables import TableList
from weft.streams.ui.site import Site

AXE: Final = "axe-core@4.14.1"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FETCH_SECONDS: Final = 120
_SERVER_SECONDS: Final = 120.0  # for its start, and for its end
_PATIENCE_MS: Final = 120_000  # of what is done on a page and expected of it: other tests run beside it


class Unavailable(Exception):
    """There is no browser, or no axe-core, on this machine; the text says why."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window.

    Raises:
        Unavailable: No Chromium is installed, or it does not start.
    """
    path = os.environ.get("WEFT_TEST_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise Unavailable(
            "there is no chromium on the PATH (apt-get install chromium; WEFT_TEST_BROWSER names another)"
        )
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=_PATIENCE_MS)
        except Error as error:
            raise Unavailable(f"{path} does not start: {error.message.splitlines()[0]}") from error
        with contextlib.closing(browser):
            yield browser


@contextlib.contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a context of its own, which has `Browser.new_context`'s options; it is closed at the end."""
    with contextlib.closing(browser.new_context(**options)) as context:
        context.set_default_timeout(_PATIENCE_MS)
        yield context.new_page()


def requests_later(page: Page, part: str) -> list[str]:
    """Requests for addresses with some part that the page sends in a while, without those that are on their way."""
    page.wait_for_timeout(800)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if part in request.url else None)
    page.wait_for_timeout(1_500)
    return asked


def axe_script() -> str:
    """The text of axe-core, fetched with npm if no run before has.

    Raises:
        Unavailable: npm is not installed, or does not bring it.
    """
    name = AXE.replace("@", "-")
    with locked_cache(name) as cache:
        there = cache / name
        if not there.is_dir():
            _fetch(cache, there)
        return (there / "axe.min.js").read_text(encoding="utf-8")


def _fetch(cache: Path, target: Path) -> None:
    if shutil.which("npm") is None:
        raise Unavailable("there is no npm, which brings axe-core")
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, AXE]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"npm does not bring {AXE}: {getattr(error, 'stderr', '') or error}") from error
        (Path(folder) / "node_modules/axe-core").rename(target)


@contextlib.contextmanager
def served(shown: Site | TableList, port: int = 0) -> Iterator[str]:
    """The page on a real server in a thread; its address. Port 0: any."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    access = Access(frozenset({"127.0.0.1"}))
    application = build_application(shown, access) if isinstance(shown, Site) else build_list_application(shown, access)
    config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _SERVER_SECONDS
        while not server.started:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        shown.end()
        server.should_exit = True
        thread.join(_SERVER_SECONDS)
        listener.close()


def axe_findings(page: Any, script: str) -> list[str]:
    """What axe-core finds on a page that is serious or critical, with the elements."""
    # The policy of the page forbids scripts that are not its own; the browser adds this one beside the page.
    page.evaluate(script)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['impact']}: {each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes']][:3]}"
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
    ]

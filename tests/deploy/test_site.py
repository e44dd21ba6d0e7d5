"""The documentation site: built from the Markdown of the repository, without dead links, and without other servers."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PageTimeoutError

from tests.streams.ui.browser import Unavailable, chromium

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_MS = 120_000
TRIES = 20
PROGRAM = ROOT / "deploy" / "docs" / "site.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documentation_site", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


site = _load()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = site.build(tmp_path_factory.mktemp("docs"))
    return folder


@pytest.mark.slow
def test_the_site_has_every_document(built: Path) -> None:
    places = {Path("index.html" if path == Path("README.md") else path) for path in site.documents()}
    pages = {path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html") for path in places}
    assert {str(page) for page in pages if not (built / page).is_file()} == set()
    menu = (ROOT / "deploy/docs/zensical.toml").read_text(encoding="utf-8")
    assert [str(path) for path in site.documents() if f'"{path}"' not in menu] == []


@pytest.mark.slow
def test_the_reference_has_every_public_name(built: Path) -> None:
    import weft.storage
    import weft.storage.errors
    import weft.streams

    text = "".join(path.read_text(encoding="utf-8") for path in (built / "deploy/docs/api").glob("*.html"))
    missing = [
        name
        for name in (*weft.storage.__all__, *weft.storage.errors.__all__, *weft.streams.__all__)
        if f'.{name}"' not in text
    ]
    methods = [name for name in vars(weft.Table) if not name.startswith("_") and f'Table.{name}"' not in text]
    assert (missing, set(methods) - {"create_in", "env", "mark_if_due", "writable", "writable_snapshot"}) == ([], set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('<a href="nowhere.html">', "nowhere.html"),
        ('<a href="#nowhere">', "#nowhere"),
        ('<script src="https://cdn.example/x.js"></script>', "fetches https://cdn.example/x.js"),
        ('<img src="//cdn.example/x.png">', "fetches //cdn.example/x.png"),
        ("<p>see\n- one\n- two</p>", "Markdown that is not read"),
    ],
)
def test_what_is_wrong_in_a_page_is_found(built: Path, tmp_path: Path, change: str, says: str) -> None:
    copy = tmp_path / "site"
    shutil.copytree(built, copy)
    page = copy / "ARCHITECTURE.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</article>", f"{change}</article>"), encoding="utf-8")
    with pytest.raises(site.DeadLinks, match=r"ARCHITECTURE\.html") as found:
        site.check(copy)
    assert says in str(found.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("see:\n- one\n  two\n  - three\n- four", "see:\n\n- one\n    two\n    - three\n- four"),
        (
            "1. one\n\n   ```bash\n   if x\n     y\n   ```\nend",
            "1. one\n\n    ```bash\n    if x\n      y\n    ```\nend",
        ),
        ("```text\n- not a list\n  kept\n```", "```text\n- not a list\n  kept\n```"),
        ("- one\n\n  more\n- two", "- one\n\n    more\n\n- two"),
        ("[cases](tests/fixtures/format) and [README](README.md)", "cases and [README](README.md)"),
    ],
)
def test_lists_are_written_as_the_site_reads_them(written: str, read: str) -> None:
    assert site.for_site(Path("README.md"), written) == f"{read}\n"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    try:
        with chromium() as browser:
            context = browser.new_context()
            context.set_offline(True)
            context.set_default_timeout(PATIENCE_MS)
            yield context.new_page()
    except Unavailable as reason:
        pytest.skip(str(reason))


def open_search(page: Page) -> None:
    """Press the key of the search until it is open: the scripts of the page may not listen yet."""
    for _ in range(TRIES):
        page.keyboard.press("/")
        with contextlib.suppress(PageTimeoutError):
            page.wait_for_function("document.activeElement !== document.body", timeout=PATIENCE_MS / TRIES)
            return
    raise AssertionError("the search does not open")


@pytest.mark.slow
@pytest.mark.integration
def test_search_works_in_a_folder_without_a_network(built: Path, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((built / "index.html").as_uri())
    open_search(page)
    page.keyboard.type("complete_through")
    page.get_by_text("results").first.wait_for()
    found = page.get_by_role("link", name="watermark").or_(page.locator("a[href*='READING.html']"))
    found.first.wait_for(state="attached")
    assert asked
    assert {url.split(":", 1)[0] for url in asked} <= {"file", "blob", "data", "about"}

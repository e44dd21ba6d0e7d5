"""Builds the documentation site from the Markdown files of the repository, and checks it.

    python deploy/docs/site.py build DIR     collects the documents in DIR/pages, and builds DIR/site; finds dead links
    python deploy/docs/site.py check SITE    checks a site that was built: links, anchors, nothing from other places
    python deploy/docs/site.py external      lists the links that lead elsewhere; with --ask each is asked for

The documents stay what GitHub shows. What the site's Markdown reads otherwise is rewritten while they are collected:
content of lists is indented by four spaces, a list begins after an empty line, and a link to a folder is text.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATTERNS = ("*.md", "storage/*.md", "deploy/*.md", "deploy/docs/*.md", "deploy/docs/api/*.md", "tests/*/README.md")
_LINK = re.compile(r"(!?\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\])\(([^)\s]+)\)")
_ITEM = re.compile(r"[-*] |\d+\. ")
_FETCHES = {"link": "href"} | dict.fromkeys(("script", "img", "iframe", "source", "audio", "video"), "src")
_CSS_URL = re.compile(r"(?:url\(|@import )['\"]?(?!data:)([a-z]+:)?//")
_FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
# Markdown that became text of a paragraph instead of a list, a table or a block of code.
_NOT_RENDERED = re.compile(r"<p>(?:[^<]|<(?!/p>))*?(?:\n(?:[-*] |\d+\. )|```|\n?\|[- |]+\|)")
_ASK_SECONDS = 20


class DeadLinks(Exception):
    """Documents or pages have links that lead nowhere; the message lists them."""


def documents() -> list[Path]:
    """All documents of the site, relative to the repository."""
    return sorted(path.relative_to(ROOT) for pattern in PATTERNS for path in ROOT.glob(pattern))


def build(folder: Path) -> Path:
    """Collect the documents in a folder, build the site there, and check it.

    Raises:
        DeadLinks: A link, in a document or a page, leads nowhere.
        subprocess.CalledProcessError: The builder failed, or warned.
    """
    pages = folder / "pages"
    for path in (pages, folder / "site"):
        shutil.rmtree(path, ignore_errors=True)
    collect(pages)
    config = (HERE / "zensical.toml").read_text(encoding="utf-8").replace("REPOSITORY", str(ROOT))
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "zensical.toml"],
        cwd=folder,
        check=True,
    )
    _give_own_worker(folder / "site")
    check(folder / "site")
    return folder / "site"


def _give_own_worker(site: Path) -> None:
    """Let pages take the script with which search works in a folder without a server from the site itself."""
    shutil.copy(HERE / "vendor/iframe-worker-1.0.4/index.js", site / "assets/javascripts/iframe-worker.js")
    for path in site.rglob("*.html"):
        up = "/" if path.name == "404.html" else "../" * (len(path.relative_to(site).parts) - 1)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(_FOREIGN_WORKER, f"{up}assets/javascripts/iframe-worker.js"), encoding="utf-8")


def collect(pages: Path) -> None:
    """Copy the documents, and the files that they link to, into a folder with the places of the repository."""
    dead = []
    for path in documents():
        text = (ROOT / path).read_text(encoding="utf-8")
        for _, target in _LINK.findall(_without_code(text)):
            if not urlsplit(target).scheme and not _copy_linked(path, target, pages):
                dead.append(f"{path}: {target}")
        (pages / path).parent.mkdir(parents=True, exist_ok=True)
        (pages / path).write_text(for_site(path, text), encoding="utf-8")
    shutil.copy(HERE / "site.css", pages / "deploy/docs/site.css")
    if dead:
        raise DeadLinks("\n".join(dead))


def _copy_linked(path: Path, target: str, pages: Path) -> bool:
    file = (ROOT / path).parent / target.partition("#")[0]
    if file.is_file() and file.suffix != ".md":
        there = pages / file.resolve().relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)
    return file.exists()


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def for_site(path: Path, text: str) -> str:
    """A document as the site's Markdown needs it."""
    lines: list[str] = []
    fence: tuple[int, int] | None = None  # how far the block of code is indented, in the document and here
    in_list = in_item = False
    for line in text.splitlines():
        content = line.lstrip()
        indent, previous = len(line) - len(content), lines[-1] if lines else ""
        if fence is not None:
            spaces = max(0, indent - fence[0]) + fence[1]
        else:
            item = bool(_ITEM.match(content))
            if item and not in_item and previous:
                lines.append("")  # else it would go on with the paragraph before it
            if content and not indent and not item:
                in_list = in_list and bool(previous)
            in_list = in_list or item
            in_item = bool(content) and (item or (in_item and bool(previous)))
            spaces = indent // 2 * 4 if in_list else indent
        if content.startswith("```"):
            fence = None if fence is not None else (indent, spaces)
        elif fence is None:
            content = _without_folders(path, content)
        lines.append(" " * spaces + content if content else "")
    return "\n".join(lines) + "\n"


def _without_folders(path: Path, line: str) -> str:
    def text_of_folder(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        is_folder = bool(target) and not urlsplit(target).scheme and ((ROOT / path).parent / target).is_dir()
        return link[1][1:-1] if is_folder else link[0]

    return _LINK.sub(text_of_folder, line)


class _Page(HTMLParser):
    """What a page has: its ids, its links, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _FETCHES and _FETCHES[tag] in given and given.get("rel") != "canonical":
            self.fetched.append(given[_FETCHES[tag]])
        self.fetched += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]


def check(site: Path) -> None:
    """Check every page of a site: links and anchors exist, and a browser fetches nothing from other places.

    Raises:
        DeadLinks: They do not.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    if not pages:
        raise DeadLinks(f"{site}: no page was built")
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site)
        wrong += [f"{name}: fetches {url}" for url in page.fetched if urlsplit(url).netloc]
        unread = _NOT_RENDERED.finditer(path.read_text(encoding="utf-8"))
        wrong += [f"{name}: Markdown that is not read: {found[0][-80:]!r}" for found in unread]
        wrong += [
            f"{name}: {url}"
            for url in {*page.links, *page.fetched}
            if not urlsplit(url).scheme and not urlsplit(url).netloc and not _exists(site, path, url, pages)
        ]
    for style in site.rglob("*.css"):
        if _CSS_URL.search(style.read_text(encoding="utf-8")):
            wrong.append(f"{style.relative_to(site)}: a style from another place")
    if wrong:
        raise DeadLinks("\n".join(sorted(wrong)))
    links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {links} links: all lead somewhere, and nothing is fetched from other places")


def _exists(site: Path, path: Path, url: str, pages: dict[Path, _Page]) -> bool:
    target, _, anchor = url.partition("#")
    file = unquote(target.partition("?")[0])
    there = path if not file else (site / file.lstrip("/") if file.startswith("/") else path.parent / file).resolve()
    if there.is_dir():
        there /= "index.html"
    if not there.is_file():
        # The page for missing pages is served anywhere, so its links begin at the root.
        return path.name == "404.html" and file in {".", "/"}
    return not anchor or there not in pages or unquote(anchor) in pages[there].ids


def external_links() -> Iterator[str]:
    """The links of the documents that lead elsewhere, each once."""
    found = {
        target
        for path in documents()
        for _, target in _LINK.findall(_without_code((ROOT / path).read_text(encoding="utf-8")))
        if urlsplit(target).scheme in {"http", "https"}
    }
    yield from sorted(found)


def _answers(url: str) -> str:
    """What is wrong with a link, or nothing."""
    request = urllib.request.Request(url, headers={"User-Agent": "weft-docs"})  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=_ASK_SECONDS):  # noqa: S310 - as above
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code in {401, 403, 429} else str(error)
    except OSError as error:
        return f"no answer ({error})"


def main() -> int:
    parser = argparse.ArgumentParser(description="The documentation site.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("folder", type=Path)
    commands.add_parser("check").add_argument("site", type=Path)
    commands.add_parser("external").add_argument("--ask", action="store_true")
    given = parser.parse_args()
    try:
        if given.command == "external":
            answers = {url: _answers(url) if given.ask else "" for url in external_links()}
            print("\n".join(f"{url}  {said}".rstrip() for url, said in answers.items()))
            return int(any(said and not said.startswith("no answer") for said in answers.values()))
        if given.command == "build":
            given.folder.mkdir(parents=True, exist_ok=True)
            print(f"built {build(given.folder.resolve())}")
        else:
            check(given.site.resolve())
    except (DeadLinks, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

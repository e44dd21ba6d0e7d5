"""The page `weft ui` over a large table: 60 lanes, 100,000 commits, 8,000 file groups; against one over a small table.

    python -m tests.benchmarks.page [--commits 100000] [--lanes 60] [--buckets 8192] [--keep FOLDER]

Asked by a real server in this process: the time of the server for what each view needs, and the bytes of the answer.
Drawn by a real browser, if there is one: the time from the answer to the painted timeline and heat map, and the longest
frame while the pointer moves over them. Every figure is the median of `ROUNDS`; the last column is large by small.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.timeline import Shape, build, config
from tests.streams.ui.browser import Unavailable, chromium, served
from tests.streams.ui.site import client_of, make_site
from weft import Table

ROUNDS = 7
SMALL = Shape(commits=200, lanes=4, waiting=50, buckets=16)

_PAINTED = """async ([name, address]) => {
  const found = await (await fetch(address)).text();
  const began = performance.now();
  JSON.parse(found);
  window.dispatchEvent(new Event("resize"));
  await new Promise((done) => setTimeout(done, 200));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began - 200;
}"""
_FRAMES = """async (seconds) => {
  const gaps = [];
  let last = performance.now();
  const end = last + seconds * 1000;
  await new Promise((done) => {
    const step = (now) => { gaps.push(now - last); last = now; now < end ? requestAnimationFrame(step) : done(); };
    requestAnimationFrame(step);
  });
  gaps.sort((a, b) => a - b);
  return gaps[Math.floor(gaps.length * 0.95)];
}"""


def build_groups(folder: Path, buckets: int) -> None:
    """A table whose file groups all have a base and logs."""
    table = Table.create(folder, config(buckets))
    for number, rows in enumerate((12 * buckets, 4 * buckets)):
        ids = np.arange(rows)
        with table.writer("s") as writer:
            writer.append(pa.table({"k": ids, "v": ids, "ts": np.full(rows, number)}))
        if not number:
            table.compact()


def median_ms(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def measure(log: Path, groups: Path) -> dict[str, float]:
    """Figures by name, of a table with a log and one with file groups."""
    found: dict[str, float] = {}
    site = make_site(str(log))
    client = client_of(site)
    began = time.perf_counter()
    client.get("/timeline/cells.json?parts=600")
    found["first timeline, ms"] = (time.perf_counter() - began) * 1000
    while site.history.loaded < 1:
        time.sleep(0.05)
    found["whole log read, ms"] = (time.perf_counter() - began) * 1000
    for name, path in (
        ("overview", "/"),
        ("rates", "/overview/rates.json?minutes=1440"),
        ("timeline page", "/timeline"),
        ("timeline cells", "/timeline/cells.json?parts=600"),
    ):
        found[f"{name}, ms"] = median_ms(lambda path=path: client.get(path).raise_for_status())
        found[f"{name}, kB"] = len(client.get(path).content) / 1000
    of_groups = make_site(str(groups))
    client = client_of(of_groups)
    for name, path in (("file groups page", "/files"), ("heat map cells", "/files/cells.json")):
        found[f"{name}, ms"] = median_ms(lambda path=path: client.get(path).raise_for_status())
        found[f"{name}, kB"] = len(client.get(path).content) / 1000
    found.update(draw(site, of_groups))
    return found


def draw(log: Any, groups: Any) -> dict[str, float]:
    """Figures of a browser; none without one."""
    found: dict[str, float] = {}
    try:
        with chromium() as browser:
            for name, site, path, cells in (
                ("timeline", log, "/timeline", "/timeline/cells.json?parts=600"),
                ("heat map", groups, "/files", "/files/cells.json"),
            ):
                with served(site) as address:
                    page = browser.new_page(viewport={"width": 1440, "height": 900})
                    page.goto(address + path, wait_until="load")
                    page.wait_for_selector("[data-chart] canvas")
                    page.click("#live-button")
                    painted = [page.evaluate(_PAINTED, [name, cells]) for _ in range(ROUNDS)]
                    found[f"{name} painted, ms"] = statistics.median(painted)
                    box = page.locator("[data-chart] canvas").first.bounding_box()
                    assert box is not None
                    frames = []
                    for round_ in range(ROUNDS):
                        page.mouse.move(box["x"] + 200, box["y"] + 20)
                        page.mouse.move(box["x"] + 900, box["y"] + 100 + round_, steps=20)
                        frames.append(page.evaluate(_FRAMES, 0.5))
                    found[f"{name} frame (95 %), ms"] = statistics.median(frames)
                    page.close()
    except Unavailable as reason:
        print(f"no browser: {reason}")
    return found


def report(small: Mapping[str, float], large: Mapping[str, float]) -> None:
    print(f"{'':28} {'small':>10} {'large':>10} {'ratio':>8}")
    for name, value in large.items():
        print(f"{name:28} {small[name]:10.1f} {value:10.1f} {value / max(small[name], 0.001):8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, default=60)
    parser.add_argument("--buckets", type=int, default=8192)
    parser.add_argument("--keep", type=Path, help="folder to keep the tables in; existing tables are reused")
    given = parser.parse_args()
    root = given.keep or Path(tempfile.mkdtemp(prefix="weft-page-"))
    try:
        figures = []
        for name, shape, buckets in (
            ("small", SMALL, 16),
            ("large", Shape(given.commits, given.lanes, waiting=400, buckets=64), given.buckets),
        ):
            log, groups = root / f"{name}-log", root / f"{name}-groups"
            if not log.exists():
                build(log, shape, folded=False)
                build_groups(groups, buckets)
            figures.append(measure(log, groups))
        report(*figures)
    finally:
        if given.keep is None:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()

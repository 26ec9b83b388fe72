"""Measures `placer report` and its page for chains of 20, 2,000 and 100,000 ops.

Prints a block per size, each figure beside its limit: CPU seconds and peak memory of the
command, CPU seconds of reading graph.txt, the size of the page, and the times of a
browser: until the first paint, until the script is done, from the first click on a box
until its layers are drawn, and from the input of a name until the search has drawn the
hit. The click and the search each come first on a fresh page. Every figure is the least
of several runs, because the machine is shared. Needs Playwright and Chromium.

    python bench/report_page.py
    python bench/report_page.py 100000 --runs 3
    python bench/report_page.py --builds FOLDER    # reuses the builds in FOLDER
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES: Final = {20: (5, 0), 2000: (520, 64), 100_000: (26_600, 64)}
"""The number of ops of the placed graph -> ops of the spec, devices."""
LIMITS: Final = {
    "CPU": (10.0, "s"),
    "of it, reading the graph": (6.0, "s"),
    "peak memory": (0.0, "MiB"),
    "file": (5.0, "MB"),
    "first paint": (1.0, "s"),
    "ready": (2.0, "s"),
    "first click": (3.0, "s"),
    "search": (1.5, "s"),
    "elements": (0.0, ""),
}
"""The largest value of each figure, or 0, and its unit."""

READ_GRAPH: Final = """
import sys, time
from pathlib import Path
from placer.compiler.build_or_spec import load_build
build = load_build(Path(sys.argv[1]))
begin = time.process_time()
build.graphs
print(time.process_time() - begin)
"""
WATCH_READY: Final = """
new MutationObserver(() => {
  if (document.documentElement?.dataset.ready) window.readyAt ??= performance.now();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ['data-ready'] });
"""
PAINTED: Final = """async () => {
  const paint = () => performance.getEntriesByName('first-contentful-paint')[0];
  while (!paint()) await new Promise(requestAnimationFrame);
  return paint().startTime;
}"""
CLICKED: Final = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const boxes = [...document.querySelectorAll('.picture .box')];
  const box = boxes[Math.floor(boxes.length / 2)];
  const begin = performance.now();
  box.dispatchEvent(new MouseEvent('click', { bubbles: true }));
  while (!document.querySelector('#panel.filled tbody tr')) await frame();
  await frame();
  await frame();
  return performance.now() - begin;
}"""
FOUND: Final = """async (name) => {
  const frame = () => new Promise(requestAnimationFrame);
  const search = document.getElementById('search');
  const begin = performance.now();
  search.value = name;
  search.dispatchEvent(new Event('input'));
  while (document.querySelector('#hit-0 .name')?.textContent !== name) await frame();
  await frame();
  await frame();
  return performance.now() - begin;
}"""


def make_build(ops: int, folder: Path) -> Path:
    """Compile a chain. Return its build."""
    out = folder / f"chain{ops}"
    if not out.is_dir():
        chain = runpy.run_path(str(Path(__file__).with_name("compile_time.py")))
        spec_ops, devices = SIZES[ops]
        spec = folder / f"chain{ops}.yaml"
        spec.write_text(chain["spec"](spec_ops, devices), encoding="utf-8")
        chain["compile_once"](spec, out)
    return out


def make_page(build: Path, out: Path) -> dict[str, float]:
    """Run `placer report`, and read the graph alone. Return the figures of both."""
    command = ["-m", "placer.command", "report", str(build), "--out", str(out)]
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"placer report {build} failed")
    read = [sys.executable, "-c", READ_GRAPH, str(build)]
    seconds = subprocess.run(read, check=True, capture_output=True, text=True).stdout
    return {
        "CPU": used.ru_utime + used.ru_stime,
        "of it, reading the graph": float(seconds),
        "peak memory": used.ru_maxrss / 1024,
        "file": out.stat().st_size / 1e6,
    }


def use_page(browser: Browser, file: Path, parameter: str) -> dict[str, float]:
    """Open a page, click a box, and search a parameter. Return the figures."""

    def fresh(measure: Callable[[Page], Any]) -> Any:
        with browser.new_context(offline=True) as context:
            page = context.new_page()
            page.add_init_script(WATCH_READY)
            page.goto(file.as_uri())
            page.locator("html[data-ready]").wait_for(state="attached")
            return measure(page)

    def opened(page: Page) -> tuple[float, float, float]:
        painted = page.evaluate(PAINTED)
        count = page.evaluate("document.querySelectorAll('*').length")
        return painted, page.evaluate("window.readyAt"), count

    painted, ready, elements = fresh(opened)
    return {
        "first paint": painted / 1e3,
        "ready": ready / 1e3,
        "first click": fresh(lambda page: page.evaluate(CLICKED)) / 1e3,
        "search": fresh(lambda page: page.evaluate(FOUND, parameter)) / 1e3,
        "elements": elements,
    }


def measure(ops: int, folder: Path, runs: int) -> dict[str, float]:
    """Return the least of each figure of several runs."""
    build, page = make_build(ops, folder), folder / f"report{ops}.html"
    parameter = f"fc{(SIZES[ops][0] - 1) // 4 // 2}.w"
    figures: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        for _ in range(runs):
            made = make_page(build, page)
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"]
            )
            figures.append(made | use_page(browser, page, parameter))
            browser.close()
    return {name: min(each[name] for each in figures) for name in LIMITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", type=int, default=[*SIZES])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--builds", type=Path, help="the folder of the builds and pages"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.ops) - SIZES.keys()
    if unknown:
        parser.error(f"the sizes are {', '.join(map(str, SIZES))}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.builds or Path(temporary)
        for ops in arguments.ops:
            begin = time.perf_counter()
            figures = measure(ops, folder, arguments.runs)
            print(
                f"{ops:,} ops, the least of {arguments.runs} runs"
                f" in {time.perf_counter() - begin:.0f} s:"
            )
            for name, value in figures.items():
                limit, unit = LIMITS[name]
                beside = f"  limit {limit:g} {unit}" if limit else ""
                above = "  ABOVE" if limit and value > limit else ""
                digits = 0 if unit in ("", "MiB") else 2
                print(f"  {name:25} {value:8,.{digits}f} {unit:4}{beside}{above}")


if __name__ == "__main__":
    main()

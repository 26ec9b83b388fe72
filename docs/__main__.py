"""Builds the documentation site in build/docs/html: `python -m docs`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from docs.site import check, commands, gallery, layers, pages, placements, terminal
from docs.site.paths import API, COMMAND_LINE, DOCS, GALLERY, HTML, OPS, OUT, ROOT
from tools import op_reference


def main() -> None:
    """Build the site; exit with a list of problems if a page is wrong."""
    with _timed("pages"):
        pages.write(COMMAND_LINE, commands.pages())
        pages.write(OPS, (pages.Page(*page) for page in op_reference.pages().items()))
        pages.write_page(API, layers.page())
        pages.write(GALLERY, gallery.pages())
    with _timed("pictures"):
        placements.draw_all(
            dict.fromkeys([*gallery.pictures(), *placements.asked_by_pages()])
        )
        terminal.run_all(terminal.commands_of_pages())
    with _timed("Sphinx"):
        _run_sphinx()
    with _timed("links"):
        found = list(check.problems(HTML))
    if found:
        sys.exit("\n".join(found))
    print(f"{HTML.relative_to(ROOT)}/index.html")


def _run_sphinx() -> None:
    """Build all pages with every warning as an error."""
    options = ["-E", "-W", "--keep-going", "-n", "-q", "-j", "auto"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-d", OUT / "trees", DOCS, HTML],
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        sys.exit("the pages have the problems above")


@contextmanager
def _timed(part: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    print(f"{part}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()

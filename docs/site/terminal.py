"""Runs commands in a terminal of 80 columns, and returns their output as HTML."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

from docs.site.cache import cached
from docs.site.paths import DOCS, ROOT

COLUMNS: Final = 80
_LINES: Final = 400
_DIRECTIVE = re.compile(r"^ *`{3,}\{terminal\} (.+)$", re.MULTILINE)


def commands_of_pages() -> list[str]:
    """Return the commands whose output the pages show."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        found += _DIRECTIVE.findall(path.read_text(encoding="utf-8"))
    return list(dict.fromkeys(found))


def run_all(commands: Iterable[str]) -> None:
    """Run commands, two at a time, so that the cache has their outputs."""
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(output, commands):
            pass


def output(command: str) -> str:
    """Return what a command of placer prints on a terminal, as HTML.

    Args:
        command: a command line that begins with `placer`, run in the checkout.

    Raises:
        ValueError: it is another command, or it fails.
    """
    return cached("terminal", command, lambda: _html(_run(command)))


def _run(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program != "placer":
        raise ValueError(f"a terminal shows a command of placer, not '{program}'")
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (_LINES, COLUMNS))
    process = subprocess.Popen(
        [sys.executable, "-m", "placer", *arguments],
        cwd=ROOT,
        # A pager would wait for keys.
        env={**os.environ, "TERM": "xterm-256color", "PAGER": "cat"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    printed = "".join(_read(master)).replace("\r\n", "\n")
    if process.wait():
        raise ValueError(f"'{command}' fails:\n{printed}")
    return printed


def _read(master: int) -> Iterator[str]:
    """Yield what is printed on a terminal, until no process has it open."""
    with open(master, encoding="utf-8", errors="replace", newline="") as terminal:
        try:
            while text := terminal.read(4096):
                yield text
        except OSError as error:
            if error.errno != errno.EIO:  # the end of a terminal, on Linux
                raise


def _html(printed: str) -> str:
    """Return printed text with its colors as classes of HTML."""
    lines = Text("\n").join(AnsiDecoder().decode(printed.rstrip("\n")))
    screen = Console(
        record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor"
    )
    screen.print(lines, soft_wrap=True, end="")
    return screen.export_html(inline_styles=True, code_format="{code}")

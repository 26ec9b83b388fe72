"""Run the blocks of a page of the documentation: programs, commands, specs and changes.

This imports only the standard library and placer, so that it also runs with an installed
wheel.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_GENERATED = (
    "docs/gallery/",
    "docs/reference/api/",
    "docs/reference/command-line/",
    "docs/reference/ops/",
)
PAGES = [
    name
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
    )
    if not (name := path.relative_to(ROOT).as_posix()).startswith(_GENERATED)
]
"""All written pages: the building of the site generates the others."""
TIMEOUT = 300
"""Seconds that the commands of a block may take."""
CLIENT = Path(__file__).with_name("page_client.py")
"""The program that stands for `placer` and `python` on a page whose run is cut short."""
NO_RUN = re.compile(r"<!-- no-run: (.+) -->\s*\Z")
_BLOCK = re.compile(r"^( *)```(\w+)( fails)?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_NAME = re.compile(r"# (\S+\.\w+)$")
VARYING = re.compile(
    r"[0-9]+\.[0-9]+…?|[0-9,]+(?= samples)|(?<=after step )[0-9]+|\S*/step-[0-9]+"
    r"|(?<=--checkpoint )\S+"
)
"""Text that depends on the machine: numbers with fractions, rates, the folder of
checkpoints and the step of an interruption."""
FRACTION = re.compile(r"[0-9]+\.[0-9]+(?![0-9]| [kM]B)")
"""Numbers with fractions, except those of bytes, which depend on where a run continues. A
page may leave out digits, as in `0.98…`."""
TRAINS = re.compile(r"\bplacer (train|launch|run)\b|\bpython \S+\.py\b")


class Block(NamedTuple):
    """A block of a page.

    Attributes:
        kind: its language, followed by " fails" for commands that must fail.
        text: its content.
        line: the number of its first line.
        reason: why it does not run, or "".
        follows: whether nothing is between the block before and this one.
    """

    kind: str
    text: str
    line: int
    reason: str
    follows: bool


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the fenced blocks with a language of a page."""
    end = 0
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 2
        reason = NO_RUN.search(page[: found.start()])
        kind = found[2] + (found[3] or "")
        follows = not page[end : found.start()].strip()
        end = found.end()
        text = textwrap.dedent(found[4])
        yield Block(kind, text, line, reason[1] if reason else "", follows)


class PageRun:
    """Runs the blocks of a page in order, in a folder.

    Args:
        folder: an empty folder, which gets a copy of the specs.
        environment: the variables of the commands.
        server: the address of a `page_server`, which ends training after a few steps.
            Then texts after commands that train are not compared. By default nothing is
            cut short.

    Attributes:
        output: everything that the commands have printed.
        namespace: the names that the blocks of Python have defined.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], server: str | None = None
    ) -> None:
        self.folder = folder
        self.output = ""
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self._environment = dict(environment)
        self._last: str | None = None  # of the commands before a text; None elsewhere
        self._written: Path | None = None
        self._spec: Path | None = None
        self._has_trained = False
        shutil.copytree(ROOT / "specs", folder / "specs")
        self._is_cut = server is not None
        if server is not None:
            self._cut(server)

    def run(self, kind: str, text: str, *, follows: bool) -> None:
        """Run a block. Kinds without an effect, such as `json`, are left out.

        Args:
            kind: the language of the block, followed by " fails" for commands that must
                fail; "" for a block that does not run.
            text: its content.
            follows: whether nothing is between the block before and this one. A text is
                compared if it follows commands.

        Raises:
            AssertionError: it does something else than the page says.
        """
        before, self._last = self._last if follows else None, None
        match kind:
            case "python":
                self._python(text)
            case "pycon":
                self._pycon(text)
            case "sh":
                self._sh(text, fails=False)
            case "sh fails":
                self._sh(text, fails=True)
            case "text" if before is not None:
                self._compare(before, text)
            case "yaml":
                self._yaml(text)
            case "diff":
                self._diff(text)

    def _write(self, text: str) -> bool:
        """Write a block to the file that its first line names, if it does."""
        name = _NAME.match(text.partition("\n")[0])
        if name is None:
            return False
        self._written = self.folder / name[1]
        self._written.parent.mkdir(parents=True, exist_ok=True)
        self._written.write_text(text, encoding="utf-8")
        return True

    def _python(self, text: str) -> None:
        if not self._write(text):
            exec(compile(text, str(self.folder / "page.py"), "exec"), self.namespace)

    def _pycon(self, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(text, {}, "page", None, None)
        test.globs = self.namespace  # shared with the other blocks
        said: list[str] = []
        doctest.DocTestRunner(optionflags=_DOCTEST).run(
            test, out=said.append, clear_globs=False
        )
        assert not said, "".join(said)

    def _sh(self, text: str, *, fails: bool) -> None:
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        self.output += done.stdout
        self._last = done.stdout
        self._has_trained |= TRAINS.search(text) is not None
        assert (done.returncode != 0) == fails, f"{text}\n{done.stdout}"

    def _compare(self, output: str, text: str) -> None:
        if self._is_cut and self._has_trained:
            return
        printed = [line.strip() for line in output.splitlines()]
        for line in text.splitlines():  # perhaps without its indentation
            found = any(is_as_written(each, line.strip()) for each in printed)
            assert found, f"no {line!r} in:\n{output}"

    def _yaml(self, text: str) -> None:
        import yaml

        is_written = self._write(text)
        content = yaml.safe_load(text)
        if isinstance(content, dict) and "graph" in content:
            self._check(text)
            if is_written:
                self._spec = self._written
        elif not is_written:
            base = self._spec or self.folder / "specs" / "digits.yaml"
            spec = yaml.safe_load(base.read_text(encoding="utf-8"))
            merged = merge(spec, content)
            if "stream" in merged["data"]["train"]:  # which has no number of passes
                merged["train"].pop("epochs", None)
            self._check(yaml.safe_dump(merged, sort_keys=False))

    def _check(self, spec: str) -> None:
        from placer.compiler.frontend import load_text

        load_text(spec, "page.yaml", self.folder)

    def _diff(self, text: str) -> None:
        header = re.match(r"--- (\S+)\n(?:\+\+\+ .*\n)?", text)
        if header:
            change(self.folder / header[1], text[header.end() :])
        else:
            change(self._file_with(old_and_new(text)[0]), text)

    def _file_with(self, old: str) -> Path:
        """Return the last written file if it has these lines once, or else the only file
        of the folder that does."""
        files = (path for path in self.folder.iterdir() if path.is_file())
        found = [f for f in files if f.read_text("utf-8", "replace").count(old) == 1]
        if self._written in found:
            return self._written
        assert len(found) == 1, f"{old!r} is not once in one file: begin with --- FILE"
        return found[0]

    def _cut(self, server: str) -> None:
        """Let `placer` and `python` be programs that end training after a few steps."""
        commands = self.folder.parent / f"{self.folder.name}-bin"
        commands.mkdir()
        for name in ("placer", "python"):
            client = f'"{sys.executable}" -I -S "{CLIENT}" {name}'
            _write_program(commands / name, client)
        path = self._environment["PATH"]
        self._environment["PATH"] = f"{commands}{os.pathsep}{path}"
        self._environment["PAGE_COMMANDS"] = server


def with_placer(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose PATH begins with this Python, and a program `placer`
    that is written to a new folder `bin`."""
    commands = folder / "bin"
    commands.mkdir()
    _write_program(commands / "placer", f'"{sys.executable}" -m placer')
    folders = [str(commands), str(Path(sys.executable).parent), environment["PATH"]]
    return {**environment, "PATH": os.pathsep.join(folders)}


def _write_program(file: Path, command: str) -> None:
    file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    file.chmod(0o755)


def run_page(page: Path, folder: Path, environment: Mapping[str, str]) -> str:
    """Run all blocks of a page in an empty folder; return what the commands print."""
    run = PageRun(folder, environment)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        kind = "" if block.reason else block.kind
        run.run(kind, block.text, follows=block.follows)
    return run.output


def merge(spec: dict[str, Any], fragment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with the keys of a fragment.

    The keys in the sections of the fragment, such as `optimizer` in `train`, replace
    those of the spec; other keys of these sections stay.
    """
    merged = dict(spec)
    for key, value in fragment.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = {**old, **value} if both else value
    return merged


def is_as_written(printed: str, line: str) -> bool:
    """Return whether a printed line is that of the page, except for varying numbers."""
    if VARYING.sub("0", printed) != VARYING.sub("0", line):
        return False
    numbers = zip(FRACTION.findall(printed), FRACTION.findall(line), strict=True)
    return all(_is_within_a_unit(Decimal(a), Decimal(b)) for a, b in numbers)


def _is_within_a_unit(printed: Decimal, page: Decimal) -> bool:
    """Compare the digits that the page has. The last may differ by one."""
    _, _, exponent = page.as_tuple()
    digits = printed.quantize(page, ROUND_DOWN)
    return abs(digits - page) <= Decimal(1).scaleb(int(exponent))


def change(file: Path, diff: str) -> None:
    """Replace the lines of a diff that begin with `-` by those that begin with `+`."""
    old, new = old_and_new(diff)
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is not once in {file}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def old_and_new(diff: str) -> tuple[str, str]:
    """Return the lines of a diff that begin with `-`, and those that begin with `+`."""
    old, new = (
        "".join(f"{s[1:]}\n" for s in diff.splitlines() if s.startswith(sign))
        for sign in "-+"
    )
    return old, new

"""Run a page of the documentation: its programs, commands, changes and outputs.

This imports nothing but the standard library, so that it runs with an installed wheel too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from decimal import ROUND_DOWN, Decimal
from pathlib import Path

PAGES = {"start/tutorial.md": "customers.yaml", "start/tutorial-flax.md": "net.py"}
"""The tutorials, and the file that each of them changes."""
BLOCK = re.compile(r"^```(\w+)( fails)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = re.compile(
    r"[0-9]+\.[0-9]+…?|[0-9,]+(?= samples)|(?<=after step )[0-9]+|\S*/step-[0-9]+"
    r"|(?<=--checkpoint )\S+"
)
"""What depends on the machine: numbers with fractions, rates, the folder of checkpoints and
the step of an interruption."""
FRACTION = re.compile(r"[0-9]+\.[0-9]+(?![0-9]| MB)")
"""Numbers with fractions, but those of bytes, which depend on where a run continues. A page
may leave out digits, as in `0.98…`."""


def run_page(
    page: Path, folder: Path, spec: str, environment: Mapping[str, str]
) -> str:
    """Run the blocks of a page in order in a folder; return all output.

    A `python` block is written to the file that its first line names, and a `diff` block
    changes the file `spec`. A `sh` block must succeed, or fail if it says so. Each line
    of a `text` block must be in the output of the `sh` block before it, but for
    `VARYING` numbers; those with fractions may differ by one unit of the page's last digit.
    """
    everything = output = ""
    for kind, fails, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(text, encoding="utf-8")
        elif kind == "diff":
            change(folder / spec, text)
        elif kind == "sh":
            done = subprocess.run(
                ["bash", "-ec", text],
                cwd=folder,
                env=dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            output = done.stdout
            everything += output
            assert (done.returncode != 0) == bool(fails), f"{text}\n{output}"
        else:
            assert kind == "text", kind
            printed = output.splitlines()
            for line in text.splitlines():
                found = any(is_as_written(each, line) for each in printed)
                assert found, f"no {line!r} in:\n{output}"
    return everything


def is_as_written(printed: str, line: str) -> bool:
    """Return whether a printed line is that of the page, but for what may differ."""
    if VARYING.sub("0", printed) != VARYING.sub("0", line):
        return False
    numbers = zip(FRACTION.findall(printed), FRACTION.findall(line), strict=True)
    return all(_is_within_a_unit(Decimal(a), Decimal(b)) for a, b in numbers)


def _is_within_a_unit(printed: Decimal, page: Decimal) -> bool:
    """Compare the digits that the page has, of which the last may differ by one."""
    _, _, exponent = page.as_tuple()
    digits = printed.quantize(page, ROUND_DOWN)
    return abs(digits - page) <= Decimal(1).scaleb(int(exponent))


def change(file: Path, diff: str) -> None:
    """Replace the lines of a diff that begin with `-` by those that begin with `+`."""
    old, new = (
        "".join(f"{s[1:]}\n" for s in diff.splitlines() if s.startswith(sign))
        for sign in "-+"
    )
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is not once in {file}"
    file.write_text(text.replace(old, new), encoding="utf-8")

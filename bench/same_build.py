"""Compares what two commits compile: each spec of the newer one, compiled by both.

    python bench/same_build.py main .          # the working tree against main
    python bench/same_build.py 8c263baf HEAD specs/digits.yaml

A commit is anything that git knows, or `.` for the working tree. Compared are

- the programs of nodes, as syntax trees without docstrings,
- graph.txt without its comments,
- sources.json, and plan.json without the digests of files and the versions,
- which files there are; other files, such as modules of the user, byte by byte.

Prints a difference of each file. The status is 1 if there is one, else 0.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON_SPECS = ["digits", "flax_block", "flax_block_gpus"]
COMPILE = """\
import sys
tree, spec, out = sys.argv[1:]
sys.path.insert(0, tree)
from placer.command import main
sys.argv = ["placer", "compile", spec, "--out", out]
main()
"""
SHOWN = 20
"""The lines of a difference that are shown."""
VOLATILE = {"version", "placer", "files", "digest"}
"""Keys of plan.json that change with each text of a program, or release."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("specs", nargs="*", help="by default all of specs/ and bench/")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-build-") as scratch:
        trees = [
            check_out(commit, Path(scratch, name))
            for name, commit in (("old", args.old), ("new", args.new))
        ]
        specs = args.specs or list(all_specs(trees[1]))
        found = 0
        with ThreadPoolExecutor(args.jobs) as pool:
            pairs = pool.map(lambda spec: build_both(trees, spec, scratch), specs)
            for spec, (old, new) in zip(specs, pairs, strict=True):
                differences = list(compare(old, new))
                found += len(differences)
                print(f"{spec}: {len(differences) or 'no'} differences", flush=True)
                for path, lines in differences:
                    print(f"  {path}")
                    print("".join(f"    {line}\n" for line in lines), end="")
    print(f"{len(specs)} specs, {found} files that differ")
    sys.exit(1 if found else 0)


def check_out(commit: str, folder: Path) -> Path:
    """Return a folder with the files of a commit; that of the working tree is `ROOT`."""
    if commit == ".":
        return ROOT
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def all_specs(tree: Path) -> Iterator[str]:
    """The specs of a tree, as arguments of `placer compile`."""
    for folder in ("specs", "bench/specs"):
        yield from sorted(f"{folder}/{f.name}" for f in (tree / folder).glob("*.yaml"))
    yield from (f"specs/{name}.py:build" for name in PYTHON_SPECS)


def build_both(
    trees: Sequence[Path], spec: str, scratch: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Compile a spec of the newer tree with both; return what they wrote."""
    name = spec.replace("/", "_").replace(":", "_")
    old, new = (
        build(tree, trees[1] / spec, Path(scratch, f"{name}-{i}"))
        for i, tree in enumerate(trees)
    )
    return old, new


def build(placer: Path, spec: Path, out: Path) -> dict[str, str]:
    """Compile a spec with a checkout of placer; return the text of each file of the build,
    ready to be compared."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMPILE, placer, spec, out],
        cwd=spec.parent,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{placer} does not compile {spec}:\n{done.stderr}")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): comparable(path) for path in files}


def comparable(path: Path) -> str:
    """Return the text of a file without the parts that may differ."""
    text = path.read_text(encoding="utf-8", errors="backslashreplace")  # weights, too
    if path.name == "program.py":
        return ast.unparse(without_docstrings(ast.parse(text)))
    if path.name == "graph.txt":
        lines = (line.split("  # ")[0].rstrip() for line in text.splitlines())
        return "\n".join(line for line in lines if line)
    if path.name == "plan.json":
        plan = json.loads(text)
        kept = {key: value for key, value in plan.items() if key not in VOLATILE}
        return json.dumps(kept, indent=1)
    if path.name == "sources.json":
        return json.dumps(json.loads(text), indent=1)
    return text


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove the docstrings of a module, its classes and functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def compare(
    old: dict[str, str], new: dict[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """The files that differ, with the first lines of the difference."""
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            sides = (
                text.get(path, "(no such file)").splitlines() for text in (old, new)
            )
            lines = list(difflib.unified_diff(*sides, "old", "new", lineterm="", n=1))
            more = len(lines) - SHOWN
            yield path, lines[:SHOWN] + ([f"… {more} lines more"] if more > 0 else [])


if __name__ == "__main__":
    main()

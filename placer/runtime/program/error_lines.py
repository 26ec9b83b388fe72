"""Which line of a node program an error went through, and which ops of the spec it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeGuard

from placer.ast_lock import AST_LOCK
from placer.build.plan import read_sources
from placer.errors import BuildError

Function: TypeAlias = ast.FunctionDef


def culprit(folder: Path, program: str, trace: TracebackType | None) -> str | None:
    """`at worker-0/program.py:32, forward: op h1 at digits.yaml:28:16`, or less.

    `program` is the node program's path in the build folder. None for an error that
    did not go through it. Ops are named as far as the program's own names, and the
    build's sources, tell.
    """
    line = _deepest_line((folder / program).absolute(), trace)
    return None if line is None else at_line(folder, program, line)


def at_line(folder: Path, program: str, line: int) -> str:
    """The same of a line of the program."""
    text = f"at {program}:{line}"
    try:
        with AST_LOCK:
            module = ast.parse((folder / program).read_bytes())
        sources = read_sources(folder)
    except (OSError, ValueError, SyntaxError, BuildError):
        return text  # which says the most of it
    functions = {f.name: f for f in module.body if isinstance(f, Function)}
    around = next((f for f in functions.values() if _covers(f, line)), None)
    so_far = [s for s in _simple(around) if s.lineno <= line] if around else []
    if around is None or not so_far:
        return text
    called = functions.get(_called(_cause(so_far, functions)))
    within, statements = (called, _simple(called)) if called else (around, so_far[-1:])
    ops = {name for s in statements for name in _named(s)}
    file, places = Path(sources.spec).name, sources.ops
    positions = sorted((places[name], name) for name in ops if name in places)
    written = [f"{name} at {file}:{row}:{column}" for (row, column), name in positions]
    return f"{text}, {within.name}{_listed(written)}"


def _listed(written: Sequence[str]) -> str:
    if not written:
        return ""
    if len(written) == 1:
        return f": op {written[0]}"
    return f": ops {written[0]} to {written[-1]}"


def _deepest_line(program: Path, trace: TracebackType | None) -> int | None:
    found = None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == program:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _simple(node: Function | ast.stmt) -> Iterator[ast.stmt]:
    """The statements inside that hold no others, in order."""
    body: Sequence[ast.stmt] = getattr(node, "body", ())
    if not body:
        yield node
    for each in body:
        yield from _simple(each)


def _cause(so_far: Sequence[ast.stmt], functions: Mapping[str, Function]) -> ast.stmt:
    """The statement to blame for an error in the last of these: what a function
    computes in the background fails where it is first looked at."""
    last = so_far[-1]
    used = {n.id for n in ast.walk(last) if isinstance(n, ast.Name)}
    for each in reversed(so_far):
        made = {n.id for n in ast.walk(each) if _is_made(n)}
        if _called(each) in functions and (each is last or used & made):
            return each
    return last


def _is_made(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _call(statement: ast.stmt) -> ast.Call | None:
    value = getattr(statement, "value", None)
    return value if isinstance(value, ast.Call) else None


def _called(statement: ast.stmt) -> str:
    call = _call(statement)
    return ast.unparse(call.func) if call else ""


def _named(statement: ast.stmt) -> Iterator[str]:
    """The op that a statement of a segment computes: its result goes by its name, its
    backward takes a residual that does."""
    call = _call(statement)
    if call is None or not isinstance(statement, ast.Assign):
        return
    if _called(statement).endswith(".backward"):
        yield ast.unparse(call.args[0]).removesuffix("_res")
    else:
        first = statement.targets[0]
        while isinstance(first, ast.Tuple):
            first = first.elts[0]
        yield ast.unparse(first)

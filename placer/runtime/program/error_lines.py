"""Map an error to the line of the node program, and to the ops of the spec on that
line."""

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


def locate_error(folder: Path, program: str, trace: TracebackType | None) -> str | None:
    """Return the position of an error in a node program, and the ops of the spec there.

    The result is text such as `at worker-0/program.py:32, forward: op h1 at
    digits.yaml:28:16`, without the ops if the program and the build's sources do not
    name them; None for an error that did not pass through the program.

    Args:
        folder: the build folder.
        program: the path of the node program in the build folder.
        trace: the traceback of the error.
    """
    line = _deepest_line((folder / program).absolute(), trace)
    return None if line is None else describe_line(folder, program, line)


def describe_line(folder: Path, program: str, line: int) -> str:
    """Return the text of `locate_error` for a line of the program."""
    text = f"at {program}:{line}"
    try:
        with AST_LOCK:
            module = ast.parse((folder / program).read_bytes())
        sources = read_sources(folder)
    except (OSError, ValueError, SyntaxError, BuildError):
        return text
    functions = {f.name: f for f in module.body if isinstance(f, Function)}
    function = next((f for f in functions.values() if _covers(f, line)), None)
    preceding = (
        [s for s in _simple_statements(function) if s.lineno <= line]
        if function
        else []
    )
    if function is None or not preceding:
        return text
    called = functions.get(_called(_cause(preceding, functions)))
    described, statements = (
        (called, _simple_statements(called)) if called else (function, preceding[-1:])
    )
    ops = {name for s in statements for name in _op_names(s)}
    file, places = Path(sources.spec).name, sources.ops
    positions = sorted((places[name], name) for name in ops if name in places)
    op_positions = [
        f"{name} at {file}:{row}:{column}" for (row, column), name in positions
    ]
    return f"{text}, {described.name}{_list_ops(op_positions)}"


def _list_ops(written: Sequence[str]) -> str:
    if not written:
        return ""
    if len(written) == 1:
        return f": op {written[0]}"
    return f": ops {written[0]} to {written[-1]}"


def _deepest_line(program: Path, trace: TracebackType | None) -> int | None:
    line = None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == program:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _simple_statements(node: Function | ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements that contain no other statements, in order."""
    body: Sequence[ast.stmt] = getattr(node, "body", ())
    if not body:
        yield node
    for statement in body:
        yield from _simple_statements(statement)


def _cause(
    statements: Sequence[ast.stmt], functions: Mapping[str, Function]
) -> ast.stmt:
    """Return the statement that caused an error in the last of `statements`.

    A jitted function computes in the background, so its error is raised where a result
    is first read. The cause is then the last call of a function of the program that
    assigned a name which the last statement uses.
    """
    last = statements[-1]
    used = {n.id for n in ast.walk(last) if isinstance(n, ast.Name)}
    for statement in reversed(statements):
        assigned = {n.id for n in ast.walk(statement) if _is_assigned(n)}
        if _called(statement) in functions and (statement is last or used & assigned):
            return statement
    return last


def _is_assigned(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _call(statement: ast.stmt) -> ast.Call | None:
    value = getattr(statement, "value", None)
    return value if isinstance(value, ast.Call) else None


def _called(statement: ast.stmt) -> str:
    call = _call(statement)
    return ast.unparse(call.func) if call else ""


def _op_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the name of the op that a statement of a segment computes: the name of its
    result, or for a backward call that of its residual."""
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

"""Reads a model from a YAML file, a program, or a function of a Python file.

A user's file runs like a script: it can import modules next to it. Afterwards
`sys.path` and `sys.modules` are restored.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from types import ModuleType

from placer.compiler.frontend import load
from placer.compiler.frontend.python.code_hints import hint_for
from placer.compiler.frontend.python.overrides import Overrides, read_overrides
from placer.compiler.frontend.python.program import Program, default_program, home_file
from placer.compiler.graph.model import Model
from placer.errors import (
    PlacerError,
    Span,
    SpecError,
    SpecErrors,
    did_you_mean,
)
from placer.plan.modules import Modules
from placer.system.callsite import display_path, span_of
from placer.system.files.nearest_path import SPECS, path_hint

_PYTHON = re.compile(r"(?P<file>.*\.py)(:(?P<function>.*))?", re.DOTALL)


def read_model(
    spec: str | Path | Program,
    *,
    nodes: Mapping[str, int] | None = None,
    overrides: Overrides | None = None,
    code: bool = True,
) -> Model:
    """Return the model of a YAML file, of a program, or of `FILE.py:FUNCTION`.

    Args:
        spec: The file, program or function.
        nodes: As in `placer.compiler.frontend.load`.
        overrides: As in `placer.compile`.
        code: False refuses to run Python files.

    Raises:
        SpecError: The spec has an error, or the user's code raises one (at its line).
    """
    changes = read_overrides(overrides, spec if isinstance(spec, Program) else None)
    if not isinstance(spec, Program):
        if not is_python(str(spec)):
            return load(spec, nodes=nodes, overrides=changes)
        if not code:
            raise SpecError(
                f"{spec} is a Python file, and its model cannot be read without"
                " running it",
                hint="leave out --no-code to run it: docs/reference/security.md",
            )
        spec = run_builder(str(spec))
    return spec.model(nodes=nodes, overrides=changes)


def is_python(spec: str) -> bool:
    """Return True if a spec is `FILE.py:FUNCTION`, or `FILE.py` without the
    function.
    """
    return _PYTHON.fullmatch(spec) is not None


def function_of(spec: str) -> str:
    """Return the function of `FILE.py:FUNCTION`; empty for another spec."""
    match = _PYTHON.fullmatch(spec)
    return match["function"] or "" if match is not None else ""


def run_builder(text: str) -> Program:
    """Call the function of `FILE.py:FUNCTION` without arguments, and return its
    program. If the function returns None, returns the default program. Raises
    SpecError."""
    match = _PYTHON.fullmatch(text)
    if match is None or not match["function"]:
        raise SpecError(
            f"'{text}' does not name the function that builds the model",
            hint=f"write {match['file'] if match else 'model.py'}:build",
        )
    # A new context has no open guards, and its own default program.
    return Context().run(_run_function, Path(match["file"]), match["function"])


def _run_function(file: Path, name: str) -> Program:
    if not file.is_file():
        hint = path_hint(file, folders=[SPECS])
        raise SpecError(f"{file} does not exist", hint=hint)
    home_file.set(display_path(str(file.absolute())))
    linecache.checkcache()
    modules = Modules(file.parent, None)
    with modules.importable():
        with _report_errors(modules, file):
            try:
                module = modules.load(file.stem, f"placer_model_{file.stem}")
            except OSError as error:
                message = f"cannot read {file}: {error.strerror}"
                raise SpecError(message) from error
        function = _find_function(module, file, name)
        with _report_errors(modules, file):
            program = function()
    if program is None:
        program = default_program()
        if program.is_empty:
            raise SpecError(
                f"{file}:{name} returns no program, and the default program has no ops",
                hint="return the Program",
            )
    if not isinstance(program, Program):
        kind = type(program).__name__
        message = f"{file}:{name} returns {kind}, not Program"
        raise SpecError(
            message, hint="return the Program, or None for the default program"
        )
    if program.is_empty and not default_program().is_empty:
        raise SpecError(
            f"{file}:{name} returns a program without ops, but calls ops outside of it",
            hint="wrap these calls in `with program:`",
        )
    return program


def _find_function(module: ModuleType, file: Path, name: str) -> Callable[[], object]:
    function: object = getattr(module, name, None)
    if not callable(function):
        names = [
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        message = f"{file} has no function '{name}'"
        raise SpecError(message, hint=did_you_mean(name, names))
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise SpecError(
            f"{file}:{name} cannot be called without arguments: {error}",
            hint="give each of its parameters a default",
        ) from error
    return function


@contextmanager
def _report_errors(modules: Modules, file: Path) -> Iterator[None]:
    """Turn an error of the user's code into a SpecError at its innermost line."""
    try:
        yield
    except SyntaxError as error:
        span = Span(
            display_path(error.filename or str(file)),
            error.lineno or 1,
            error.offset or 1,
            max(1, (error.end_offset or 0) - (error.offset or 0)),
            (error.text or "").rstrip("\n"),
        )
        raise SpecError(f"{type(error).__name__}: {error.msg}", span=span) from error
    except PlacerError as error:
        if error.span is not None and Path(error.span.file).is_file():
            raise  # The error already has a line.
        if isinstance(error, SpecErrors):
            raise
        raise SpecError(
            error.message, span=_user_line(error, modules), hint=error.hint
        ) from error
    except (Exception, SystemExit) as error:
        message, at = f"{type(error).__name__}: {error}", _user_line(error, modules)
        raise SpecError(message, span=at, hint=hint_for(error)) from error


def _user_line(error: BaseException, modules: Modules) -> Span | None:
    files = {str(module.__file__) for module in modules.loaded.values()}
    innermost, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            innermost = trace
        trace = trace.tb_next
    if innermost is None:
        return None
    return span_of(innermost.tb_frame.f_code, innermost.tb_lasti, innermost.tb_lineno)

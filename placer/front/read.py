"""From what names a model to the Model: a spec's file, a program, a function of a file.

A user's file runs as it would alone: modules beside it can be imported, and nothing of
it stays in `sys.path` or `sys.modules`.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Counts
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from types import ModuleType

from placer.build.modules import Modules
from placer.callsite import shown, span_of
from placer.errors import (
    PlacerError,
    Span,
    SpecError,
    SpecErrors,
    did_you_mean,
    missing_package,
    nearest,
)
from placer.front.program import Program, default_program, home
from placer.graph.model import Model
from placer.spec import load

_PYTHON = re.compile(r"(?P<file>.*\.py)(:(?P<function>.*))?", re.DOTALL)


def read(
    spec: str | Path | Program,
    *,
    nodes: Counts[str, int] | None = None,
    single_process: bool = False,
    code: bool = True,
) -> Model:
    """The model of a YAML file, of a program, or of `FILE.py:FUNCTION`.

    `nodes` and `single_process` are as of `placer.spec.load`; without `code`, no file
    of Python is run. Raises SpecError; what a function of the user's raises is told at
    its line.
    """
    if not isinstance(spec, Program):
        if _PYTHON.fullmatch(str(spec)) is None:
            return load(spec, nodes=nodes, single_process=single_process)
        if not code:
            raise SpecError(
                f"{spec} is a Python file, which has to be run to read its model",
                hint="without --no-code it is: docs/security.md",
            )
        spec = run_builder(str(spec))
    return spec.model(nodes=nodes, single_process=single_process)


def run_builder(text: str) -> Program:
    """The program that the function of `FILE.py:FUNCTION` returns, or fills: the default
    one, if it returns None. It is called without arguments. Raises SpecError."""
    match = _PYTHON.fullmatch(text)
    if match is None or not match["function"]:
        raise SpecError(
            f"'{text}' does not say which function of a file builds the model",
            hint=f"write {match['file'] if match else 'model.py'}:build",
        )
    # In a context of its own: no guard is open, and the default program is new.
    return Context().run(_run, Path(match["file"]), match["function"])


def _run(file: Path, name: str) -> Program:
    if not file.is_file():
        raise SpecError(f"there is no file {file}")
    home.set(shown(str(file.absolute())))
    linecache.checkcache()
    modules = Modules(file.parent, None)
    with modules.reachable():
        with _told(modules, file):
            try:
                module = modules.load(file.stem, f"placer_model_{file.stem}")
            except OSError as error:
                message = f"cannot read {file}: {error.strerror}"
                raise SpecError(message) from error
        function = _function(module, file, name)
        with _told(modules, file):
            made = function()
    if made is None:
        made = default_program()
        if made.is_empty:
            raise SpecError(
                f"{file}:{name} returns no program, and no op was called outside of one",
                hint="return the Program",
            )
    if not isinstance(made, Program):
        kind = type(made).__name__
        message = f"{file}:{name} returns {kind}, not Program"
        raise SpecError(message, hint="return the Program, or None for the default one")
    if made.is_empty and not default_program().is_empty:
        raise SpecError(
            f"{file}:{name} returns a program without an op, and calls ops outside of it",
            hint="write `with program:` around them",
        )
    return made


def _function(module: ModuleType, file: Path, name: str) -> Callable[[], object]:
    found: object = getattr(module, name, None)
    if not callable(found):
        own = [
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        message = f"{file} has no function '{name}'"
        raise SpecError(message, hint=did_you_mean(name, own))
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise SpecError(
            f"{file}:{name} is called without arguments: {error}",
            hint="give its parameters defaults",
        ) from error
    return found


@contextmanager
def _told(modules: Modules, file: Path) -> Iterator[None]:
    """What the user's code raises, as a SpecError at the last of its own lines."""
    try:
        yield
    except SyntaxError as error:
        span = Span(
            shown(error.filename or str(file)),
            error.lineno or 1,
            error.offset or 1,
            max(1, (error.end_offset or 0) - (error.offset or 0)),
            (error.text or "").rstrip("\n"),
        )
        raise SpecError(f"{type(error).__name__}: {error.msg}", span=span) from error
    except PlacerError as error:
        if error.span is not None and Path(error.span.file).is_file():
            raise  # at a line already
        if isinstance(error, SpecErrors):
            raise
        raise SpecError(
            error.message, span=_line(error, modules), hint=error.hint
        ) from error
    except (Exception, SystemExit) as error:
        message, at = f"{type(error).__name__}: {error}", _line(error, modules)
        raise SpecError(message, span=at, hint=_hint(error)) from error


def _hint(error: BaseException) -> str | None:
    if hint := missing_package(error):
        return hint
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        near = nearest(error.name, dir(error.obj))
        return f"did you mean '{near}'?" if near else None
    if isinstance(error, TypeError) and "placer.front.variable" in str(error):
        return (
            "a value of the program has no numbers yet: use an op of placer.layers, or"
            " placer.trace(fn, ...) of a function"
        )
    return None


def _line(error: BaseException, modules: Modules) -> Span | None:
    """The innermost line of the user's files that led to an error."""
    files = {str(module.__file__) for module in modules.loaded.values()}
    found, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename in files:
            found = at
        at = at.tb_next
    if found is None:
        return None
    return span_of(found.tb_frame.f_code, found.tb_lasti, found.tb_lineno)

"""Lowers an exported model to StableHLO, in the format of `jax.export`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import jax

from placer.errors import PlacerError
from placer.place.types import TensorType

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that a file is lowered for; one of them is chosen at run time."""


class SymbolicBatchError(Exception):
    """The model cannot be lowered for a batch of any size: the op, and the cause."""

    def __init__(self, op: str, cause: str) -> None:
        super().__init__(op, cause)
        self.op, self.cause = op, cause


def lower(
    model: Callable[..., Any],
    parameters: Mapping[str, TensorType],
    inputs: Mapping[str, TensorType],
    batch: int | None,
    *,
    wide: bool,
) -> bytes:
    """Return a function `model(params, *inputs)` as the bytes of a file.

    `batch` is the number of rows, None for any. The file contains no paths of source
    files. Raises SymbolicBatchError if an op fails for a batch of any size, and
    PlacerError if it fails for `batch` rows.
    """
    import jax.export

    with jax.enable_x64(wide), _without_locations():
        size = batch or jax.export.symbolic_shape("batch")[0]
        params = {name: _struct(kind, size) for name, kind in parameters.items()}
        arguments = [_struct(kind, size) for kind in inputs.values()]
        function = jax.export.export(jax.jit(model), platforms=PLATFORMS)
        try:
            exported = function(params, *arguments)
        except Exception as error:
            op = _op_of(error, model)
            if op is None:
                raise
            cause = _cause_of(error, model)
            if batch is None:
                raise SymbolicBatchError(op, cause) from error
            raise PlacerError(
                f"`{op}` of model.py cannot be exported: {cause}",
                hint="`placer export --debug` shows the traceback",
            ) from error
        return bytes(exported.serialize())


def _struct(kind: TensorType, batch: Any) -> jax.ShapeDtypeStruct:
    shape = [batch if size == "batch" else size for size in kind.shape]
    return jax.ShapeDtypeStruct(shape, kind.dtype)


@contextmanager
def _without_locations() -> Iterator[None]:
    """Let JAX omit the source files and lines of operations."""
    option = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, option)
    jax.config.update(option, 0)
    try:
        yield
    finally:
        jax.config.update(option, before)


def _cause_of(error: BaseException, model: Callable[..., Any]) -> str:
    """Return the error, the line of the user's module that raised it, and advice."""
    text = str(error).strip().partition("\n")[0]
    own = Path(model.__code__.co_filename).absolute()
    frames = extract_tb(error.__traceback__)
    files = [(Path(each.filename).absolute(), each.lineno) for each in frames]
    beside = [
        f"{x.name}:{n}: " for x, n in files if x.parent == own.parent and x != own
    ]
    line = beside[-1] if beside else ""
    advice = ""
    if "_DimExpr" in text and isinstance(error, TypeError):
        advice = "; write x.shape[0] instead of len(x)"
    return f"{line}{type(error).__name__}: {text}{advice}"


def _op_of(error: BaseException, model: Callable[..., Any]) -> str | None:
    """Return the statement of the model that raised an error, or None."""
    code = model.__code__
    file = code.co_filename
    lines = [
        frame.lineno
        for frame in extract_tb(error.__traceback__)
        if frame.filename == file and frame.name == model.__name__
    ]
    if not lines or lines[-1] is None:
        return None
    for statement in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        match statement:
            case ast.Assign(
                targets=[target],
                lineno=first,
                end_lineno=int(last),
                value=ast.Call(func=function),
            ) if first <= lines[-1] <= last:
                names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
                return f"{', '.join(names)} = {ast.unparse(function)}(…)"
    return None


def load_model(text: str, file: Path, without: Sequence[str]) -> Callable[..., Any]:
    """Run model.py `without` these lines of settings; return its function `model`."""
    for line in without:
        text = text.replace(f"\n{line}\n", "\n\n")
    module = ModuleType("placer_exported_model")
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    try:
        exec(compile(text, str(file), "exec", dont_inherit=True), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    function: Callable[..., Any] = module.model
    return function


@contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """Make `ops` and `params` of an exported model importable, without bytecode."""
    others, no_bytecode = _remove_own_modules(), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = no_bytecode
        sys.path.remove(str(folder))
        _remove_own_modules()
        sys.modules.update(others)


def _remove_own_modules() -> dict[str, ModuleType]:
    """Remove modules of these names from `sys.modules`, and return them."""
    names = [n for n in sys.modules if n.partition(".")[0] in ("ops", "params")]
    return {name: sys.modules.pop(name) for name in names}

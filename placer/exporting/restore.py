"""Puts trained parameters back into a JAX model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from placer.errors import CheckpointWarning, DataError, PlacerError, did_you_mean
from placer.place.types import TensorType
from placer.plan.parameter_differences import find_differences
from placer.plan.settings.training.slicing import Block
from placer.system.callsite import warn_at_caller

if TYPE_CHECKING:
    import numpy as np

    from placer.runtime.control.result import Result

Model = TypeVar("Model")
AnyPath = str | os.PathLike[str]

_HINT_OF_KERAS = (
    "give the model and its layers names, such as Dense(10, name='head'): Keras numbers"
    " other layers in each process"
)


def restore(
    model: Model, params: Result | Mapping[str, np.ndarray] | AnyPath, name: str
) -> Model:
    """Return a model with the parameters that a run has trained.

    The model needs the structure that it had in the call of `placer.trace`: pass what the
    model's function returns, such as `net.make()`. If several arguments of the call have
    parameters or state, pass a dict from the name of each argument to its pytree.

    Args:
        model: a pytree, such as parameters of Flax linen or Haiku or a module of Equinox,
            a module of Flax nnx, or a Keras model.
        params: the result of `placer.launch` or `placer.train`, its `params`, a file
            written by `save_params`, a checkpoint, or a folder of checkpoints, whose last
            good checkpoint is used.
        name: the name of the trace, such as `"net"` for `placer.trace(…, name="net")`.

    Returns:
        A new pytree. A module of Flax nnx and a Keras model are updated in place and
        returned. Arrays keep the dtypes of the model. State, such as running statistics,
        is restored like parameters. Other leaves keep their values. A module stays in
        its mode: call `model.eval()` of Flax nnx, or `eqx.nn.inference_mode(model)`,
        before you predict.

    Raises:
        DataError: if parameters are missing, are not in the model, or have other shapes.
            The message lists the first ten of them. The model is unchanged.
        CheckpointError: if the folder has no checkpoint, or the checkpoint is damaged.
        PlacerError: if the model or the parameters have the wrong type.

    Example:
        result = placer.launch("build")
        model = placer.restore(net.make(), result, "net")
    """
    from placer.compiler.frontend.python.model_parameters import parameters_in
    from placer.ops.functions.filled_models import fill

    if inspect.isfunction(model):
        raise PlacerError(
            f"the model is the function '{model.__name__}'",
            hint=f"pass the model that it returns: {model.__name__}()",
        )
    values = _values_of(params)
    stored = {key: t for key, t in values.types.items() if key.startswith(f"{name}.")}
    keys = {key.removeprefix(f"{name}.") for key in stored}
    leaves = parameters_in(model, "model", keys)
    if not leaves:
        raise PlacerError(
            f"the model, {type(model).__name__}, has no parameters",
            hint="pass a pytree with arrays of floats, such as a module or a dict",
        )
    if not stored:
        names = sorted({key.partition(".")[0] for key in values.types})
        listed = ", ".join(f"'{each}'" for each in names) or "nothing"
        near = did_you_mean(name, names)
        raise DataError(
            f"no parameter is called '{name}.…'; there are parameters of {listed}",
            hint=near or "pass the name of the trace: placer.trace(…, name=…)",
        )
    # The dtypes may differ: those of the model count, whatever the precision of the run.
    declared = {f"{name}.{leaf.key}": str([*leaf.value.shape]) for leaf in leaves}
    shapes = {key: str([*kind.shape]) for key, kind in stored.items()}
    if problems := find_differences(shapes, declared):
        raise DataError(
            f"the parameters do not fit the model: {'; '.join(problems)}",
            hint=_HINT_OF_KERAS
            if any(leaf.variable for leaf in leaves)
            else f"pass the model that placer.trace has as '{name}', with the same sizes",
        )
    state = {id(leaf.value) for leaf in leaves if leaf.is_state}
    restored: Model = fill(model, iter(values.read([*declared])), state)
    return restored


@dataclass(frozen=True)
class _Values:
    """Values of a run: their types by name, and a function that reads some of them."""

    types: Mapping[str, TensorType]
    read: Callable[[Sequence[str]], list[Any]]


def _values_of(params: Any) -> _Values:
    from placer.runtime.control.result import Result
    from placer.runtime.saving.parameter_files import arrays_of

    if isinstance(params, Result):
        params = params.params
    if isinstance(params, str | os.PathLike):
        return _stored_values(Path(params))
    arrays = arrays_of(params)
    types = {key: TensorType(str(x.dtype), x.shape) for key, x in arrays.items()}
    return _Values(types, lambda names: [arrays[each] for each in names])


def _stored_values(path: Path) -> _Values:
    from placer.runtime.saving.start_parameters import open_parameters

    def warn(text: str) -> None:
        warn_at_caller(text, CheckpointWarning)

    start = open_parameters(path, warn, finite=False)

    def read(names: Sequence[str]) -> list[Any]:
        shapes = [start.types[name].sizes(1) for name in names]
        blocks = [
            Block(name, name, 0, prod(shape), shape)
            for name, shape in zip(names, shapes, strict=True)
        ]
        arrays = zip(start.read(blocks), shapes, strict=True)
        return [array.reshape(shape) for array, shape in arrays]

    return _Values(start.types, read)

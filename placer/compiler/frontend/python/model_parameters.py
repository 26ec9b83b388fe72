"""The parameters in a model, by the keys that they have in a trace."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from placer.compiler.frontend.python.arguments import Arguments
from placer.compiler.frontend.python.parameter_keys import (
    Leaf,
    key_of,
    set_keys,
    show_path,
)
from placer.errors import SpecError
from placer.ops.functions.library_leaves import (
    has_arrays,
    is_number_array,
    open_models,
    parameter_mask,
    path_of_variable,
)
from placer.ops.functions.paths import leaves_with_paths
from placer.plan.parameter_differences import find_differences


def parameters_in(
    pytree: Any, argument: str, stored: Collection[str] = ()
) -> list[Leaf]:
    """Return the parameters and the state of a model.

    They have the keys that `placer.trace` gives them if the model is its only argument with
    parameters, or a dict from the names of its arguments. `stored` has the keys of the values
    that exist; state without a value is left out.
    """
    opened = open_models(pytree)
    is_parameter = parameter_mask(opened)
    leaves = []
    for path, value in leaves_with_paths(opened):
        leaf = Leaf(value, (argument, *path), path_of_variable(value))
        is_trained = getattr(value, "trainable", True)  # by Keras
        if not next(is_parameter) or not is_trained:
            is_number = is_number_array(value)
            leaf.is_state = is_number and key_of(leaf, True) in stored
            if not leaf.is_state:
                continue
        leaves.append(leaf)
    set_keys(leaves)
    return leaves


def initial_values(init: Any, arguments: Arguments, name: str) -> dict[str, Any] | None:
    """Return the values that the pytree `init` gives the parameters of a trace, by key.

    Returns None if `init` is None or an initializer. State that the pytree lacks has no
    value. Raises SpecError if the pytree lacks parameters, has others, or some with other
    shapes.
    """
    if init is None or isinstance(init, str) or not has_arrays(init):
        return None
    wanted = {leaf.key: leaf for leaf in arguments.leaves if leaf.key is not None}
    names = {leaf.path[0] for leaf in wanted.values()}
    argument = names.pop() if len(names) == 1 else "init"
    given = parameters_in(init, argument, wanted)
    values = {leaf.key: leaf.value for leaf in given if leaf.key is not None}
    for leaf in given:
        if not hasattr(leaf.value, "__array__"):
            raise SpecError(
                f"{show_path(('init', *leaf.path[1:]))} has a shape but no values",
                hint="pass a pytree with arrays of numbers",
            )

    shapes = {f"{name}.{each.key}": str(list(each.value.shape)) for each in given}
    declared = {
        f"{name}.{key}": str(list(leaf.value.shape))
        for key, leaf in wanted.items()
        if key in values or not leaf.is_state
    }
    if problems := find_differences(shapes, declared):
        raise SpecError(
            f"init does not fit the arguments: {'; '.join(problems)}",
            hint="pass a pytree like the argument that has parameters; for several"
            " arguments, a dict from their names to pytrees",
        )
    return values

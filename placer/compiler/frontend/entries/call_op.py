"""Reads `call` ops: a JAX function with its parameters and state."""

from __future__ import annotations

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.module_imports import modules_of
from placer.compiler.frontend.entries.names import (
    explain_invalid_key,
    is_parameter_key,
)
from placer.compiler.frontend.entries.types import read_type
from placer.compiler.frontend.schema import CallParameter, CallState
from placer.compiler.frontend.sections.parameters import read_parameter
from placer.compiler.frontend.yaml.problems import Problems, all_or_none
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.compiler.graph.structural_ops import VALUE_SUFFIXES
from placer.errors import DataError
from placer.ops.declaration import LayerParameter
from placer.place.types import TensorType
from placer.plan.settings.checks import describe_value


def read_function(
    node: SpecNode | None, context: Context, example: str = "fn: blocks:ffn"
) -> bool:
    """Add the modules that the build needs for `fn: MODULE:FUNCTION`. Returns False if
    `fn` is wrong, or the module is not in the folder of the spec. `example` is a correct
    key, for the hint."""
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return False  # `decode` has reported the error.
    module, colon, name = node.text.partition(":")
    try:
        if not colon:
            message = f"'{node.text}' is not of the form MODULE:FUNCTION"
            raise DataError(message, hint=f"write {example}")
        context.modules.update(dict.fromkeys(modules_of(module, name, context.folder)))
    except DataError as error:
        context.problems.add_error(error, span=node.inner_span)
        return False
    return True


def read_parameters(
    node: MappingNode, what: str, problems: Problems
) -> list[tuple[str, LayerParameter | ScalarNode]] | None:
    """Read the section `params` or `state` of an op. Returns each key with its type and
    initializer, or with the scalar that names a shared parameter (only in `params`).
    None on errors."""
    hint = "write {w: {shape: [64, 64], init: zeros}}"
    written, expected = node.get_non_null(what), f"'{what}' must be a mapping"
    section = problems.expect(written, MappingNode, expected, hint)
    if section is None:
        return None if written else []
    state = what == "state"
    struct = CallState if state else CallParameter
    parameters: list[tuple[str, LayerParameter | ScalarNode]] = []
    for key, item in section:
        span = section.keys[key].span
        if not is_parameter_key(key):
            message, hint = explain_invalid_key(key)
            problems.add(message, span, hint)
        elif key in VALUE_SUFFIXES:
            message = f"'{key}' is reserved: the compiler adds this suffix to names"
            problems.add(message, span, f"write {key}_")
        elif isinstance(item, ScalarNode) and isinstance(item.value, str) and not state:
            parameters.append((key, item))
        elif own := read_parameter(item, struct, f"{what}.{key}", problems):
            parameters.append((key, LayerParameter(key, *own, state)))
    return parameters if len(parameters) == len(section.entries) else None


def read_results(
    section: SpecNode | None, name: str, context: Context
) -> list[tuple[str, TensorType]] | None:
    """Return names and types of the results, from `[y: "float32[batch, 64]"]`. If `out`
    is a single type, the result has the name of the op. None on errors."""
    if isinstance(section, ScalarNode):
        type_ = read_type(section, context.problems)
        return None if type_ is None else [(name, type_)]
    if not isinstance(section, SequenceNode) or not section.items:
        if section is not None:
            message = "'out' must list the results and their types"
            hint = 'write [y: "float32[batch, 64]"]'
            context.problems.add(message, section.span, hint)
        return None
    return all_or_none(_read_result(item, name, context) for item in section.items)


def _read_result(
    item: SpecNode, name: str, context: Context
) -> tuple[str, TensorType] | None:
    if (pair := split_result(item, "y", context.problems)) is None:
        return None
    text = context.names.read_result(pair[0], name)
    type_ = read_type(pair[1], context.problems)
    return (text, type_) if text and type_ else None


def split_result(
    item: SpecNode, example: str, problems: Problems
) -> tuple[ScalarNode, SpecNode] | None:
    """Return the name and the type in `y: "float32[batch, 64]"`; None after an error.
    `example` is the name that the hint shows."""
    if isinstance(item, MappingNode) and len(item.entries) == 1:
        ((key, value),) = item
        return item.keys[key], value
    message = f"a result must be a name and its type, not {describe_value(item.value)}"
    problems.add(message, item.span, f'write {example}: "float32[batch, 64]"')
    return None

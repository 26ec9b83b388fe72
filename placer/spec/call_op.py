"""Reads ops of kind `call`: a JAX function, with its parameters and its state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from placer.config import initializers
from placer.config.checks import describe_value
from placer.errors import DataError, did_you_mean
from placer.graph.kinds import VALUE_SUFFIXES
from placer.ops.declaration import LayerParameter
from placer.spec.decode import decode
from placer.spec.module_imports import local_imports
from placer.spec.names import Names, explain_invalid_name, is_name
from placer.spec.problems import Problems
from placer.spec.schema import CallOp, CallParameter
from placer.spec.sections.parameters import freeze
from placer.spec.tree import MappingNode, ScalarNode, SequenceNode, SpecNode
from placer.types import MAX_DIM, TensorType

RESERVED_MODULES = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "placer"}
"""Names of modules that a node program has imported before it imports the user's."""


def read_function(
    node: ScalarNode, folder: Path, problems: Problems
) -> tuple[str, ...] | None:
    """Return the modules that the build needs for `fn: MODULE:FUNCTION`.

    None if `fn` is wrong or the module is not in `folder`.
    """
    module, colon, name = node.text.partition(":")
    if not colon:
        message = f"'{node.text}' does not have the form MODULE:FUNCTION"
        problems.add(message, node.inner_span, "write fn: blocks:ffn")
        return None
    for part in (module, name):
        if not is_name(part):
            message, hint = explain_invalid_name(part)
            problems.add(message, node.inner_span, hint)
            return None
    if module in RESERVED_MODULES:
        message = f"a module beside the spec cannot have the name '{module}'"
        hint = f"node programs would import another {module}: rename {module}.py"
        problems.add(message, node.inner_span, hint)
        return None
    if not (folder / f"{module}.py").is_file():
        beside = [path.stem for path in folder.glob("*.py")]
        message = f"there is no {module}.py beside the spec"
        problems.add(message, node.inner_span, did_you_mean(module, beside))
        return None
    try:
        return (module, *local_imports(folder, module))
    except DataError as error:
        problems.add_error(error, span=node.inner_span)
        return None


def read_call(node: MappingNode, name: str, problems: Problems) -> dict[str, Any]:
    """Return the valid fields of an op of kind `call`."""
    return decode(node, CallOp, f"op '{name}' (call)", problems)


def read_parameters(
    section: SpecNode | None, what: str, state: bool, problems: Problems
) -> list[tuple[str, LayerParameter | ScalarNode]] | None:
    """Read the section `params` or `state` of an op.

    Returns each key with its type and initializer, or with the scalar that names a
    shared parameter (not for state). None on errors.
    """
    if section is None:
        return []
    if not isinstance(section, MappingNode):
        message = f"'{what}' must be a mapping, not {describe_value(section.value)}"
        problems.add(message, section.span, "write {w: {shape: [64, 64], init: zeros}}")
        return None
    parameters: list[tuple[str, LayerParameter | ScalarNode]] = []
    for key, item in section:
        if not is_name(key):
            message, hint = explain_invalid_name(key)
            problems.add(message, section.keys[key].span, hint)
        elif key in VALUE_SUFFIXES:
            message = f"'{key}' is a suffix that the compiler adds to names"
            problems.add(message, section.keys[key].span, f"write {key}_")
        elif isinstance(item, ScalarNode) and isinstance(item.value, str) and not state:
            parameters.append((key, item))
        elif (
            parameter := _read_parameter(key, item, what, state, problems)
        ) is not None:
            parameters.append((key, parameter))
    return parameters if len(parameters) == len(section.entries) else None


def _read_parameter(
    key: str, item: SpecNode, what: str, state: bool, problems: Problems
) -> LayerParameter | None:
    good = decode(item, CallParameter, f"{what}.{key}", problems)
    init = good.get("init")
    if init is not None and (problem := initializers.check(init.value)):
        problems.add(problem, init.span)
        return None
    if init is None or "shape" not in good or "dtype" not in good:
        return None
    type_ = TensorType(good["dtype"], tuple(good["shape"]))
    return LayerParameter(key, type_, initializers.canonicalize(freeze(init)), state)


def read_results(
    section: SpecNode | None, name: str, names: Names, problems: Problems
) -> list[tuple[str, TensorType]] | None:
    """Return names and types of the results, from `[y: "float32[batch, 64]"]`.

    If `out` is one type, the result has the name of the op. None on errors.
    """
    if isinstance(section, ScalarNode):
        type_ = _read_type(section, problems)
        return None if type_ is None else [(name, type_)]
    if not isinstance(section, SequenceNode) or not section.items:
        if section is not None:
            message = "'out' must list the results and their types"
            problems.add(message, section.span, 'write [y: "float32[batch, 64]"]')
        return None
    results: list[tuple[str, TensorType]] = []
    for item in section.items:
        if not isinstance(item, MappingNode) or len(item.entries) != 1:
            actual = describe_value(item.value)
            message = f"a result must be a name and its type, not {actual}"
            problems.add(message, item.span, 'write y: "float32[batch, 64]"')
            continue
        ((key, value),) = item
        text = names.read(item.keys[key], "an output")
        # One result may have the op's own name.
        is_own = text == name and name not in (n for n, _ in results)
        type_ = _read_type(value, problems)
        if text and type_ and (is_own or names.define(text, item.keys[key].span)):
            results.append((text, type_))
    return results if len(results) == len(section.items) else None


def _read_type(node: SpecNode, problems: Problems) -> TensorType | None:
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        message = f"a type must be text, not {describe_value(node.value)}"
        problems.add(message, node.span, 'write "float32[batch, 64]"')
        return None
    try:
        return TensorType.parse(node.text, MAX_DIM)
    except ValueError as error:
        problems.add(str(error), node.inner_span)
        return None

"""An op of kind `call`: a JAX function beside the spec, its parameters and state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from placer.config import initializers
from placer.config.checks import shown
from placer.errors import DataError, did_you_mean
from placer.graph.kinds import SUFFIXES
from placer.ops.declaration import LayerParameter
from placer.spec.decode import decode
from placer.spec.module_imports import neighbours
from placer.spec.names import Names, is_name, why_not
from placer.spec.problems import Problems
from placer.spec.schema import CallOp, CallParameter
from placer.spec.sections.parameters import frozen
from placer.spec.tree import Mapping, Node, Scalar, Sequence
from placer.types import LARGEST, TensorType

OWN = ("params", "state", "out")
"""The keys that are read in their own way."""

TAKEN = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "placer"}
"""Modules that are loaded before a program is: importing one gives that, not a file."""


def read_function(
    node: Scalar, folder: Path, problems: Problems
) -> tuple[str, ...] | None:
    """The modules that the build needs for `fn: MODULE:FUNCTION`; None when it is wrong."""
    module, colon, name = node.text.partition(":")
    if not colon:
        message = f"'{node.text}' is not MODULE:FUNCTION"
        problems.add(message, node.inside, "write fn: blocks:ffn")
        return None
    for part in (module, name):
        if not is_name(part):
            message, hint = why_not(part)
            problems.add(message, node.inside, hint)
            return None
    if module in TAKEN:
        message = f"a module beside the spec cannot be called '{module}'"
        hint = f"a program that imports it gets another {module}: rename {module}.py"
        problems.add(message, node.inside, hint)
        return None
    if not (folder / f"{module}.py").is_file():
        beside = [path.stem for path in folder.glob("*.py")]
        message = f"there is no {module}.py beside the spec"
        problems.add(message, node.inside, did_you_mean(module, beside))
        return None
    try:
        return (module, *neighbours(folder, module))
    except DataError as error:
        problems.take(error, span=node.inside)
        return None


def read_call(node: Mapping, name: str, problems: Problems) -> dict[str, Any]:
    """The good fields of the op's mapping."""
    return decode(node, CallOp, f"op '{name}' (call)", problems)


def read_values(
    section: Node | None, what: str, state: bool, problems: Problems
) -> list[tuple[str, LayerParameter | Scalar]] | None:
    """What `params` or `state` says of each: how it begins, or, as a text, whose it
    is. None when it is wrong."""
    if section is None:
        return []
    if not isinstance(section, Mapping):
        message = f"'{what}' must be a mapping, not {shown(section.value)}"
        problems.add(message, section.span, "write {w: {shape: [64, 64], init: zeros}}")
        return None
    found: list[tuple[str, LayerParameter | Scalar]] = []
    for key, item in section:
        if not is_name(key):
            message, hint = why_not(key)
            problems.add(message, section.keys[key].span, hint)
        elif key in SUFFIXES:
            message = f"'{key}' is what the compiler calls a value of its own"
            problems.add(message, section.keys[key].span, f"write {key}_")
        elif isinstance(item, Scalar) and isinstance(item.value, str) and not state:
            found.append((key, item))
        elif (made := _made(key, item, what, state, problems)) is not None:
            found.append((key, made))
    return found if len(found) == len(section.entries) else None


def _made(
    key: str, item: Node, what: str, state: bool, problems: Problems
) -> LayerParameter | None:
    good = decode(item, CallParameter, f"{what}.{key}", problems)
    init = good.get("init")
    if init is not None and (problem := initializers.check(init.value)):
        problems.add(problem, init.span)
        return None
    if init is None or "shape" not in good or "dtype" not in good:
        return None
    type_ = TensorType(good["dtype"], tuple(good["shape"]))
    return LayerParameter(key, type_, initializers.canonical(frozen(init)), state)


def read_outs(
    section: Node | None, name: str, names: Names, problems: Problems
) -> list[tuple[str, TensorType]] | None:
    """Names and types of the results: `[y: "float32[batch, 64]"]`, or one type, whose
    value has the op's name. None when it is wrong."""
    if isinstance(section, Scalar):
        kind = _type(section, problems)
        return None if kind is None else [(name, kind)]
    if not isinstance(section, Sequence) or not section.items:
        if section is not None:
            message = "'out' must list the results and their types"
            problems.add(message, section.span, 'write [y: "float32[batch, 64]"]')
        return None
    found: list[tuple[str, TensorType]] = []
    for item in section.items:
        if not isinstance(item, Mapping) or len(item.entries) != 1:
            message = f"a result is a name and its type, not {shown(item.value)}"
            problems.add(message, item.span, 'write y: "float32[batch, 64]"')
            continue
        ((key, value),) = item
        text = names.read(item.keys[key], "an output")
        again = text == name and name not in (n for n, _ in found)
        kind = _type(value, problems)
        if text and kind and (again or names.define(text, item.keys[key].span)):
            found.append((text, kind))
    return found if len(found) == len(section.items) else None


def _type(node: Node, problems: Problems) -> TensorType | None:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        message = f"a type is a text, not {shown(node.value)}"
        problems.add(message, node.span, 'write "float32[batch, 64]"')
        return None
    try:
        return TensorType.parse(node.text, LARGEST)
    except ValueError as error:
        problems.add(str(error), node.inside)
        return None

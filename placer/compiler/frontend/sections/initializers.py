"""Reads initializers of parameters."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import structs

from placer.compiler.frontend.yaml.decode import check_type, report_wrong_type
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.errors import did_you_mean
from placer.plan.settings.checks import describe_value
from placer.plan.settings.training.initializers import (
    ALIASES,
    BARE,
    PATH,
    WITH_ARGUMENT,
    Init,
    Initializer,
)

_TYPES = {field.name: field.type for field in structs.fields(Initializer)}
_FORMS = {
    "uniform": "[low, high]",
    "variance_scaling": "a mapping",
    "file": "a safetensors file or a checkpoint in the folder of the spec, such as"
    " weights.safetensors or checkpoints/best",
}
"""Forms of the arguments that are not a number."""


def read_init(node: SpecNode | None, problems: Problems) -> Init | None:
    """Return an initializer; None after an error."""
    if node is None:
        return None
    if isinstance(node, MappingNode):
        return _read_argument(node, problems)
    name = ALIASES.get(str(node.value), str(node.value))
    if not isinstance(node.value, str):
        message = (
            "an initializer must be a name or a mapping with one name, such as"
            f" {{constant: 0.0}}, not {describe_value(node.value)}"
        )
        problems.add(message, node.span)
    elif name in BARE:
        init: Init = msgspec.convert(name, Init)
        return init
    elif name in WITH_ARGUMENT:
        message = f"initializer '{node.value}' needs a value: {WITH_ARGUMENT[name]}"
        problems.add(message, node.span)
    else:
        _report_unknown(node.value, node, problems)
    return None


def _read_argument(node: MappingNode, problems: Problems) -> Init | None:
    if len(node.entries) != 1:
        message = f"an initializer must have one name, not {len(node.entries)}"
        problems.add(message, node.span)
        return None
    ((written, argument),) = node
    name, key = ALIASES.get(written, written), node.keys[written]
    if name not in WITH_ARGUMENT:
        if name not in BARE:
            _report_unknown(written, key, problems)
        else:
            message = f"initializer '{written}' takes no value; write {written} alone"
            problems.add(message, key.span)
        return None
    type_ = _TYPES[name]
    if name in _FORMS and not _has_form(name, argument):
        got = describe_value(argument.value)
        message = f"'{written}' takes {_FORMS[name]}, not {got}"
        problems.add(message, argument.span, WITH_ARGUMENT[name])
    elif argument.value is None:
        report_wrong_type(written, argument, type_, problems)
    elif check_type(written, argument, type_, problems):
        value: Any = msgspec.convert(argument.value, type_)
        return problems.make(Initializer, {name: value}, node)
    return None


def _has_form(name: str, argument: SpecNode) -> bool:
    """Return True if an argument has the required form. Its parts may still be
    wrong.
    """
    match name, argument:
        case "uniform", SequenceNode(items=items):
            return len(items) == 2
        case "file", ScalarNode(value=str(path)):
            return re.search(PATH, path) is not None
    return name == "variance_scaling" and isinstance(argument, MappingNode)


def _report_unknown(name: str, node: SpecNode, problems: Problems) -> None:
    hint = did_you_mean(name, {*BARE, *WITH_ARGUMENT, *ALIASES})
    problems.add(f"unknown initializer '{name}'", node.span, hint)

"""The JSON Schema of a spec, from the structs of `schema` and the op declarations."""

from __future__ import annotations

from typing import Any

import msgspec

from placer.compiler.frontend.entries.op_kinds import OpKind, op_kinds
from placer.compiler.frontend.schema import (
    CallOp,
    OptaxOptimizer,
    ParameterOp,
    Scope,
    Spec,
    TraceOp,
)
from placer.ops.declaration import Attr
from placer.plan.settings.fields import NAME_PATTERN
from placer.plan.settings.training.update_modes import MODES

_REF = "#/$defs/{name}"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec, for completion in editors. It
    covers less than the compiler checks: types, shapes and places are missing."""
    _, defs = msgspec.json.schema_components(
        [Spec, Scope, ParameterOp, CallOp, TraceOp, OptaxOptimizer], ref_template=_REF
    )
    ops = [_op(kind) for kind in op_kinds().values()]
    for op in ops:
        defs[op["title"]] = op
        for attr in op["properties"].values():
            defs |= attr.pop("$defs", {})
    structs = ["Scope", "ParameterOp", "CallOp", "TraceOp"]
    entries = [*structs, *(op["title"] for op in ops)]
    defs["Entry"] = {"anyOf": [_ref(name) for name in entries]}
    for owner, key in (("Spec", "graph"), ("Scope", "ops")):
        defs[owner]["properties"][key]["items"] = _ref("Entry")
    _allow_hyperparameters(defs["Optimizer"])
    optimizer = defs["Train"]["properties"]["optimizer"]
    either = [_ref("Optimizer"), _ref("OptaxOptimizer")]
    optimizer["anyOf"] = [
        *either,
        {"type": "array", "items": {"anyOf": either}},
    ]
    for mode in MODES.values():
        if (settings := defs.get(mode.__name__)) is not None:
            _remove_tag(settings)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "placer spec",
        **_ref("Spec"),
        "$defs": dict(sorted(defs.items())),
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _op(declaration: OpKind) -> dict[str, Any]:
    name = {"type": "string", "pattern": NAME_PATTERN}
    values = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    }
    properties: dict[str, Any] = {
        "name": {**name, "description": "name of the op and of its result"},
        "op": {"const": declaration.kind},
        "in": {**values, "description": _operands(declaration)},
        "out": {**values, "description": "names of the results"},
        "place": {"type": "string", "description": "such as /node:worker/gpu:0-7"},
    }
    shared = [o.name for o in declaration.operands if o.parameter]
    if shared:
        properties["params"] = {
            "type": "object",
            "description": "names of parameters of other ops to share",
            "properties": {operand: {"type": "string"} for operand in shared},
            "additionalProperties": False,
        }
    for attr in declaration.written_attrs:
        properties[attr.name] = _attr(attr)
    required = ["name", "op"]
    required += ["in"] if any(not o.parameter for o in declaration.operands) else []
    required += [attr.name for attr in declaration.attrs if attr.required]
    return {
        "title": f"op.{declaration.kind}",
        "description": declaration.doc,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _operands(declaration: OpKind) -> str:
    operands = (f"{o.name}: {o.doc}" for o in declaration.operands if not o.parameter)
    return "; ".join(operands) or "no operands"


def _attr(attr: Attr) -> dict[str, Any]:
    schema = msgspec.json.schema(attr.type)
    if attr.choices:
        schema = {"enum": list(attr.choices)}
    schema["description"] = attr.doc
    if not attr.required:
        default = attr.default
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _remove_tag(struct: dict[str, Any]) -> None:
    """Remove the key that tags a struct with its name: a plan has it, a spec does
    not.
    """
    del struct["properties"]["type"]
    struct["required"].remove("type")


def _allow_hyperparameters(optimizer: dict[str, Any]) -> None:
    from placer.plan.settings.training import optimizers

    optimizer["properties"]["op"]["enum"] = sorted(optimizers.RULES)
    meanings: dict[str, list[str]] = {}
    for name, rule in sorted(optimizers.RULES.items()):
        for key, hyper in optimizers.hyperparameters(rule).items():
            kind = "boolean" if hyper.type is bool else "number"
            meaning = f"{name}: {hyper.doc} ({hyper.default})"
            meanings.setdefault(key, []).append(meaning)
            schema = {"type": kind, "description": "; ".join(meanings[key])}
            optimizer["properties"][key] = schema

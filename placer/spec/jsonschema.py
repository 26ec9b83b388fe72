"""The JSON Schema of a spec, for editors: the structs and the ops' declarations."""

from __future__ import annotations

from typing import Any

import msgspec

from placer.ops.composite import Composite
from placer.ops.declaration import Attr, Declaration
from placer.spec.op_kinds import kinds
from placer.spec.schema import NAME_PATTERN, Block, CallOp, ParameterOp, Spec, TraceOp

_REF = "#/$defs/{name}"


def json_schema() -> dict[str, Any]:
    """The schema, JSON Schema 2020-12; what an editor completes and underlines.

    It says less than the loader checks: not whether types, shapes and places fit.
    """
    _, defs = msgspec.json.schema_components(
        [Spec, Block, ParameterOp, CallOp, TraceOp], ref_template=_REF
    )
    ops = [_op(kind.declaration) for kind in kinds().values()]
    for op in ops:
        defs[op["title"]] = op
    own = ["Block", "ParameterOp", "CallOp", "TraceOp"]
    entries = [*own, *(op["title"] for op in ops)]
    defs["Entry"] = {"anyOf": [_ref(name) for name in entries]}
    for owner, key in (("Spec", "graph"), ("Block", "ops")):
        defs[owner]["properties"][key]["items"] = _ref("Entry")
    _allow_hyperparameters(defs["Optimizer"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "placer spec",
        **_ref("Spec"),
        "$defs": dict(sorted(defs.items())),
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _op(declaration: Declaration | Composite) -> dict[str, Any]:
    name = {"type": "string", "pattern": NAME_PATTERN}
    values = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    }
    properties: dict[str, Any] = {
        "name": {**name, "description": "the op's and its result's"},
        "op": {"const": declaration.kind},
        "in": {**values, "description": _operands(declaration)},
        "out": {**values, "description": "names of the results"},
        "place": {"type": "string", "description": "as /node:worker/gpu:0-7"},
    }
    shared = [o.name for o in declaration.operands if o.parameter]
    if shared:
        properties["params"] = {
            "type": "object",
            "description": "parameters of other ops to use instead of own ones",
            "properties": {operand: {"type": "string"} for operand in shared},
            "additionalProperties": False,
        }
    for attr in declaration.attrs:
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


def _operands(declaration: Declaration | Composite) -> str:
    wanted = (f"{o.name}: {o.doc}" for o in declaration.operands if not o.parameter)
    return "; ".join(wanted) or "nothing"


def _attr(attr: Attr) -> dict[str, Any]:
    schema = msgspec.json.schema(attr.type)
    if attr.choices:
        schema = {"enum": list(attr.choices)}
    schema["description"] = attr.doc
    if not attr.required:
        default = attr.default
        schema["default"] = list(default) if isinstance(default, tuple) else default
    return schema


def _allow_hyperparameters(optimizer: dict[str, Any]) -> None:
    from placer.config import optimizers

    optimizer["properties"]["op"]["enum"] = list(optimizers.names())
    meanings: dict[str, list[str]] = {}
    for name in optimizers.names():
        for key, hyper in optimizers.find(name).hyper.items():
            kind = "boolean" if hyper.type is bool else "number"
            told = f"{name}: {hyper.doc} ({hyper.default})"
            meanings.setdefault(key, []).append(told)
            described = {"type": kind, "description": "; ".join(meanings[key])}
            optimizer["properties"][key] = described

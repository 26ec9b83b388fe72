"""Builds ops that call a JAX function of the user: `call` and `trace`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from placer import ops
from placer.compiler.frontend.entries.call_op import (
    read_function,
    read_parameters,
    read_results,
)
from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.op_entry import OpEntry, Operands
from placer.compiler.frontend.entries.op_parameters import widen
from placer.compiler.frontend.entries.trace_op import (
    RegionNode,
    encode_arguments,
    read_regions,
    read_switched,
)
from placer.compiler.frontend.schema import CallOp, TraceOp
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.graph.graph import Op
from placer.compiler.graph.if_training import IF_TRAINING
from placer.ops.composite import derive_stream
from placer.ops.declaration import LayerParameter
from placer.ops.special.call import CALL
from placer.plan.settings.data.sources import POSITION


def add_call(entry: OpEntry, operands: Operands | None, context: Context) -> bool:
    """Add a function with its parameters and state. Return False on errors."""
    node, name, problems = entry.node, entry.name, context.problems
    good = decode(node, CallOp, entry.where, problems)
    has_function = read_function(node.get("fn"), context)
    params = read_parameters(node, "params", problems)
    state = read_parameters(node, "state", problems)
    out = node.get_non_null("out")
    results = read_results(out, name, context)
    if params is None or state is None or results is None or "batch" not in good:
        return False
    if not has_function or operands is None:
        return False
    parameters = context.parameters.add_call([*params, *state], entry)
    if parameters is None:
        return False
    attrs = {
        "fn": good["fn"],
        "params": tuple(key for key, _ in params),
        "state": tuple(key for key, _ in state),
        "stream": derive_stream(context.seed, name),
        "training": True,
        "batch": good["batch"],
        "out": tuple(str(widen(type_, context.is_float64)) for _, type_ in results),
    }
    inputs = [*(operand.text for operand, _ in operands), *parameters]
    new_state = [f"{name}.{key}.new" for key, _ in state]
    outs = [*(result for result, _ in results), *new_state]
    _define(entry, inputs, outs, attrs, context)
    for (key, _), new_value in zip(state, new_state, strict=True):
        old = f"{name}.{key}"
        if old not in context.parameters.kept_states:
            store = Op("store", (old, new_value), (), {}, None, entry.span)
            context.values.add(store)
    return True


def add_trace(entry: OpEntry, operands: Operands | None, context: Context) -> bool:
    """Add each region of a traced function as an op. Return False on errors."""
    node, name, problems = entry.node, entry.name, context.problems
    good = decode(node, TraceOp, entry.where, problems)
    has_function = read_function(node.get("fn"), context)
    params = read_parameters(node, "params", problems)
    state = read_parameters(node, "state", problems)
    regions = read_regions(node.get_non_null("regions"), name, problems)
    if (
        params is None
        or state is None
        or regions is None
        or not {"batch", "args"} <= good.keys()
    ):
        return False
    if not has_function or operands is None:
        return False
    if context.parameters.add_call([*params, *state], entry) is None:
        return False
    types = {o.text: t for o, t in operands}
    for key, parameter in params:
        if isinstance(parameter, LayerParameter):
            types[f"{name}.{key}"] = widen(parameter.type, context.is_float64)
    args = encode_arguments(node.entries["args"], name, types, problems)
    if args is None:
        return False
    if good["batch"] == "replica" and good.get("parts") is None:
        problems.add(
            f"{entry.where} has batch: replica, but no 'parts'",
            node.entries["batch"].span,
            "write the number of parts of a batch, such as parts: 2",
        )
        return False
    batch: dict[str, Any] = {
        key: good[key] for key in ("batch", "parts", "axis") if key in good
    }
    modes: list[tuple[list[RegionNode], dict[str, Any]]] = [(regions, {})]
    if (written := node.get_non_null("evaluation")) is not None:
        evaluation = read_regions(written, name, problems, "evaluation")
        if evaluation is None:
            return False
        stream = derive_stream(context.seed, name)
        modes = [(regions, {"training": True, "stream": stream}), (evaluation, {})]
    for of_mode, more in modes:
        for number, region in enumerate(of_mode):
            attrs = {"fn": good["fn"], "args": args, "region": number, **more}
            if not _add_region(entry, region, batch, attrs, context):
                return False
    for key, _ in state:
        old, new_value = f"{name}.{key}", f"{name}.{key}.new"
        if new_value not in context.values.types:
            message = f"op '{name}': no region has the result '{new_value}'"
            problems.add(message, node.keys["state"].span)
            return False
        if old not in context.parameters.kept_states:
            store = Op("store", (old, new_value), (), {}, None, entry.span)
            context.values.add(store)
    return _add_switches(entry, context)


def _add_switches(entry: OpEntry, context: Context) -> bool:
    """Add an op for each result that differs between training and evaluation."""
    section, values = entry.node.get_non_null("results"), context.values
    switched = read_switched(section, entry.name, values.types, context.problems)
    if switched is None:
        return False
    places = {value.name: op.place for op in values.ops for value in op.results}
    declaration = ops.find(IF_TRAINING)
    for result, pair in switched.items():
        # An operand of the function has the place of its own op.
        of_regions = [each for each in pair if each.startswith(f"{entry.name}.")]
        place = places[of_regions[0]] if of_regions else entry.place
        inferred = values.infer(declaration, pair, {})
        values.define(
            replace(entry, place=place), declaration, pair, [result], inferred
        )
    return True


def _add_region(
    entry: OpEntry,
    region: RegionNode,
    batch: Mapping[str, Any],
    attrs: Mapping[str, Any],
    context: Context,
) -> bool:
    place = context.places.merge(entry.place, region.node.get_non_null("place"))
    operands = context.values.read_operands(region.node, entry.name)
    if operands is None:
        return False
    outs = [result for result, _ in region.results]
    for out in outs:
        if out in context.values.types:
            message = f"op '{entry.name}': the result '{out}' of a region"
            context.problems.add(f"{message} already exists", region.node.span)
            return False
    written = region.node.get_non_null("batch")
    rule = batch["batch"] if written is None else str(written.value)
    if batch["batch"] == "replica" and rule != "rows":
        attrs = {**attrs, "parts": batch["parts"], "axis": batch.get("axis", "batch")}
    # A region computes no rows if no result has a batch dimension.
    if rule == "rows" and not any(type_.has_rows for _, type_ in region.results):
        rule = "whole"
    attrs = {
        **attrs,
        "batch": rule,
        "out": tuple(str(type_) for _, type_ in region.results),
    }
    inputs = [operand.text for operand, _ in operands]
    _define(replace(entry, place=place), inputs, outs, attrs, context)
    return True


def _define(
    entry: OpEntry,
    inputs: Iterable[str],
    outs: Iterable[str],
    attrs: Mapping[str, Any],
    context: Context,
) -> None:
    operands = [*inputs, POSITION]
    inferred = context.values.infer(CALL, operands, attrs)
    context.values.define(entry, CALL, operands, outs, inferred)

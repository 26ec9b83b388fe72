"""Builds ops that call a function of the user, of the kinds `call` and `trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from placer.config.sources import POSITION
from placer.errors import OpError, Span
from placer.graph.graph import Op
from placer.ops.attributes import complete, condense
from placer.ops.composite import derive_stream
from placer.ops.declaration import LayerParameter
from placer.ops.special.call import CALL as DECLARATION
from placer.place import Place
from placer.spec.call_op import read_call, read_function, read_parameters, read_results
from placer.spec.context import Context
from placer.spec.op_kinds import CALL, TRACE, format_op_error
from placer.spec.op_parameters import widen
from placer.spec.trace_op import RegionNode, encode_arguments, read_regions, read_trace
from placer.spec.tree import MappingNode, ScalarNode
from placer.types import TensorType

Operands = list[tuple[ScalarNode, TensorType]] | None
"""The operands in `in` with their types; None if one has an error."""


class UserFunctions:
    """Adds ops of kind `call` and `trace` to the ops of one spec.

    `modules` are the Python modules that they need, in order. `define` is the function
    that adds an op with a declaration.
    """

    def __init__(self, context: Context, define: Callable[..., None]) -> None:
        self.modules: dict[str, None] = {}
        self._context = context
        self._define = define

    def add_call(
        self,
        node: MappingNode,
        name: str,
        span: Span,
        outer: Place | None,
        operands: Operands,
    ) -> bool:
        """Add a function with its parameters and its state; return False on errors."""
        good = read_call(node, name, self._context.problems)
        place = self._context.places.merge(outer, node.get_non_null("place"))
        modules = self._modules(node, good)
        params = read_parameters(
            node.get_non_null("params"), "params", False, self._context.problems
        )
        state = read_parameters(
            node.get_non_null("state"), "state", True, self._context.problems
        )
        results = read_results(
            node.get_non_null("out"), name, self._context.names, self._context.problems
        )
        if params is None or state is None or results is None or "batch" not in good:
            return False
        if modules is None or operands is None:
            return False
        parameters = self._context.parameters.add_call([*params, *state], name, span)
        if parameters is None:
            return False
        self.modules.update(dict.fromkeys(modules))
        attrs = {
            "fn": good["fn"],
            "params": tuple(key for key, _ in params),
            "state": tuple(key for key, _ in state),
            "stream": derive_stream(self._context.seed, name),
            "training": True,
            "batch": good["batch"],
            "out": tuple(
                str(widen(type_, self._context.is_float64)) for _, type_ in results
            ),
        }
        names = [*(o.text for o, _ in operands), *(p for p, _ in parameters)]
        types = [*(t for _, t in operands), *(t for _, t in parameters)]
        new_state = [f"{name}.{key}.new" for key, _ in state]
        outs = [*(result for result, _ in results), *new_state]
        if not self._add_op(node, CALL, name, names, types, outs, attrs, place, span):
            return False
        for (key, _), new_value in zip(state, new_state, strict=True):
            store = Op("store", (f"{name}.{key}", new_value), (), {}, None, span)
            self._context.values.add(store)
        return True

    def add_trace(
        self,
        node: MappingNode,
        name: str,
        span: Span,
        outer: Place | None,
        operands: Operands,
    ) -> bool:
        """Add each region of a traced function as an op; return False on errors."""
        good = read_trace(node, name, self._context.problems)
        place = self._context.places.merge(outer, node.get_non_null("place"))
        modules = self._modules(node, good)
        params = read_parameters(
            node.get_non_null("params"), "params", False, self._context.problems
        )
        regions = read_regions(
            node.get_non_null("regions"), name, self._context.problems
        )
        if params is None or regions is None or not {"batch", "args"} <= good.keys():
            return False
        if modules is None or operands is None:
            return False
        if self._context.parameters.add_call(params, name, span) is None:
            return False
        types = {o.text: t for o, t in operands}
        for key, parameter in params:
            if isinstance(parameter, LayerParameter):
                types[f"{name}.{key}"] = widen(parameter.type, self._context.is_float64)
        text = encode_arguments(
            node.entries["args"], name, types, self._context.problems
        )
        if text is None:
            return False
        self.modules.update(dict.fromkeys(modules))
        for number, region in enumerate(regions):
            attrs = {"fn": good["fn"], "args": text, "region": number}
            inner = self._context.places.merge(place, region.place)
            if not self._add_region(
                node, name, region, good["batch"], attrs, inner, span
            ):
                return False
        return True

    def _add_region(
        self,
        node: MappingNode,
        name: str,
        region: RegionNode,
        batch: str,
        attrs: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> bool:
        operands = [
            (each.text, self._context.values.lookup(each, name))
            for each in region.operands
        ]
        types = [type_ for _, type_ in operands if type_ is not None]
        if len(types) < len(operands):
            return False
        outs = [result for result, _ in region.results]
        for out in outs:
            if out in self._context.values.types:
                message = f"op '{name}': the result '{out}' of a region already exists"
                self._context.problems.add(message, region.span)
                return False
        # A region whose results have no batch dimension is the same for all rows.
        rows = batch == "rows" and any(type_.has_rows for _, type_ in region.results)
        attrs |= {
            "batch": "rows" if rows else "whole",
            "out": tuple(str(type_) for _, type_ in region.results),
        }
        names = [text for text, _ in operands]
        return self._add_op(node, TRACE, name, names, types, outs, attrs, place, span)

    def _add_op(
        self,
        node: MappingNode,
        kind: str,
        name: str,
        names: Sequence[str],
        types: Sequence[TensorType],
        outs: Sequence[str],
        attrs: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> bool:
        """Add an op with the declaration of `call`; return False on errors."""
        condensed = condense(DECLARATION, attrs)
        types = [*types, self._context.values.type_of(POSITION)]
        try:
            results = DECLARATION.infer(types, complete(DECLARATION, condensed))
        except OpError as error:
            at = node.entries.get(error.attr or "in", node.entries["op"])
            self._context.problems.add(
                format_op_error(error, kind, name), at.span, error.hint
            )
            return False
        operands = [*names, POSITION]
        self._define(DECLARATION, operands, outs, results, condensed, place, span)
        return True

    def _modules(
        self, node: MappingNode, good: dict[str, Any]
    ) -> tuple[str, ...] | None:
        fn = node.get("fn")
        if "fn" not in good or not isinstance(fn, ScalarNode):
            return None
        return read_function(fn, self._context.folder, self._context.problems)

"""Ops that call a function of the user's: of kind `call`, and the regions of a `trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from placer.config.sources import POSITION
from placer.errors import OpError, Span
from placer.graph.graph import Op
from placer.ops.attributes import complete, condense
from placer.ops.composite import stream
from placer.ops.declaration import LayerParameter
from placer.ops.special.call import CALL as DECLARATION
from placer.place import Place
from placer.spec.call_op import read_call, read_function, read_outs, read_values
from placer.spec.context import Context
from placer.spec.op_kinds import CALL, TRACE, told
from placer.spec.op_parameters import widened
from placer.spec.trace_op import Part, arguments, read_parts, read_trace
from placer.spec.tree import Mapping, Scalar
from placer.types import TensorType

Operands = list[tuple[Scalar, TensorType]] | None
"""What `in` names; None where one is wrong."""


class Calls:
    """Adds calls to the ops of one spec; `modules` are those that they need. `define`
    adds an op of a declaration."""

    def __init__(self, context: Context, define: Callable[..., None]) -> None:
        self.modules: dict[str, None] = {}
        self._context = context
        self._define = define

    def add(
        self,
        node: Mapping,
        name: str,
        span: Span,
        outer: Place | None,
        operands: Operands,
    ) -> bool:
        """Add a function with its parameters and its state; False where it is wrong."""
        good = read_call(node, name, self._context.problems)
        place = self._context.places.merge(outer, node.given("place"))
        modules = self._modules(node, good)
        params = read_values(
            node.given("params"), "params", False, self._context.problems
        )
        state = read_values(node.given("state"), "state", True, self._context.problems)
        outs = read_outs(
            node.given("out"), name, self._context.names, self._context.problems
        )
        if params is None or state is None or outs is None or "batch" not in good:
            return False
        if modules is None or operands is None:
            return False
        own = self._context.parameters.of_call([*params, *state], name, span)
        if own is None:
            return False
        self.modules.update(dict.fromkeys(modules))
        attrs = {
            "fn": good["fn"],
            "params": tuple(key for key, _ in params),
            "state": tuple(key for key, _ in state),
            "stream": stream(self._context.seed, name),
            "training": True,
            "batch": good["batch"],
            "out": tuple(str(widened(kind, self._context.wide)) for _, kind in outs),
        }
        names = [*(o.text for o, _ in operands), *(p for p, _ in own)]
        types = [*(t for _, t in operands), *(t for _, t in own)]
        new = [f"{name}.{key}.new" for key, _ in state]
        made = [*(out for out, _ in outs), *new]
        if not self._op(node, CALL, name, names, types, made, attrs, place, span):
            return False
        for key, fresh in zip((key for key, _ in state), new, strict=True):
            store = Op("store", (f"{name}.{key}", fresh), (), {}, None, span)
            self._context.values.add(store)
        return True

    def add_regions(
        self,
        node: Mapping,
        name: str,
        span: Span,
        outer: Place | None,
        operands: Operands,
    ) -> bool:
        """Add the regions of a traced function, each of them an op; False where one is
        wrong."""
        good = read_trace(node, name, self._context.problems)
        place = self._context.places.merge(outer, node.given("place"))
        modules = self._modules(node, good)
        params = read_values(
            node.given("params"), "params", False, self._context.problems
        )
        parts = read_parts(node.given("regions"), name, self._context.problems)
        if params is None or parts is None or not {"batch", "args"} <= good.keys():
            return False
        if modules is None or operands is None:
            return False
        if self._context.parameters.of_call(params, name, span) is None:
            return False
        types = {o.text: t for o, t in operands}
        for key, parameter in params:
            if isinstance(parameter, LayerParameter):
                types[f"{name}.{key}"] = widened(parameter.type, self._context.wide)
        text = arguments(node.entries["args"], name, types, self._context.problems)
        if text is None:
            return False
        self.modules.update(dict.fromkeys(modules))
        for number, part in enumerate(parts):
            attrs = {"fn": good["fn"], "args": text, "region": number}
            at = self._context.places.merge(place, part.place)
            if not self._region(node, name, part, good["batch"], attrs, at, span):
                return False
        return True

    def _region(
        self,
        node: Mapping,
        name: str,
        part: Part,
        batch: str,
        attrs: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> bool:
        found = [
            (each.text, self._context.values.lookup(each, name))
            for each in part.operands
        ]
        types = [kind for _, kind in found if kind is not None]
        if len(types) < len(found):
            return False
        made = [out for out, _ in part.outs]
        for out in part.outs:
            if out[0] in self._context.values.types:
                message = f"op '{name}': a region gives '{out[0]}', which is there"
                self._context.problems.add(message, part.span)
                return False
        # What does not depend on the batch is the same for all rows.
        rows = batch == "rows" and any(kind.has_rows for _, kind in part.outs)
        attrs |= {
            "batch": "rows" if rows else "whole",
            "out": tuple(str(kind) for _, kind in part.outs),
        }
        names = [text for text, _ in found]
        return self._op(node, TRACE, name, names, types, made, attrs, place, span)

    def _op(
        self,
        node: Mapping,
        kind: str,
        name: str,
        names: Sequence[str],
        types: Sequence[TensorType],
        made: Sequence[str],
        attrs: dict[str, Any],
        place: Place | None,
        span: Span,
    ) -> bool:
        """Add an op of kind `call`."""
        held = condense(DECLARATION, attrs)
        types = [*types, self._context.values.type_of(POSITION)]
        try:
            results = DECLARATION.infer(types, complete(DECLARATION, held))
        except OpError as error:
            at = node.entries.get(error.attr or "in", node.entries["op"])
            self._context.problems.add(told(error, kind, name), at.span, error.hint)
            return False
        operands = [*names, POSITION]
        self._define(DECLARATION, operands, made, results, held, place, span)
        return True

    def _modules(self, node: Mapping, good: dict[str, Any]) -> tuple[str, ...] | None:
        fn = node.get("fn")
        if "fn" not in good or not isinstance(fn, Scalar):
            return None
        return read_function(fn, self._context.folder, self._context.problems)

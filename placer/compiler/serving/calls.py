"""Writes the calls of the user's functions in an exported model.

A function of a `call` op is called with its parameters as a dict. A traced function is
called once, as in `placer.trace`, even if it was cut into several regions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from placer.compiler.emit.code import Call, Expression, literal
from placer.compiler.graph.declared import declared_attrs
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.serving.errors import OpNotExportableError
from placer.ops.attributes import complete
from placer.ops.functions.arguments import open_parameters, state_argument
from placer.ops.functions.cut import OUTSIDE
from placer.ops.functions.function import TracedFunction, trace_function
from placer.ops.functions.made_models import make_template
from placer.ops.functions.template import Template
from placer.ops.special.call import CALL
from placer.place.types import TensorType

_ROWS = 2
"""The number of rows with which functions are traced, to see how they are cut."""


@dataclass(frozen=True)
class TracedCall:
    """A call of a traced function: its regions, and the graph's values by cut source."""

    fn: Any
    text: str
    traced: TracedFunction
    values: Mapping[tuple[int, int], str]


class CallWriter:
    """Writes the `call` ops of a graph.

    `load` returns the function called MODULE:FUNCTION.

    Attributes:
        functions: the names that the calls use of the user's modules, as MODULE:NAME.
        used: the names that they use of `ops/special/exported_jax.py`.
    """

    def __init__(self, graph: Graph, load: Callable[[str], Any]) -> None:
        self._load = load
        self._calls: dict[str, TracedCall] = {}
        calls = graph.of_kind(CALL.kind)
        for op in calls:
            if op.attrs.get("args"):
                self._add_traced(op)
        self.functions: dict[str, None] = dict.fromkeys(op.attrs["fn"] for op in calls)
        self.used: set[str] = set()

    def _ops(self, name: str) -> str:
        self.used.add(name)
        return f"ops.{name}"

    def _add_traced(self, op: Op) -> None:
        key = _name_of_trace(op)
        if op.attrs.get("parts"):
            raise OpNotExportableError(
                op.name.partition(".")[0],
                f"'{op.name.partition('.')[0]}' reduces over the parts of a batch also in"
                " evaluation, and an exported model has no parts",
                hint="reduce only in training, so that evaluation works row by row",
            )
        if key not in self._calls:
            fn, text = self._load(op.attrs["fn"]), op.attrs["args"]
            self._calls[key] = TracedCall(fn, text, trace_function(fn, text, _ROWS), {})
        call = self._calls[key]
        number = op.attrs.get("region", 0)
        sources = call.traced.cut.regions[number].operands
        known = dict(zip(sources, op.operands, strict=False))
        known |= {(number, i): value.name for i, value in enumerate(op.results)}
        assert isinstance(call.values, dict)
        call.values.update(known)

    def statements(
        self,
        op: Op,
        expression: Callable[[str], Expression],
        targets: Callable[[Sequence[str]], list[str]],
        rows: str,
        modules: Mapping[str, str],
    ) -> Iterator[Call]:
        """Yield the statements of an op.

        Args:
            expression: returns the expression of a value.
            targets: returns the variables of results.
            rows: the variable with the number of rows.
            modules: the names of modules.
        """
        if op.attrs.get("args"):
            yield from self._traced(op, expression, targets, rows, modules)
            return
        attrs = complete(CALL, declared_attrs(op))
        params, state = attrs["params"], attrs["state"]
        *operands, _ = op.operands
        first_state = len(operands) - len(state)
        first_param = first_state - len(params)
        inputs = [expression(name) for name in operands[:first_param]]
        keys = f"{self._ops('row_keys_of')}({rows}, {attrs['stream']})"
        rng = keys if attrs["batch"] == "rows" else f"{keys}[0]"
        given = [
            _dict(names, map(expression, values))
            for names, values in (
                (params, operands[first_param:first_state]),
                (state, operands[first_state:]),
            )
        ]
        fn = _function(op.attrs["fn"], modules)
        yield Call(
            self._ops("outputs_of"),
            [fn, *given, *inputs, f"rng={rng}"],
            targets([value.name for value in op.results]),
            is_tuple=True,
        )

    def _traced(
        self,
        op: Op,
        expression: Callable[[str], Expression],
        targets: Callable[[Sequence[str]], list[str]],
        rows: str,
        modules: Mapping[str, str],
    ) -> Iterator[Call]:
        """Yield the call of a traced function if the op is its last region."""
        call = self._calls[_name_of_trace(op)]
        results = call.traced.cut.results
        last = max(r for r, _ in call.values if r != OUTSIDE)
        if op.attrs.get("region", 0) != last:
            return
        kinds = iter(enumerate(call.traced.arguments.types))

        def value() -> Expression:
            number, kind = next(kinds)
            name = call.values.get((OUTSIDE, number))
            if name is not None:
                return expression(name)
            # no output depends on the value
            sizes = [rows if d == "batch" else str(d) for d in kind.shape]
            shape = ", ".join(sizes) + ("," if len(sizes) == 1 else "")
            return Expression(f'jnp.zeros(({shape}), "{kind.dtype}")')

        def argument(term: Mapping[str, Any]) -> Expression:
            ((key, content),) = term.items()
            if key in ("in", "param"):
                return value()
            if key == "state":
                content = content["make"]
            if key in ("make", "state"):
                made: Any = {"fn": content} if isinstance(content, str) else content
                self.functions[f"{module}:{made['fn']}"] = None
                given = made.get("with", {}).items()
                config = [argument(x).after(f"{k}=") for k, x in given]
                template, in_training = (
                    make_template(
                        call.fn, content, training=training, is_state=key == "state"
                    )
                    for training in (False, True)
                )
                pytree = Expression(_function(f"{module}:{made['fn']}", modules))
                if _is_switched(template, in_training):
                    switch = self._ops("in_evaluation")
                    pytree = Expression(switch, items=(pytree, *config))
                    config = []
                return self._filled(pytree, template, value, config)
            if key in ("list", "tuple"):
                items = tuple(map(argument, content))
                if not items:
                    return Expression("".join(_BRACKETS[key]))
                if key == "tuple" and len(items) == 1:
                    return Expression("", items=(items[0], Expression("")))
                return Expression("", items=items, brackets=_BRACKETS[key])
            if key == "dict":
                return _dict(content, map(argument, content.values()))
            return Expression(literal(content))

        module = op.attrs["fn"].partition(":")[0]
        arguments = [argument(term) for term in json.loads(call.text)]
        # No output depends on the key.
        more = {"key": "jax.random.key(0)", "training": "False"}
        for name in open_parameters(call.fn, len(arguments)):
            arguments.append(Expression(f"{name}={more[name]}"))
        names = [call.values.get(source, "") for source in results]
        fn = _function(op.attrs["fn"], modules)
        if state_argument(call.text) is not None:
            arguments.insert(0, Expression(fn))
            fn = self._ops("results_of")
        tree = jax.tree.structure(call.traced.results)
        if jax.tree_util.treedef_is_leaf(tree):
            yield Call(fn, arguments, targets(names))
        else:
            leaves = Expression(fn, items=tuple(_as_expression(a) for a in arguments))
            yield Call("jax.tree.leaves", [leaves], targets(names), is_tuple=True)

    def _filled(
        self,
        pytree: Expression,
        template: Template,
        value: Callable[[], Expression],
        config: Sequence[Expression],
    ) -> Expression:
        """Return the expression of a pytree of the module with its parameters."""
        numbers = [
            i for i, x in enumerate(template.leaves) if isinstance(x, TensorType)
        ]
        leaves = _dict(numbers, [value() for _ in numbers])
        return Expression(self._ops("with_leaves"), items=(pytree, leaves, *config))


def _is_switched(evaluation: Template, training: Template) -> bool:
    """Return True if a pytree has modules that differ in training and evaluation."""
    if evaluation.structure != training.structure:
        return True
    pairs = zip(evaluation.leaves, training.leaves, strict=True)
    return any(isinstance(one, bool) and one is not other for one, other in pairs)


_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")")}


def _as_expression(argument: str | Expression) -> Expression:
    return argument if isinstance(argument, Expression) else Expression(argument)


def _dict(names: Any, values: Any) -> Expression:
    items = tuple(
        v.after(f"{literal(n)}: ") for n, v in zip(names, values, strict=True)
    )
    if not items:
        return Expression("{}")
    return Expression("", items=items, brackets=("{", "}"))


def _function(path: str, modules: Mapping[str, str]) -> str:
    module, _, name = path.partition(":")
    return f"{modules[module]}.{name}"


def _name_of_trace(op: Op) -> str:
    return f"{op.attrs['fn']} {op.name.partition('.')[0]}"

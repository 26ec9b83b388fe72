"""Emits the constants at the top of a program.

# Edges: the numbers of the messages between nodes, from plan.json.
GRADIENTS_TO_PS0 = 3

# Random streams: each seeds random numbers, together with the step and the row.
DROPOUT_STREAM = 4556203260501262956

# Functions of the user. stream: seeds its random numbers.
ffn = ops.call.bind(serve.ffn, params=("w",), stream=2711550994021126)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from placer import ops
from placer.compiler.emit.code import Call, wrap_comment
from placer.compiler.emit.edge_names import EdgeNames
from placer.compiler.emit.keywords import (
    as_arguments,
    function_attribute,
    keywords_of,
)
from placer.compiler.emit.names import Names
from placer.compiler.emit.roles import spec_op
from placer.compiler.graph.declared import calls_user_code
from placer.compiler.graph.graph import Op
from placer.compiler.schedule.units import LoweredGraph

_UNBOUND = "training"
"""The attribute of a user's function that differs between training and evaluation."""
_MEANINGS = {
    "batch": '"rows" if each row of the results depends on one row of the inputs',
    "parts": 'the number of parts of a batch, which batch="replica" computes one by one',
    "stream": "seeds its random numbers",
    "region": "a part of the traced function",
    "same": "a digest of its equations",
    "saves": "the arguments that `backward` needs",
}
_Bound = tuple[str, tuple[str, ...]]
"""The kind of an op that calls a user's function, and its arguments."""


class Constants:
    """The constants of one program.

    Args:
        node: the node, or the first of the nodes, of the program.
        graphs: the graphs of its hooks.
        names: the names of the program.
        edge_names: the names of the edges of the build.
    """

    def __init__(
        self,
        node: str,
        graphs: Sequence[LoweredGraph],
        names: Names,
        edge_names: EdgeNames,
    ) -> None:
        self._modules = names.modules
        self._edges = {
            edge: names.new_name(name) for edge, name in edge_names.of_node(node)
        }
        self._used: set[int] = set()
        in_order = [
            (lowered, op)
            for lowered in graphs
            for op in lowered.graph.ops_on(node)
            if op.is_computed and not op.is_gradient
        ]
        self._streams: dict[str, str] = {}
        functions: dict[_Bound, str] = {}
        for lowered, op in in_order:
            if calls_user_code(op):
                functions.setdefault(self._bound(op), spec_op(lowered.graph, op))
            elif "stream" in op.attrs and op.kind in ops.kinds():
                stream = keywords_of(op, self._modules)["stream"]
                if stream not in self._streams:
                    title = f"{spec_op(lowered.graph, op)}_stream".upper()
                    self._streams[stream] = names.new_name(title)
        values = {spec_op(lowered.graph, op) for lowered, op in in_order}
        self._functions = {
            bound: names.new_name(name)
            for bound, name in _name_functions(functions, values)
        }

    def edge(self, number: int) -> str:
        """Return the name of an edge; a program has the names that it uses."""
        self._used.add(number)
        return self._edges[number]

    def function_of(self, op: Op) -> tuple[str, list[str]]:
        """Return the function of a computed op, and its keyword arguments."""
        keywords = keywords_of(op, self._modules)
        if calls_user_code(op):
            name = self._functions[self._bound(op)]
            bound = {k: text for k, text in keywords.items() if k == _UNBOUND}
            return name, as_arguments(bound)
        if "stream" in keywords:
            keywords["stream"] = self._streams[keywords["stream"]]
        return f"ops.{op.kind}", as_arguments(keywords)

    def _bound(self, op: Op) -> _Bound:
        keywords = keywords_of(op, self._modules)
        function = keywords.pop(str(function_attribute(op)))
        keywords.pop(_UNBOUND, None)
        return op.kind, (function, *as_arguments(keywords))

    def lines(self) -> list[str]:
        """Return the definitions of the constants that the program uses."""
        edges = [f"{n} = {e}" for e, n in self._edges.items() if e in self._used]
        streams = [f"{name} = {stream}" for stream, name in self._streams.items()]
        functions = [
            line.text
            for (kind, arguments), name in self._functions.items()
            for line in Call(f"ops.{kind}.bind", arguments, [name]).lines(0)
        ]
        titled = {
            "Edges: the numbers of the messages between nodes, from plan.json.": edges,
            "Random streams: each seeds random numbers, with the step and the row.": streams,
            f"Functions of the user{self._legend()}.": functions,
        }
        return [
            line
            for title, lines in titled.items()
            if lines
            for line in (*wrap_comment([title], 0), *lines, "")
        ][:-1]

    def _legend(self) -> str:
        """Return the meanings of the bound attributes that need one."""
        bound = {each for _, arguments in self._functions for each in arguments}
        names = {each.partition("=")[0] for each in bound}
        used = [f"{name}: {text}" for name, text in _MEANINGS.items() if name in names]
        return f". {'; '.join(used)}" if used else ""


def _name_functions(
    functions: dict[_Bound, str], values: set[str]
) -> Iterator[tuple[_Bound, str]]:
    """Yield a name for each user function: its own, or with its module if an op has the name.

    If ops bind one function to different attributes, the name also contains the op.
    """
    bound_to: dict[str, list[_Bound]] = defaultdict(list)
    for bound in functions:
        bound_to[bound[1][0]].append(bound)
    for text, found in bound_to.items():
        module, _, name = text.rpartition(".")
        title = name if name not in values else f"{module}_{name}".replace(".", "_")
        for bound in found:
            yield bound, title if len(found) == 1 else f"{title}_{functions[bound]}"

"""The text form of a graph. `parse_graph` is the inverse of `print_graph`.

Positions in the spec can be printed as comments, which the parser ignores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

from msgspec import Struct, to_builtins

from placer.compiler.graph.declared import is_declared
from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.op_lines import (
    RESERVED,
    make_value,
    parse_number,
    read_attribute,
    read_graph_lines,
)
from placer.errors import GraphError, PlacerError, Span
from placer.place import Cluster, Place
from placer.place.types import ResidualType, TensorType
from placer.plan.settings.training.update_modes import Settings, to_text
from placer.system.resources import find_file

T = TypeVar("T")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_NUMBERS = frozenset({"inf", "nan"})


def print_graph(graph: Graph, *, reasons: bool = False) -> str:
    """Return the graph as text, one op per line, in program order. With `reasons`, a
    comment at the end of a line says why a pass placed the op there."""
    lines = [f"{print_graph_head(graph)} {{"]
    for op in graph.ops:
        line = print_op(op)
        if reasons and op.why:
            line += f"  # {op.why}"
        lines.append("  " + line)
    lines.append("}")
    return "\n".join(lines) + "\n"


def print_graph_head(graph: Graph) -> str:
    """Return the first line of a graph without its brace: name, nodes, sizes."""
    head = f"graph @{graph.name} {graph.cluster.text()} batch({graph.batch})"
    if graph.evaluation_batch is not None:
        head += f" evaluation({graph.evaluation_batch})"
    if graph.microbatches > 1:
        head += f" microbatches({graph.microbatches})"
    if graph.first_edge > 1:
        head += f" first_edge({graph.first_edge})"
    return head


def print_op(op: Op) -> str:
    """Return one op as a line of text."""
    use = print_use(op)
    return f"{print_results(op)} = {use}" if op.results else use


def print_results(op: Op) -> str:
    """Return the results of an op with their types: the text before the `=`."""
    return ", ".join(map(_format_value, op.results))


def print_use(op: Op) -> str:
    """Return the text of an op after the `=`: kind, operands, attributes and place."""
    text = f"{op.kind}({', '.join('%' + name for name in op.operands)})"
    if op.attrs:
        text += " " + print_attribute(op.attrs)
    if op.place is not None:
        text += f" @{op.place}"
    return text


def _format_value(value: Value) -> str:
    layout = (
        f"{value.layout or ''}/{value.microbatch_layout}"
        if value.microbatch_layout
        else value.layout
    )
    if value.flat is not None:
        whole = "/whole" if value.flat.whole else ""
        layout = f"{layout}[{value.flat.at}/{value.flat.total}{whole}]"
    return f"%{value.name}: {value.type}{f' {layout}' if layout else ''}"


def print_attribute(term: Any) -> str:
    """Return the value of an attribute as text."""
    if term is None or isinstance(term, bool):
        return str(term).lower()
    if isinstance(term, int | Place):
        return str(term)
    if isinstance(term, float):
        return _format_float(term)
    if isinstance(term, Settings):
        return print_attribute(to_text(term))
    if isinstance(term, str):
        plain = _WORD.match(term) and term not in RESERVED and term not in _NUMBERS
        return term if plain else json.dumps(term)
    if isinstance(term, Struct):
        return print_attribute(to_builtins(term))
    if isinstance(term, Mapping):
        pairs = ", ".join(f"{k} = {print_attribute(v)}" for k, v in term.items())
        return f"{{{pairs}}}"
    if isinstance(term, tuple | list):
        return "[" + ", ".join(map(print_attribute, term)) + "]"
    raise TypeError(f"an attribute cannot be a {type(term).__name__}")


def _format_float(number: float) -> str:
    text = repr(number)
    if math.isfinite(number) and not any(c in text for c in ".e"):
        text += ".0"
    return text


def parse_graph(text: str, file: str = "<graph>") -> Graph:
    """Parse the text of exactly one graph. `file` is the file name in errors. Raises
    GraphError with the line and column if the text is invalid."""
    graphs = parse_graphs(text, file)
    if len(graphs) != 1:
        raise GraphError(f"expected one graph, found {len(graphs)}")
    return graphs[0]


def parse_graphs(text: str, file: str = "<graph>") -> tuple[Graph, ...]:
    """Parse the text of any number of graphs.

    `file` is the file name in errors. Raises GraphError with the line and column if the
    text is invalid.
    """
    graphs = read_graph_lines(text)
    if graphs is not None:
        return graphs
    return read_by_grammar(text, file)


def read_by_grammar(text: str, file: str) -> tuple[Graph, ...]:
    """Parse the text with the grammar: slow, but it accepts any white space and finds the
    position of a mistake."""
    from lark.exceptions import UnexpectedEOF, UnexpectedInput

    try:
        tree = _parser().parse(text)
        return tuple(_Reader(text, file).graph(node) for node in tree.children)
    except UnexpectedEOF as error:
        raise GraphError("the graph's text ends too early") from error
    except UnexpectedInput as error:
        token = getattr(error, "token", None)
        if token is not None and token.type == "$END":
            raise GraphError("the graph's text ends too early") from error
        span = _span(text, file, error.line, error.column)
        raise GraphError("this is not the text of a graph", span=span) from error
    except RecursionError as error:
        raise GraphError("the graph's text is nested too deeply") from error


def _span(text: str, file: str, line: int, column: int, length: int = 1) -> Span:
    lines = text.split("\n")
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    return Span(file, line, column, length, source)


@cache
def _parser() -> Any:
    from lark import Lark

    grammar = find_file("grammar/graph.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converts the parser's trees to graphs, and checks places, types and clusters."""

    text: str
    file: str

    def graph(self, tree: Any) -> Graph:
        name, nodes, *numbers = tree.children[:6]
        batch, evaluation, microbatches, first_edge = map(self._number, numbers)
        return Graph(
            str(name),
            self._convert(nodes, Cluster.parse),
            batch or 0,
            tuple(map(self._op, tree.children[6:])),
            1 if microbatches is None else microbatches,
            evaluation,
            1 if first_edge is None else first_edge,
        )

    def _number(self, token: Any) -> int | None:
        if token is None:
            return None
        return self._convert(token, lambda text: int(text[text.index("(") + 1 : -1]))

    def _op(self, tree: Any) -> Op:
        results, kind, operands, attrs, place = tree.children
        return Op(
            kind=str(kind),
            operands=tuple(str(v)[1:] for v in operands.children) if operands else (),
            results=tuple(map(self._value, results.children)) if results else (),
            attrs=self._attributes(str(kind), attrs) if attrs else {},
            place=self._place(place, 1) if place else None,
        )

    def _attributes(self, kind: str, tree: Any) -> dict[str, Any]:
        """Return the attributes of an op. Raises GraphError for an undeclared
        attribute; an op of an unknown kind may have any."""
        attrs = self._mapping(tree)
        if is_declared(kind):
            for pair in filter(None, tree.children):
                key = pair.children[0]
                read = partial(read_attribute, kind, attrs[str(key)])
                attrs[str(key)] = self._convert(key, read)
        return attrs

    def _value(self, tree: Any) -> Value:
        name, kind, layout = tree.children
        value_type: TensorType | ResidualType
        if kind.data == "tensor":
            value_type = self._convert(kind.children[0], TensorType.parse)
        else:
            parts = [part for part in kind.children if part is not None]
            value_type = ResidualType(
                tuple(self._convert(part, TensorType.parse) for part in parts)
            )
        read = partial(make_value, str(name)[1:], value_type)
        return read(None) if layout is None else self._convert(layout, read)

    def _mapping(self, tree: Any) -> dict[str, Any]:
        pairs = [pair for pair in tree.children if pair is not None]
        return {str(key): self._term(term) for key, term in (p.children for p in pairs)}

    def _term(self, tree: Any) -> Any:
        children = [child for child in tree.children if child is not None]
        match tree.data:
            case "number":
                return self._convert(children[0], parse_number)
            case "string":
                return self._convert(children[0], json.loads)
            case "place":
                return self._place(children[0])
            case "word":
                word = str(children[0])
                return RESERVED.get(word, word)
            case "list":
                return tuple(map(self._term, children))
            case _:
                return self._mapping(children[0])

    def _place(self, token: Any, skipped: int = 0) -> Place:
        return self._convert(token, lambda text: Place.parse(text[skipped:]))

    def _convert(self, token: Any, read: Callable[[str], T]) -> T:
        try:
            return read(str(token))
        except (ValueError, PlacerError) as error:
            at = _span(self.text, self.file, token.line, token.column, len(token))
            if isinstance(error, PlacerError):
                raise GraphError(error.message, span=at, hint=error.hint) from error
            raise GraphError(str(error), span=at) from error

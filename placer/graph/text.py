"""The text form of a graph: `print_graph` and `parse_graph` are each other's inverse.

Source positions are printed as comments on request and are not read back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from placer.errors import GraphError, PlacerError, Span
from placer.graph.graph import Graph, Op, Value
from placer.place import Cluster, Place
from placer.resources import find
from placer.types import ResidualType, TensorType

T = TypeVar("T")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_RESERVED = {"true": True, "false": False, "none": None}
_NUMBERS = frozenset({"inf", "nan"})


def print_graph(graph: Graph, *, positions: bool = False) -> str:
    """The graph as text, one op a line, in program order."""
    head = f"graph @{graph.name} {graph.cluster.text()} batch({graph.batch})"
    if graph.microbatches > 1:
        head += f" microbatches({graph.microbatches})"
    lines = [f"{head} {{"]
    for op in graph.ops:
        line = print_op(op)
        if positions and op.source is not None:
            line += f"  # {op.source}"
        lines.append("  " + line)
    lines.append("}")
    return "\n".join(lines) + "\n"


def print_op(op: Op) -> str:
    """One op as a line of text."""
    line = f"{op.kind}({', '.join('%' + name for name in op.operands)})"
    if op.results:
        line = f"{', '.join(map(_value, op.results))} = {line}"
    if op.attrs:
        line += " " + _term(op.attrs)
    if op.place is not None:
        line += f" @{op.place}"
    return line


def _value(value: Value) -> str:
    layout = f"{value.layout or ''}/{value.over}" if value.over else value.layout
    return f"%{value.name}: {value.type}{f' {layout}' if layout else ''}"


def _term(term: Any) -> str:
    if isinstance(term, bool):
        return "true" if term else "false"
    if term is None:
        return "none"
    if isinstance(term, int):
        return str(term)
    if isinstance(term, float):
        return _float(term)
    if isinstance(term, Place):
        return str(term)
    if isinstance(term, str):
        plain = _WORD.match(term) and term not in _RESERVED and term not in _NUMBERS
        return term if plain else json.dumps(term)
    if isinstance(term, Mapping):
        return "{" + ", ".join(f"{k} = {_term(v)}" for k, v in term.items()) + "}"
    if isinstance(term, tuple | list):
        return "[" + ", ".join(map(_term, term)) + "]"
    raise TypeError(f"an attribute cannot be a {type(term).__name__}")


def _float(number: float) -> str:
    text = repr(number)
    if math.isfinite(number) and not any(c in text for c in ".e"):
        text += ".0"
    return text


def parse_graph(text: str, file: str = "<graph>") -> Graph:
    """Read the text of exactly one graph; GraphError points at what is wrong."""
    graphs = parse_graphs(text, file)
    if len(graphs) != 1:
        raise GraphError(f"expected one graph, found {len(graphs)}")
    return graphs[0]


def parse_graphs(text: str, file: str = "<graph>") -> tuple[Graph, ...]:
    """Read the text of one or more graphs; GraphError points at what is wrong."""
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

    grammar = find("grammar/graph.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns the parser's trees into graphs; what a word means is checked here."""

    text: str
    file: str

    def graph(self, tree: Any) -> Graph:
        name, nodes, batch, microbatches, *ops = tree.children
        cluster = self._meaning(nodes, Cluster.parse)
        rows = self._meaning(batch, lambda text: int(text[6:-1]))
        parts = int(microbatches[13:-1]) if microbatches else 1
        return Graph(str(name), cluster, rows, tuple(map(self._op, ops)), parts)

    def _op(self, tree: Any) -> Op:
        results, kind, operands, attrs, place = tree.children
        return Op(
            kind=str(kind),
            operands=tuple(str(v)[1:] for v in operands.children) if operands else (),
            results=tuple(map(self._value, results.children)) if results else (),
            attrs=self._mapping(attrs) if attrs else {},
            place=self._place(place, 1) if place else None,
        )

    def _value(self, tree: Any) -> Value:
        name, kind, layout = tree.children
        value_type: TensorType | ResidualType
        if kind.data == "tensor":
            value_type = self._meaning(kind.children[0], TensorType.parse)
        else:
            parts = [part for part in kind.children if part is not None]
            value_type = ResidualType(
                tuple(self._meaning(part, TensorType.parse) for part in parts)
            )
        places, _, over = str(layout or "").partition("/")
        return Value(str(name)[1:], value_type, places or None, over or None)  # type: ignore[arg-type]

    def _mapping(self, tree: Any) -> dict[str, Any]:
        pairs = [pair for pair in tree.children if pair is not None]
        return {str(key): self._term(term) for key, term in (p.children for p in pairs)}

    def _term(self, tree: Any) -> Any:
        children = [child for child in tree.children if child is not None]
        match tree.data:
            case "number":
                return self._meaning(children[0], _number)
            case "string":
                return self._meaning(children[0], json.loads)
            case "place":
                return self._place(children[0])
            case "word":
                word = str(children[0])
                return _RESERVED.get(word, word)
            case "list":
                return tuple(map(self._term, children))
            case _:
                return self._mapping(children[0])

    def _place(self, token: Any, skipped: int = 0) -> Place:
        return self._meaning(token, lambda text: Place.parse(text[skipped:]))

    def _meaning(self, token: Any, read: Callable[[str], T]) -> T:
        """What a token says; GraphError at the token when it says nothing."""
        try:
            return read(str(token))
        except (ValueError, PlacerError) as error:
            at = _span(self.text, self.file, token.line, token.column, len(token))
            message = error.message if isinstance(error, PlacerError) else str(error)
            hint = error.hint if isinstance(error, PlacerError) else None
            raise GraphError(message, span=at, hint=hint) from error


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

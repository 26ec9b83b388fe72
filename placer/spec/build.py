"""The section `graph`: blocks and ops to the ops of a graph, in program order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as Types
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from placer.errors import OpError, Span, did_you_mean
from placer.graph import inits
from placer.graph.graph import Op, Value
from placer.graph.scalars import shown
from placer.graph.types import FLOATS, TensorType
from placer.ops.attributes import complete, condense
from placer.ops.declaration import LayerParameter
from placer.place import Place
from placer.spec.decode import decode, missing, unknown_keys
from placer.spec.kinds import PARAMETER, Kind, kinds, read_attrs, told, unknown_kind
from placer.spec.names import Names, quoted
from placer.spec.parameters import Rule, frozen, rule_of
from placer.spec.places import Places
from placer.spec.problems import Problems
from placer.spec.schema import Block, ParameterOp
from placer.spec.train import Group
from placer.spec.tree import Mapping, Node, Scalar, Sequence


class Builder:
    """Builds the ops of one spec; mistakes are told and what depends on them is not.

    `types` holds each value defined so far, None for one whose op is wrong: what uses
    it is not checked further.
    """

    def __init__(
        self,
        inputs: Types[str, TensorType | None],
        input_spans: Types[str, Span],
        rules: list[Rule],
        groups: list[Group],
        places: Places,
        names: Names,
        wide: bool,
        problems: Problems,
    ) -> None:
        self.ops: list[Op] = []
        self.parameters: dict[str, Span] = {}
        self.untaken: list[str] = []
        self.inputs = {n: t and self._widen(t, wide) for n, t in inputs.items()}
        self._input_spans = input_spans
        self._read: set[str] = set()
        self._types: dict[str, TensorType | None] = {}
        self._spoilt: set[str] = set()
        self._rules = rules
        self._groups = groups
        self._places = places
        self._names = names
        self._wide = wide
        self._problems = problems
        self._root: Sequence | None = None

    def build(self, section: Node | None) -> None:
        """Build every op of the section."""
        if not isinstance(section, Sequence):
            if section is not None:
                message = f"'graph' must be a list, not {shown(section.value)}"
                self._problems.add(message, section.span, "begin each op with '- '")
            return
        if not section.items:
            self._problems.add("'graph' has no op", section.span)
        self._root = section
        self._walk(section.items, None)

    def _walk(self, items: Iterable[Node], place: Place | None) -> None:
        for node in items:
            if not isinstance(node, Mapping):
                message = f"an op must be a mapping, not {shown(node.value)}"
                hint = "write {name: h1, op: fc, in: x, size: 10}"
                self._problems.add(message, node.span, hint)
            elif "ops" in node.entries and "op" not in node.entries:
                self._block(node, place)
            else:
                self._op(node, place)

    def _block(self, node: Mapping, outer: Place | None) -> None:
        good = decode(node, Block, "a block", self._problems)
        said = node.get("place") if good.get("place") is not None else None
        place = self._places.merge(outer, said)
        inner = good.get("ops")
        if isinstance(inner, Sequence):
            self._walk(inner.items, place)
        elif inner is not None:
            message = f"'ops' must be a list, not {shown(inner.value)}"
            self._problems.add(message, inner.span, "begin each op with '- '")

    def _op(self, node: Mapping, outer: Place | None) -> None:
        entries = node.entries
        name_node, kind_node = entries.get("name"), entries.get("op")
        name = self._name(node, name_node)
        if not isinstance(kind_node, Scalar) or not isinstance(kind_node.value, str):
            if kind_node is None:
                missing(node, "op", f"op '{name}'" if name else "an op", self._problems)
            else:
                message = (
                    f"'op' must be the name of an op, not {shown(kind_node.value)}"
                )
                self._problems.add(message, kind_node.span)
            return self._spoil(node, name)
        if name is None:
            return self._spoil(node, name)
        assert name_node is not None
        span = name_node.span
        if kind_node.value == PARAMETER:
            return self._parameter_op(node, name, span)
        kind = kinds().get(kind_node.value)
        if kind is None:
            message, hint = unknown_kind(kind_node.value)
            self._problems.add(message, kind_node.inside, hint)
            self._operands(node, name)
            return self._spoil(node, name)
        place_node = entries.get("place")
        place = outer if place_node is None else self._places.merge(outer, place_node)
        attrs = read_attrs(kind, node, name, self._problems)
        operands = self._operands(node, name)
        if attrs is None or operands is None:
            return self._spoil(node, name)
        if self._wide and "dtype" in kind.attrs and _is_float(kind, attrs):
            attrs["dtype"] = "float64"
        try:
            self._add(node, kind, name, span, place, attrs, operands)
        except OpError as error:
            self._tell(error, node, kind, name, operands)
            self._spoil(node, name)
        return None

    def _add(
        self,
        node: Mapping,
        kind: Kind,
        name: str,
        span: Span,
        place: Place | None,
        attrs: dict[str, Any],
        operands: list[tuple[str, Scalar]],
    ) -> None:
        declaration = kind.declaration
        types = self._types
        names = [operand for operand, _ in operands]
        given: list[TensorType] = [types[n] for n in names]  # type: ignore[misc]
        if declaration.parameters is not None:
            full = complete(declaration, attrs, build=True)
            made = declaration.parameters(given, full)
            shared = self._shared(node, name, made)
            if shared is None:
                return self._spoil(node, name)
            for parameter in made:
                wanted = self._widen(parameter.type, self._wide)
                own = f"{name}.{parameter.operand}"
                value = shared.get(parameter.operand, own)
                if value is own:
                    self._declare(own, wanted, parameter.init, span)
                elif types[value] != wanted:
                    message = f"needs '{parameter.operand}' {wanted}"
                    raise OpError(
                        f"{message}, '{value}' is {types[value]}", attr="params"
                    )
                names.append(value)
                given.append(wanted)
        elif "params" in node.entries:
            message = f"op '{name}' ({declaration.kind}) has no parameters"
            self._problems.add(message, node.keys["params"].span)
        held = condense(declaration, attrs)
        results = declaration.infer(given, complete(declaration, held))
        outs = self._outs(node, name, declaration.results[: len(results)])
        if outs is None:
            return self._spoil(node, name)
        values = tuple(map(Value, outs, results))
        for value in values:
            types[value.name] = value.type  # type: ignore[assignment]
        self.ops.append(Op(declaration.kind, tuple(names), values, held, place, span))
        return None

    def _outs(
        self, node: Mapping, name: str, declared: tuple[str, ...]
    ) -> list[str] | None:
        """The names of the results; None when they are not as many as there are."""
        out = node.get("out")
        if out is None:
            if len(declared) == 1:
                return [name]
            return [f"{name}.{result}" for result in declared]
        nodes = self._out_nodes(out)
        if len(nodes) != len(declared):
            has = "1 result" if len(declared) == 1 else f"{len(declared)} results"
            message = f"op '{name}' has {has}, and 'out' names {len(nodes)}"
            self._problems.add(message, out.span)
            return None
        found: list[str] = []
        for item in nodes:
            text = self._names.read(item, "an output")
            if text is None or (
                text != name and not self._names.define(text, item.span)
            ):
                return None
            found.append(text)
        return found

    def _out_nodes(self, out: Node) -> list[Node]:
        return out.items if isinstance(out, Sequence) else [out]

    # Operands

    def _operands(self, node: Mapping, name: str) -> list[tuple[str, Scalar]] | None:
        """The values that `in` names; None when one is wrong or depends on a mistake."""
        section = node.get("in")
        if section is None:
            return []
        items = section.items if isinstance(section, Sequence) else (section,)
        found = []
        good = True
        for item in items:
            if not isinstance(item, Scalar) or not isinstance(item.value, str):
                message = f"'in' must name values, not {shown(item.value)}"
                self._problems.add(message, item.span)
                good = False
            elif self._lookup(item, name) is None:
                good = False
            else:
                found.append((item.value, item))
        return found if good else None

    def _lookup(self, node: Scalar, op: str) -> TensorType | None:
        """The type of a value by name; an input is read at its first use."""
        text = node.text
        try:
            return self._types[text]
        except KeyError:
            pass
        if text in self.inputs:
            type_ = self.inputs[text]
            if text not in self._read and type_ is not None:
                self._read.add(text)
                value = (Value(text, type_),)
                source = self._input_spans[text]
                self.ops.append(Op("read", (), value, {"input": text}, None, source))
            self._types[text] = type_
            return type_
        if text not in self._spoilt and text.partition(".")[0] not in self._spoilt:
            self._unknown(node, f"op '{op}': ")
        return None

    def _unknown(self, node: Scalar, prefix: str = "") -> None:
        """Tell of a name that is not defined here: perhaps it is further down."""
        later = self._lines.get(node.text.partition(".")[0], 0)
        if later > node.start.line + 1:
            message = f"{prefix}{quoted(node.text)} is defined later, on line {later}"
            hint: str | None = "an op stands after those whose results it takes"
        elif node.text in self._lines:
            message = f"{prefix}{quoted(node.text)} is not defined before this op"
            hint = "an op stands after those whose results it takes"
        else:
            message = f"{prefix}unknown value {quoted(node.text)}"
            # Of very many values only the last: the nearest is sought one by one.
            recent = islice(reversed(self._types), 1000)
            hint = did_you_mean(node.text, {*recent, *self.inputs})
        self._problems.add(message, node.inside, hint)

    @cached_property
    def _lines(self) -> dict[str, int]:
        """Every name that any op of the section defines, and its line."""
        lines: dict[str, int] = {}
        for node in _ops(self._root):
            out = node.get("out")
            for item in (node.get("name"), *(self._out_nodes(out) if out else ())):
                if isinstance(item, Scalar):
                    lines.setdefault(item.text, item.start.line + 1)
        return lines

    # Parameters

    def _parameter_op(self, node: Mapping, name: str, span: Span) -> None:
        where = f"op '{name}' (parameter)"
        good = decode(node, ParameterOp, where, self._problems, ("place",))
        if (place := node.keys.get("place")) is not None:
            message = f"{where} has no place of its own"
            hint = "a parameter stands with its optimizer: place that"
            self._problems.add(message, place.span, hint)
        init = good.get("init")
        if init is not None and (problem := inits.check(init.value)):
            self._problems.add(problem, init.span)
            init = None
        if init is None or "shape" not in good or "dtype" not in good:
            return self._spoil(node, name)
        if min(good["shape"], default=1) < 1:
            span = node.entries["shape"].span
            message = f"the dimensions of {where} must be at least 1"
            self._problems.add(message, span)
            return self._spoil(node, name)
        type_ = TensorType(good["dtype"], tuple(good["shape"]))
        self._declare(name, self._widen(type_, self._wide), frozen(init), span)
        return None

    def _declare(self, name: str, type_: TensorType, init: Any, span: Span) -> None:
        """Add a `parameter` op; the first rule and the first group that fit hold."""
        rule = rule_of(name, self._rules)
        if rule is not None and rule.init is not None:
            init = rule.init
        attrs = {"init": init}
        if rule is not None and not rule.trainable:
            attrs["trainable"] = False
        else:
            group = self._group(name)
            if group is None:
                self.untaken.append(name)
            else:
                attrs["group"] = group.attrs["group"]
        self.parameters[name] = span
        self._types[name] = type_
        self.ops.append(Op(PARAMETER, (), (Value(name, type_),), attrs, None, span))

    def _group(self, name: str) -> Group | None:
        for group in self._groups:
            if group.pattern is None or group.pattern.fits(name):
                group.taken = True
                if group.pattern is not None:
                    group.pattern.taken = True
                return group
        return None

    def _shared(
        self, node: Mapping, name: str, made: tuple[LayerParameter, ...]
    ) -> dict[str, str] | None:
        """The parameters that `params` shares, by operand; None when one is wrong."""
        section = node.get("params")
        if section is None:
            return {}
        if not isinstance(section, Mapping):
            message = f"'params' must be a mapping, not {shown(section.value)}"
            self._problems.add(message, section.span, "write {w: h1.w}")
            return None
        operands = [parameter.operand for parameter in made]
        good = section.entries.keys() <= set(operands)
        unknown_keys(section, operands, f"params of op '{name}'", self._problems)
        shared = {}
        for key, item in section:
            if not isinstance(item, Scalar) or not isinstance(item.value, str):
                message = f"'{key}' must name a parameter, not {shown(item.value)}"
                self._problems.add(message, item.span)
                good = False
            elif item.text in self.parameters:
                shared[key] = item.text
            else:
                good = False
                if item.text in self._types or item.text in self.inputs:
                    message = f"op '{name}': '{item.text}' is not a parameter"
                    hint = did_you_mean(item.text, self.parameters)
                    self._problems.add(message, item.inside, hint)
                elif item.text.partition(".")[0] not in self._spoilt:
                    self._unknown(item, f"op '{name}': ")
        return shared if good else None

    # Mistakes

    def _name(self, node: Mapping, name: Node | None) -> str | None:
        if name is None:
            missing(node, "name", "an op", self._problems)
            return None
        text = self._names.read(name, "'name'")
        if text is None or not self._names.define(text, name.span):
            return None
        return text

    def _tell(
        self,
        error: OpError,
        node: Mapping,
        kind: Kind,
        name: str,
        operands: list[tuple[str, Scalar]],
    ) -> None:
        """An op's error, with its caret at the operand or the attribute at fault."""
        at: Node = node.entries["op"]
        if error.operand is not None and error.operand < len(operands):
            at = operands[error.operand][1]
        elif error.operand is not None and "params" in node.entries:
            at = node.entries["params"]
        elif error.attr is not None:
            at = node.entries.get(error.attr, at)
        elif error.operand is None and "in" in node.entries:
            at = node.entries["in"]
        span = at.inside if isinstance(at, Scalar) else at.span
        message = told(error, kind.declaration.kind, name)
        self._problems.add(message, span, error.hint)

    def _spoil(self, node: Mapping, name: str | None) -> None:
        """What an op that is wrong defines is not checked further."""
        if name is None:
            given = node.get("name")
            name = given.text if isinstance(given, Scalar) else None
        out = node.get("out")
        for text in (
            (
                name,
                *(i.text for i in self._out_nodes(out) if isinstance(i, Scalar)),
            )
            if out
            else (name,)
        ):
            if text is not None and text not in self._types:
                self._spoilt.add(text)

    @staticmethod
    def _widen(type_: TensorType, wide: bool) -> TensorType:
        if wide and type_.is_float:
            return replace(type_, dtype="float64")
        return type_

    def scalar(self, node: Scalar, what: str) -> bool:
        """Whether a name is a float scalar; tells what else it is."""
        type_ = self._types.get(node.text)
        if type_ is None:
            if node.text not in self._types and node.text not in self._spoilt:
                hint = did_you_mean(node.text, self._scalars())
                message = f"unknown {what} {quoted(node.text)}"
                self._problems.add(message, node.inside, hint)
            return False
        if type_.shape or not type_.is_float:
            message = f"a {what} must be a float scalar, '{node.text}' is {type_}"
            hint = (
                "reduce it with reduce_mean or reduce_sum" if type_.is_float else None
            )
            self._problems.add(message, node.inside, hint)
            return False
        return True

    def _scalars(self) -> list[str]:
        recent = islice(reversed(self._types.items()), 1000)
        return [n for n, t in recent if t and t.is_float and not t.shape]


def _is_float(kind: Kind, attrs: Types[str, Any]) -> bool:
    default = {a.name: a.default for a in kind.declaration.attrs}
    return attrs.get("dtype", default["dtype"]) in FLOATS


def _ops(root: Node | None) -> Iterator[Mapping]:
    """Every op's mapping, in program order."""
    for node in root.items if isinstance(root, Sequence) else ():
        if isinstance(node, Mapping):
            if "ops" in node.entries and "op" not in node.entries:
                yield from _ops(node.entries["ops"])
            else:
                yield node

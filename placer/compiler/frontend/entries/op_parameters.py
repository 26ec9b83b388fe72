"""Declares the parameters of a graph: of layers, of calls, and of `parameter` ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.entries.op_entry import OpEntry
from placer.compiler.frontend.entries.values import Values
from placer.compiler.frontend.entries.weight_files import WeightFiles
from placer.compiler.frontend.schema import ParameterOp
from placer.compiler.frontend.sections.parameters import (
    Group,
    Rule,
    first_match,
    read_parameter,
)
from placer.compiler.frontend.yaml.decode import report_unknown_keys
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode
from placer.compiler.graph.graph import Op, Value
from placer.errors import OpError, Span, did_you_mean
from placer.ops.declaration import LayerParameter
from placer.place.types import BATCH, TensorType
from placer.plan.settings.mistake import Mistake
from placer.plan.settings.training import initializers

_TIMES = ("int32", "uint32", "uint64", "int64")
_NUMBERS = ("bool", "int32", "int64", "float64", "float32")

MAX_ELEMENTS = 2**40
"""The largest number of elements of a parameter: 4 TiB of float32."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A parameter that an optimizer trains: its entry in `parameters`, if any, the
    entry of its optimizer, and whether it is a sparse table."""

    rule: Rule | None
    group: Group
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one spec.

    The first matching rule of the section `parameters` and the first matching optimizer
    apply to a parameter.

    Attributes:
        spans: The position of each parameter, by name.
        trained: The parameters with an optimizer.
        unassigned: Names of parameters that no optimizer matches.
        states: Names of parameters that hold the state of an op.
        kept_states: The names in `states` that are never updated.
        tables: The sparse tables, with the settings of the ops that created them.
    """

    values: Values
    wide: bool
    is_stream: bool
    problems: Problems
    weights: WeightFiles
    rules: list[Rule] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    spans: dict[str, Span] = field(default_factory=dict)
    trained: list[Trained] = field(default_factory=list)
    unassigned: list[str] = field(default_factory=list)
    states: set[str] = field(default_factory=set)
    kept_states: set[str] = field(default_factory=set)
    tables: dict[str, LayerParameter] = field(default_factory=dict)

    def add_layer(
        self, declared: Sequence[LayerParameter], entry: OpEntry
    ) -> list[str] | None:
        """Declare the parameters of a layer, except shared ones. Returns the names of
        all its parameters, or None if its key `params` is wrong. Raises OpError if a
        shared parameter does not fit."""
        shared = self._shared(declared, entry)
        if shared is None:
            return None
        parameters = []
        for parameter in declared:
            type_ = widen(parameter.type, self.wide)
            operand, other = parameter.operand, shared.get(parameter.operand)
            if other is None:
                parameters.append(self._declare_own(parameter, entry))
                continue
            if parameter.state or other in self.states:
                raise OpError(_shared_state_message(operand, other), attr="params")
            if (actual := self.values.types[other]) != type_:
                message = f"needs '{operand}' {type_}, but '{other}' is {actual}"
                raise OpError(message, attr="params")
            if parameter.sparse is not None:
                _check_settings(parameter, self.tables[other], other)
            parameters.append(other)
        return parameters

    def add_call(
        self,
        declared: Sequence[tuple[str, LayerParameter | ScalarNode]],
        entry: OpEntry,
    ) -> list[str] | None:
        """Declare the parameters and the state of a `call`. An item of `declared` is a
        new parameter, or the scalar that names a shared parameter. Returns all names,
        or None if a shared name is not a parameter."""
        parameters = []
        for key, parameter in declared:
            if isinstance(parameter, LayerParameter):
                parameters.append(self._declare_own(parameter, entry))
            elif parameter.text in self.states:
                message = _shared_state_message(key, parameter.text)
                span = parameter.inner_span
                self.problems.add(f"op '{entry.name}': {message}", span)
            elif self._is_parameter(parameter, entry):
                parameters.append(parameter.text)
        return parameters if len(parameters) == len(declared) else None

    def add_parameter_op(self, entry: OpEntry) -> bool:
        """Declare the parameter of a `parameter` op; return False on errors."""
        node, where = entry.node, entry.where
        read = read_parameter(node, ParameterOp, where, self.problems, ("place",))
        if node.get_non_null("place") is not None:
            message = f"{where} cannot have a place"
            hint = (
                "a parameter is stored at the place of its optimizer: set the place"
                " there"
            )
            self.problems.add(message, node.keys["place"].span, hint)
        if read is None:
            return False
        type_, init = read
        self._declare(entry.name, widen(type_, self.wide), init, entry.span)
        return True

    def _declare_own(self, parameter: LayerParameter, entry: OpEntry) -> str:
        type_ = widen(parameter.type, self.wide)
        name = f"{entry.name}.{parameter.operand}"
        if parameter.sparse is not None:
            if not self.is_stream and _is_swept_by_pass(parameter.sparse):
                raise OpError(
                    "forgets keys at the end of a pass, but data.train is no stream",
                    attr="forget",
                    keys=("every",),
                    hint="write a number of steps, or add 'stream' to data.train",
                )
            self._declare_table(name, type_, parameter, entry.span)
        else:
            self._declare(name, type_, parameter.init, entry.span, parameter.state)
        return name

    def _declare_table(
        self, name: str, type_: TensorType, parameter: LayerParameter, span: Span
    ) -> None:
        rule = first_match(name, self.rules)
        init, what = parameter.init, f"sparse table '{name}'"
        if rule is not None and rule.init is not None:
            init = rule.init
        dim, of_rows = int(type_.shape[1]), {}
        if type_.dtype not in ("float32", "float64"):
            message = f"{what} is {type_.dtype}, but rows must be float32 or float64"
            self.problems.add(message, span)
        elif type_.dtype == "float64" and not self.wide:
            message = f"{what} is float64, but the model is float32"
            hint = "write precision: float64 at the top of the spec, or float32 here"
            self.problems.add(message, span, hint)
        elif mistake := initializers.check_rows(init, parameter.rows):
            self._report_init(what, mistake, rule, span)
        else:
            form, argument = initializers.form_of(init, (parameter.rows or 1, dim))
            of_rows = {form: argument}
        attrs: dict[str, Any] = {"init": of_rows, "sparse": parameter.sparse}
        if parameter.rows is not None:
            attrs["rows"] = parameter.rows
        if inputs := self._inputs_of(name, parameter, span):
            attrs["inputs"] = inputs
        self._assign(name, attrs, rule, span)
        self.tables[name] = parameter
        self.values.add(
            Op("sparse_table", (), (Value(name, type_),), attrs, None, span)
        )

    def _report_init(
        self, what: str, mistake: Mistake, rule: Rule | None, span: Span
    ) -> None:
        """Report an unsuitable initializer, in `parameters` or else at the op."""
        message = f"{what}: {mistake.message}"
        if rule is not None and rule.init is not None:
            self.problems.add_mistake(
                dataclasses.replace(mistake, message=message), rule.node
            )
        else:
            self.problems.add(message, span, mistake.hint)

    def _inputs_of(
        self, name: str, parameter: LayerParameter, span: Span
    ) -> dict[str, tuple[str, str]]:
        """Return the inputs that a sparse table reads in addition to keys, each with
        its type. Reports inputs of a wrong type."""
        found = {}
        for key, wanted in (parameter.inputs or {}).items():
            # Times in seconds need more than 32 bits.
            in_full = (
                self.values.read_in_full if key == "time" else self.values.inputs.get
            )
            type_ = in_full(wanted)
            what = f"sparse table '{name}': '{key}' is '{wanted}'"
            if type_ is None:
                hint = did_you_mean(wanted, self.values.inputs)
                self.problems.add(f"{what}, which is not an input", span, hint)
                continue
            dtypes = _TIMES if key == "time" else _NUMBERS
            if type_.shape not in ((BATCH,), (BATCH, 1)) or type_.dtype not in dtypes:
                kind = "an integer" if key == "time" else "a number"
                message = f"{what}, which is {type_}, not {kind} for each row"
                self.problems.add(message, span, f"declare it {dtypes[-1]}[batch]")
                continue
            found[key] = wanted, str(type_)
        return found

    def _assign(
        self, name: str, attrs: dict[str, Any], rule: Rule | None, span: Span
    ) -> None:
        if rule is not None and not rule.trainable:
            attrs["trainable"] = False
        elif (group := first_match(name, self.groups)) is not None:
            attrs["group"] = group.attrs["group"]
            self.trained.append(Trained(rule, group, "sparse" in attrs))
            if rule is not None and not rule.decay:
                attrs["decay"] = False
        else:
            self.unassigned.append(name)
        self.spans[name] = span

    def _declare(
        self, name: str, type_: TensorType, init: Any, span: Span, state: bool = False
    ) -> None:
        rule = first_match(name, self.rules)
        if rule is not None and rule.init is not None:
            init = rule.init
        what = f"parameter '{name}'"
        if type_.dtype in ("float64", "int64", "uint64") and not self.wide:
            message = f"{what} is {type_.dtype}, but the model is float32"
            narrow = type_.dtype.replace("64", "32")
            hint = f"write precision: float64 at the top of the spec, or {narrow} here"
            self.problems.add(message, span, hint)
        if type_.numel() > MAX_ELEMENTS:
            message = f"{what}: {type_} has more than {MAX_ELEMENTS} elements"
            self.problems.add(message, span)
        else:
            mistake = initializers.check_shape(init, type_.sizes(1))
            mistake = mistake or initializers.check_dtype(init, type_.dtype)
            if mistake := mistake or self.weights.check(init, name, type_):
                self._report_init(what, mistake, rule, span)
        attrs: dict[str, Any] = {"init": init}
        if state and rule is not None and not rule.trainable:
            attrs["trainable"] = False
            self.kept_states.add(name)
        elif state:
            attrs["state"] = True
        if state:
            self.states.add(name)
            self.spans[name] = span
        else:
            self._assign(name, attrs, rule, span)
        result = (Value(name, type_),)
        self.values.add(Op("parameter", (), result, attrs, None, span))

    def _shared(
        self, declared: Sequence[LayerParameter], entry: OpEntry
    ) -> dict[str, str] | None:
        written = entry.node.get_non_null("params")
        expected, hint = "'params' must be a mapping", "write {w: h1.w}"
        section = self.problems.expect(written, MappingNode, expected, hint)
        if section is None:
            return None if written else {}
        operands = {parameter.operand for parameter in declared}
        where = f"params of op '{entry.name}'"
        report_unknown_keys(section, operands, where, self.problems)
        shared = {}
        for key, item in section:
            expected = f"'{key}' must name a parameter"
            other = self.problems.expect(item, ScalarNode, expected)
            if other is not None and self._is_parameter(other, entry):
                shared[key] = other.text
        return shared if shared.keys() == section.entries.keys() <= operands else None

    def _is_parameter(self, item: ScalarNode, entry: OpEntry) -> bool:
        if item.text in self.spans:
            return True
        if item.text in self.values.types or item.text in self.values.inputs:
            message = f"op '{entry.name}': {quote(item.text)} is not a parameter"
            hint = did_you_mean(item.text, self.spans)
            self.problems.add(message, item.inner_span, hint)
        elif not self.values.is_invalid(item.text):
            self.values.report_unknown(item, entry.name)
        return False


def _check_settings(
    parameter: LayerParameter, created: LayerParameter, other: str
) -> None:
    """Raise OpError if an op shares a sparse table, but has different settings for
    it.
    """
    if (
        (parameter.sparse and parameter.sparse != created.sparse)
        or (parameter.inputs and parameter.inputs != created.inputs)
        or parameter.rows not in (None, created.rows)
    ):
        raise OpError(
            f"has different settings for the sparse table '{other}' than the op that"
            " creates it",
            attr="params",
            hint="leave the settings out here",
        )


def _is_swept_by_pass(table: Mapping[str, Any]) -> bool:
    """Whether the settings of a sparse table have `forget: {every: pass}`."""
    return bool(table.get("forget", {}).get("every") == "pass")


def _shared_state_message(operand: str, other: str) -> str:
    return (
        f"'{operand}' cannot be '{other}': ops cannot share state, because each step"
        " changes it"
    )


def graph_type(type_: TensorType, wide: bool) -> TensorType:
    """Return the type of an input in the graph. With `wide` (the precision is float64)
    it is unchanged. Otherwise JAX runs without x64 and has no 64-bit integers: the
    reader checks their range and converts them to 32 bits."""
    if not wide and type_.dtype in ("int64", "uint64"):
        return replace(type_, dtype=type_.dtype.replace("64", "32"))
    return widen(type_, wide)


def widen(type_: TensorType, wide: bool) -> TensorType:
    """Return the type. If `wide`, float64 replaces its float dtype."""
    return replace(type_, dtype="float64") if wide and type_.is_float else type_

"""The parameters of the graph: those of layers, shared ones, those declared alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from placer.config import initializers
from placer.config.checks import shown
from placer.errors import OpError, Span, did_you_mean
from placer.graph.graph import Op, Value
from placer.ops.declaration import LayerParameter
from placer.spec.decode import decode, unknown_keys
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.schema import ParameterOp
from placer.spec.sections.parameters import Rule, frozen, rule_of
from placer.spec.sections.train import Group
from placer.spec.tree import Mapping, Scalar
from placer.spec.values import Values
from placer.spec.weight_files import Weights
from placer.types import TensorType

MOST = 2**40
"""The most elements of a parameter: 4 TiB of float32."""


class Parameters:
    """Declares parameters: the first rule and the first group that fit one hold."""

    def __init__(
        self,
        values: Values,
        rules: list[Rule],
        groups: list[Group],
        wide: bool,
        problems: Problems,
        weights: Weights,
    ) -> None:
        self.spans: dict[str, Span] = {}
        self._states: set[str] = set()
        self.untaken: list[str] = []
        self._values = values
        self._rules = rules
        self._groups = groups
        self._wide = wide
        self._problems = problems
        self._weights = weights

    def of_layer(
        self, made: tuple[LayerParameter, ...], node: Mapping, name: str, span: Span
    ) -> list[tuple[str, TensorType]] | None:
        """Names and types of a layer's parameters, shared or declared here.

        None when `params` is wrong; OpError when what it shares does not fit.
        """
        shared = self._shared(made, node, name)
        if shared is None:
            return None
        found = []
        for parameter in made:
            type_ = widened(parameter.type, self._wide)
            own = f"{name}.{parameter.operand}"
            other = shared.get(parameter.operand)
            if other is None:
                self._declare(own, type_, parameter.init, span, parameter.state)
            elif parameter.state or other in self._states:
                raise OpError(_own_state(parameter.operand, other), attr="params")
            elif (given := self._values.types[other]) != type_:
                raise OpError(
                    f"needs '{parameter.operand}' {type_}, '{other}' is {given}",
                    attr="params",
                )
            found.append((other or own, type_))
        return found

    def of_call(
        self,
        made: Sequence[tuple[str, LayerParameter | Scalar]],
        name: str,
        span: Span,
    ) -> list[tuple[str, TensorType]] | None:
        """Names and types of what a `call` has of its own or shares; None when a name
        that it shares is no parameter."""
        found = []
        for key, parameter in made:
            if isinstance(parameter, LayerParameter):
                type_ = widened(parameter.type, self._wide)
                own = f"{name}.{key}"
                self._declare(own, type_, parameter.init, span, parameter.state)
                found.append((own, type_))
            elif parameter.text in self._states:
                message = f"op '{name}': {_own_state(key, parameter.text)}"
                self._problems.add(message, parameter.inside)
            elif parameter.text in self.spans:
                shared = self._values.types[parameter.text]
                assert shared is not None
                found.append((parameter.text, shared))
            else:
                self._not_parameter(parameter, name)
        return found if len(found) == len(made) else None

    def of_op(self, node: Mapping, name: str, span: Span) -> bool:
        """Declare what an op of kind `parameter` says; False when it is wrong."""
        where = f"op '{name}' (parameter)"
        good = decode(node, ParameterOp, where, self._problems, ("place",))
        if node.given("place") is not None:
            message = f"{where} has no place of its own"
            hint = "a parameter stands with its optimizer: place that"
            self._problems.add(message, node.keys["place"].span, hint)
        init = good.get("init")
        if init is not None and (problem := initializers.check(init.value)):
            self._problems.add(problem, init.span)
            init = None
        if init is None or "shape" not in good or "dtype" not in good:
            return False
        type_ = TensorType(good["dtype"], tuple(good["shape"]))
        init = initializers.canonical(frozen(init))
        self._declare(name, widened(type_, self._wide), init, span)
        return True

    def _declare(
        self, name: str, type_: TensorType, init: Any, span: Span, state: bool = False
    ) -> None:
        rule, blamed = rule_of(name, self._rules), span
        if rule is not None and rule.init is not None:
            init, blamed = rule.init, rule.pattern.node.span
        if type_.dtype == "float64" and not self._wide:
            message = f"parameter '{name}' is float64 in a float32 model"
            hint = "write precision: float64 at the top of the spec, or float32 here"
            self._problems.add(message, span, hint)
        if type_.numel() > MOST:
            message = f"parameter '{name}': {type_} has more than {MOST} elements"
            self._problems.add(message, span)
        elif problem := initializers.check_shape(init, type_.sizes(1)):
            self._problems.add(f"parameter '{name}': {problem}", blamed)
        elif (misfit := self._weights.problem(init, name, type_)) is not None:
            self._problems.add(f"parameter '{name}': {misfit[0]}", blamed, misfit[1])
        attrs = {"init": init}
        if state:
            attrs["state"] = True
            self._states.add(name)
        elif rule is not None and not rule.trainable:
            attrs["trainable"] = False
        elif (group := self._group(name)) is not None:
            attrs["group"] = group.attrs["group"]
            if rule is not None and not rule.decay:
                attrs["decay"] = False
        else:
            self.untaken.append(name)
        self.spans[name] = span
        result = (Value(name, type_),)
        self._values.add(Op("parameter", (), result, attrs, None, span))

    def _group(self, name: str) -> Group | None:
        for group in self._groups:
            if group.pattern is None or group.pattern.fits(name):
                group.taken = True
                if group.pattern is not None:
                    group.pattern.taken = True
                return group
        return None

    def _shared(
        self, made: tuple[LayerParameter, ...], node: Mapping, name: str
    ) -> dict[str, str] | None:
        """The parameters that `params` names, by operand; None when one is wrong."""
        section = node.given("params")
        if section is None:
            return {}
        if not isinstance(section, Mapping):
            message = f"'params' must be a mapping, not {shown(section.value)}"
            self._problems.add(message, section.span, "write {w: h1.w}")
            return None
        operands = [parameter.operand for parameter in made]
        unknown_keys(section, operands, f"params of op '{name}'", self._problems)
        shared = {}
        for key, item in section:
            if not isinstance(item, Scalar) or not isinstance(item.value, str):
                message = f"'{key}' must name a parameter, not {shown(item.value)}"
                self._problems.add(message, item.span)
            elif item.text in self.spans:
                shared[key] = item.text
            else:
                self._not_parameter(item, name)
        return (
            shared if shared.keys() == section.entries.keys() <= set(operands) else None
        )

    def _not_parameter(self, item: Scalar, op: str) -> None:
        if item.text in self._values.types or item.text in self._values.inputs:
            message = f"op '{op}': {quoted(item.text)} is not a parameter"
            hint = did_you_mean(item.text, self.spans)
            self._problems.add(message, item.inside, hint)
        elif not self._values.is_spoilt(item.text):
            self._values.unknown(item, op)


def _own_state(operand: str, other: str) -> str:
    return (
        f"'{operand}' cannot be '{other}': a state is of one op, which changes it in"
        " each step"
    )


def held(type_: TensorType, wide: bool) -> TensorType:
    """The type that an input has in the graph. Without x64, XLA has no int64: the
    reader checks the range and gives int32."""
    if not wide and type_.dtype in ("int64", "uint64"):
        return replace(type_, dtype=type_.dtype.replace("64", "32"))
    return widened(type_, wide)


def widened(type_: TensorType, wide: bool) -> TensorType:
    """The type, with float64 for any float where the precision is that."""
    return replace(type_, dtype="float64") if wide and type_.is_float else type_

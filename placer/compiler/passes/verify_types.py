"""Verifies names and types: results must have the types that declarations infer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placer import ops
from placer.compiler.graph.declared import (
    check_attributes,
    declared,
    declared_attrs,
)
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.layout_rules import LayoutSignature
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.graph.structural_types import check_equal_types
from placer.errors import GraphError, OpError
from placer.ops.attributes import complete
from placer.place.types import ResidualType, TensorType, ValueType


@dataclass(slots=True)
class VerifierCache:
    """Results of earlier checks, so that each combination is checked only once.

    Equal types, and equal attributes, share a number, which makes keys small and fast to
    hash.

    Attributes:
        type_numbers: the number of each type, from 1.
        number_by_id: the number of each type by the object's id, for speed.
        numbered: the types in `number_by_id`, referenced so that ids stay valid.
        valid: the checked combinations of op kind, attributes and types.
        attrs_by_id: the number and the object of attributes by id.
        attrs_numbers: the number of each set of attributes.
        signatures: the layout signatures of ops.
        graph: the last verified graph.
        form: the form of this graph.
    """

    type_numbers: dict[ValueType, int] = field(default_factory=dict)
    number_by_id: dict[int, int] = field(default_factory=dict)
    numbered: list[ValueType] = field(default_factory=list)
    valid: set[tuple[object, ...]] = field(default_factory=set)
    attrs_by_id: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    attrs_numbers: dict[object, int] = field(default_factory=dict)
    signatures: dict[tuple[object, ...], LayoutSignature] = field(default_factory=dict)
    graph: Graph | None = None
    form: int = -1

    def attrs_number(self, attrs: Mapping[str, Any]) -> int:
        """Return the number of the attributes that types depend on."""
        entry = self.attrs_by_id.get(id(attrs))
        if entry is None:
            key = _attrs_key(attrs)
            number = self.attrs_numbers.setdefault(key, len(self.attrs_numbers))
            entry = self.attrs_by_id[id(attrs)] = number, attrs
        return entry[0]

    def type_number(self, value_type: ValueType) -> int:
        """Return the number of a type."""
        number = self.number_by_id.get(id(value_type))
        if number is None:
            new_number = len(self.type_numbers) + 1
            number = self.type_numbers.setdefault(value_type, new_number)
            self.number_by_id[id(value_type)] = number
            self.numbered.append(value_type)
        return number


def check_names(graph: Graph) -> None:
    """Check that each name is defined once, before its use.

    Raises GraphError with the text of the op at the first violation.
    """
    defined: set[str] = set()
    for op in graph.ops:
        if not defined.issuperset(op.operands):
            name = next(name for name in op.operands if name not in defined)
            raise verification_error(op, f"'{name}' is used before it is defined")
        for value in op.results:
            if value.name in defined:
                raise verification_error(op, f"'{value.name}' is defined twice")
            defined.add(value.name)


def check_types(graph: Graph, ops: Iterable[Op], cache: VerifierCache) -> None:
    """Check the attributes of ops against declarations, and result types by inference.

    Raises GraphError with the text of the op at the first violation.
    """
    values, valid = graph.values, cache.valid
    number, known_numbers = cache.type_number, cache.number_by_id
    for op in ops:
        attrs = cache.attrs_number(op.attrs)
        if (op.kind, attrs) not in valid:
            _check_attributes(op)
            valid.add((op.kind, attrs))
        if not op.is_computed and op.structure.infer is None:
            continue
        types = [values[name].type for name in op.operands]
        types += [value.type for value in op.results]
        of_forward: tuple[object, ...] = ()
        if op.is_gradient and op.operands:
            # The types of a gradient op also depend on its forward op.
            forward = graph.producers[op.operands[0]]
            of_forward = forward.kind, cache.attrs_number(forward.attrs)
            types += [values[name].type for name in forward.operands]
            types += [value.type for value in forward.results]
        numbers = [known_numbers.get(id(each)) or number(each) for each in types]
        key = (op.kind, attrs, len(op.operands), len(op.results), of_forward, *numbers)
        if key not in valid:
            _check_op(graph, op)
            valid.add(key)


def _check_attributes(op: Op) -> None:
    try:
        check_attributes(op)
    except OpError as error:
        raise verification_error(op, error.message, error.hint) from error


def _check_op(graph: Graph, op: Op) -> None:
    operand_types = [graph.values[name].type for name in op.operands]
    expected = _result_types(graph, op, operand_types)
    if len(expected) != len(op.results):
        raise verification_error(op, f"{op.kind} has {len(expected)} results")
    for value, expected_type in zip(op.results, expected, strict=True):
        if value.type != expected_type:
            raise verification_error(
                op,
                f"'{value.name}' is {value.type}, but {op.kind} gives {expected_type}",
            )


def verification_error(op: Op, message: str, hint: str | None = None) -> GraphError:
    """Return the error about an op, with the op's text."""
    from placer.compiler.graph.text import print_op

    return GraphError(f"{message}:\n    {print_op(op)}", span=op.source, hint=hint)


def _attrs_key(attrs: Mapping[str, Any]) -> object:
    """Return a hashable key of the attributes that types depend on."""
    if not attrs or (len(attrs) == 1 and "segment" in attrs):
        return ()
    return tuple([(k, _hashable(v)) for k, v in attrs.items() if k != "segment"])


def _hashable(value: object) -> object:
    """Return a value, or its text if it is not hashable."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _result_types(
    graph: Graph, op: Op, operand_types: list[ValueType]
) -> list[ValueType]:
    """Return the types that the results of an op must have."""
    # GraphError is raised if the op does not accept its operands.
    if op.is_gradient:
        return _gradient_types(graph, op, operand_types)
    structure = op.structure
    tensors = [_require_tensor(op, i, each) for i, each in enumerate(operand_types)]
    try:
        if not op.is_computed:
            assert structure.infer is not None
            return list(structure.infer(op, tensors))
        if is_conversion(op.kind):
            check_equal_types(op, tensors, 1)
            return [*tensors]
        return _declared_types(op, tensors)
    except OpError as error:
        raise verification_error(op, error.message) from error


def _require_tensor(op: Op, index: int, value_type: ValueType) -> TensorType:
    if isinstance(value_type, ResidualType):
        raise verification_error(
            op, f"'{op.operands[index]}' is a residual, not a tensor"
        )
    return value_type


def _declared_types(op: Op, tensors: list[TensorType]) -> list[ValueType]:
    """Return the result types of a computed op by its declaration."""
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op))
    expected: list[ValueType] = [*declaration.infer(tensors, attrs)]
    if len(op.results) == len(expected) + 1:
        expected.append(ResidualType(tuple(declaration.residuals(tensors, attrs))))
    return expected


def _gradient_types(
    graph: Graph, op: Op, operand_types: list[ValueType]
) -> list[ValueType]:
    """Return the result types of a gradient op."""
    # A gradient op returns the types of the forward operands in `wrt`. Its operands are
    # the residual, the saved forward operands, and the cotangents of the forward results.
    if not operand_types or not isinstance(operand_types[0], ResidualType):
        raise verification_error(
            op, f"the first operand of {op.kind} must be a residual"
        )
    forward = graph.producers[op.operands[0]]
    if forward.kind != op.forward_kind:
        raise verification_error(
            op, f"'{op.operands[0]}' is a residual of {forward.kind}, not of this op"
        )
    declaration, forward_types, attrs = declared(graph, forward)
    saved = declaration.saves(forward_types, attrs)
    expected = [forward_types[i] for i in saved]
    tensors = [v.type for v in forward.results if isinstance(v.type, TensorType)]
    cotangents = op.attrs.get("cotangents", range(len(tensors)))
    wrt = op.attrs.get("wrt", ())
    for numbers, values in ((cotangents, tensors), (wrt, forward_types)):
        if wrong := {*numbers} - {*range(len(values))}:
            what = f"{forward.kind} has no operand or result {min(wrong)}"
            raise verification_error(op, what)
    expected += [tensors[i] for i in cotangents]
    if len(operand_types) != len(expected) + 1:
        raise verification_error(op, f"{op.kind} needs {len(expected) + 1} operands")
    for name, have, need in zip(
        op.operands[1:], operand_types[1:], expected, strict=True
    ):
        if have != need:
            raise verification_error(
                op, f"'{name}' is {have}, but {op.kind} needs {need}"
            )
    return [forward_types[i] for i in wrt]

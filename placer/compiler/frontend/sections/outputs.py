"""The outputs of a prediction: `predict.outputs` of a spec, or outputs of the
caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.graph.graph import Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import OUTPUT
from placer.errors import Span, SpecError, did_you_mean
from placer.place.types import BATCH, TensorType, ValueType


def output_ops(
    outputs: Iterable[Op], types: Mapping[str, ValueType | None], problems: Problems
) -> Iterator[Op]:
    """Yield the valid `output` ops, and report the others. `types` has the types of the
    values of the graph; None for a value with an error."""
    listed: set[str] = set()
    for op in outputs:
        name = op.attrs["output"]
        if name in listed:
            problems.add(f"the output '{name}' is listed twice", op.source)
        elif name not in types:
            with_rows = [n for n, each in types.items() if _has_rows(each)]
            hint = did_you_mean(name, with_rows)
            problems.add(f"unknown output {quote(name)}", op.source, hint)
        elif (type_ := types[name]) is None:
            continue
        elif not _has_rows(type_):
            message = (
                "an output of predict needs batch as its first dimension only, but"
                f" '{name}' is {type_}"
            )
            hint = "choose a value of fixed shape per row, such as float32[batch, 10]"
            problems.add(message, op.source, hint)
        else:
            yield op
        listed.add(name)


def output_op(name: str, source: Span | None = None) -> Op:
    """Return the op that outputs the value of this name."""
    return Op(OUTPUT, (name,), (), {"output": name}, None, source)


def with_outputs(model: Model, names: Sequence[str]) -> Model:
    """Return a copy of the model with other prediction outputs. Raises SpecError or
    SpecErrors for a name that cannot be an output."""
    if not names:
        raise SpecError("a prediction needs at least one output")
    types = {name: value.type for name, value in model.graph.values.items()}
    problems = Problems()
    outputs = [*output_ops(map(output_op, names), types, problems)]
    problems.raise_any()
    ops = [op for op in model.graph.ops if op.kind != OUTPUT]
    return replace(model, graph=model.graph.with_ops([*ops, *outputs]))


def _has_rows(type_: ValueType | None) -> bool:
    """Return True if values of the type have rows of one fixed shape."""
    return (
        isinstance(type_, TensorType)
        and type_.has_rows
        and BATCH not in type_.shape[1:]
    )

"""Specs that are refused, each for a key or an attribute that has no effect."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from placer.compiler.frontend import load_text
from placer.compiler.passes.gradients.differentiate import differentiate
from placer.errors import GraphError, SpecError
from support.small_models import two_layers

CSV = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]", y: "int32[batch]"}
data:
  train:
    source: csv:rows.csv
    batch: 4
    columns: {x: [a, b], y: label}
    KEYS
graph:
  - {name: z, op: fc, in: x, size: 2}
  - {name: loss, op: softmax_cross_entropy, in: [z, y]}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""
WORDS = "vocabulary: {label: [no, yes]}"


@dataclass(frozen=True)
class Refused:
    """A spec that is refused; `says` is a part of the error."""

    text: str
    says: str


Entry = Refused | tuple[Refused, ...] | str


def rows(keys: str, says: str) -> Refused:
    """Keys of a csv: source."""
    return Refused(CSV.replace("KEYS", keys), says)


def of_other_kinds(refused: Refused) -> list[Refused]:
    """The same options of other sources; none with a header, which only CSV files have."""
    if "header:" in refused.text:
        return []
    at, options = "csv:rows.csv", "    csv: {"
    assert at in refused.text
    assert options in refused.text
    return [
        Refused(
            refused.text.replace(at, source).replace(options, f"    {kind}: {{"),
            refused.says,
        )
        for kind, source in (
            ("parquet", "parquet:rows.parquet"),
            ("python", "python:made:rows"),
        )
    ]


def npz(key: str, says: str) -> Refused:
    """A key of a source of arrays."""
    return Refused(two_layers().replace("batch: 8}", f"batch: 8, {key}}}"), says)


def train(key: str, says: str) -> Refused:
    return Refused(two_layers(train=f"  {key}"), says)


def optimizer(keys: str, says: str) -> Refused:
    return Refused(
        two_layers(optimizer=f"{{op: sgd, learning_rate: 0.1, {keys}}}"), says
    )


def optax(keys: str, says: str) -> Refused:
    return Refused(
        two_layers(optimizer=f"{{op: optax, fn: 'made:rows', {keys}}}"), says
    )


def servers(keys: str, says: str) -> Refused:
    return optimizer(f"place: /node:ps/cpu, {keys}", says)


def parameters(rules: str, says: str) -> Refused:
    return Refused(two_layers(extra=f"parameters: [{rules}]"), says)


def op(keys: str, says: str) -> Refused:
    """An op of the hidden layer."""
    entry = f"  - {{name: p, in: h, {keys}}}\n  - {{name: out"
    return Refused(two_layers().replace("  - {name: out", entry), says)


def scope(keys: str, says: str) -> Refused:
    """A scope; `*` is an op with a gradient."""
    hidden = "{name: h, op: fc, in: x, size: 16, activation: tanh}"
    text = two_layers(first=None, second=None)
    if "*" in keys:
        return Refused(text.replace(hidden, f"{{{keys.replace('*', hidden)}}}"), says)
    return Refused(
        text.replace("  - {name: out", f"  - {{{keys}}}\n  - {{name: out"), says
    )


def keyed(keys: str, says: str) -> Refused:
    """Keys of a sparse table."""
    return embedding(f"sparse: true, dim: 4, {keys}", says)


def embedding(keys: str, says: str) -> Refused:
    refused = op(f"op: embedding, {keys}", says)
    text = refused.text.replace("inputs:\n", "inputs:\n  ids: int32[batch, 3]\n")
    return Refused(text.replace("p, in: h", "p, in: ids"), says)


def table(keys: str, says: str, train: str = "") -> Refused:
    """Keys of the optimizer of a model whose only parameter is a sparse table."""
    text = f"""\
nodes: {{worker: {{count: 2}}, ps: {{count: 1}}}}
inputs: {{ids: "int64[batch]", label: "int32[batch]"}}
data: {{train: {{source: "npz:rows.npz", batch: 8}}}}
graph:
  - {{name: e, op: embedding, in: ids, dim: 4, sparse: true}}
  - {{name: loss, op: softmax_cross_entropy, in: [e, label]}}
train:
  minimize: loss
  optimizer: {{op: sgd, learning_rate: 0.1, place: /node:ps, {keys}}}
  {train}
"""
    return Refused(text, says)


def op_of(inputs: str, keys: str, says: str) -> Refused:
    """An op of inputs of its own."""
    text = two_layers().replace("inputs:\n", f"inputs:\n  {inputs}\n")
    entry = f"  - {{name: p, {keys}}}\n  - {{name: out"
    return Refused(text.replace("  - {name: out", entry), says)


def params_of(table: Mapping[str, Mapping[str, Entry]]) -> Iterator[Any]:
    """Yield the specs of a table as parameters of a test."""
    for name, entries in table.items():
        for key, entry in entries.items():
            each = (entry,) if isinstance(entry, Refused) else entry
            for number, refused in enumerate(() if isinstance(each, str) else each):
                yield pytest.param(refused, id=f"{name}.{key} {number}")


def check_refused(refused: Refused, folder: Path) -> None:
    """Check that a spec is refused, at a position in it."""
    (folder / "made.py").write_text("def rows(): ...\n")
    with pytest.raises((SpecError, GraphError)) as caught:
        differentiate(load_text(refused.text, "model.yaml", folder).graph)
    assert refused.says in str(caught.value)
    assert "model.yaml:" in str(caught.value)

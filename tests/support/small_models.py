"""Small specs for tests of the compiler."""

from pathlib import Path

from placer.compiler.frontend import load_text
from placer.compiler.frontend.single_process import to_single_process
from placer.compiler.graph.model import Model
from placer.compiler.graph.optax_groups import optax_optimizers
from placer.system.resources import find_file

SPECS = find_file("specs")
WORKERS = "/node:worker/cpu"


def load_model(
    text: str, folder: Path = SPECS, *, single_process: bool = False, **options: object
) -> Model:
    """Load the text of a spec as if it were a file in `folder`."""
    model = load_text(text, "model.yaml", folder, **options)
    return to_single_process(model) if single_process else model


def with_optax(model: Model) -> Model:
    """Return a model with the facts of its optax optimizers, which the passes need."""
    if not optax_optimizers(model.graph):
        return model
    from placer.compiler.tracing.optimizers import describe_optimizers

    return describe_optimizers(model)


def two_layers(
    *,
    nodes: str = "{worker: {count: 2}, ps: {count: 2}}",
    first: str | None = WORKERS,
    second: str | None = WORKERS,
    optimizer: str = "{op: sgd, learning_rate: 0.1}",
    width: int = 16,
    batch: int = 8,
    extra: str = "",
    train: str = "",
    precision: str = "float32",
) -> str:
    """Return a spec: x -> fc -> fc -> mean squared error, each layer at its own
    place."""

    def place_key(place: str | None) -> str:
        return f", place: '{place}'" if place else ""

    return f"""\
name: small
precision: {precision}
nodes: {nodes}
inputs:
  x: {precision}[batch, {width}]
  y: {precision}[batch, 4]
data:
  train: {{source: "npz:rows.npz", batch: {batch}}}
graph:
  - {{name: h, op: fc, in: x, size: {width}, activation: tanh{place_key(first)}}}
  - {{name: out, op: fc, in: h, size: 4{place_key(second)}}}
  - {{name: loss, op: mean_squared_error, in: [out, y]}}
{extra}
train:
  minimize: loss
  epochs: 1
  metrics: [loss]
{train}
  optimizer: {optimizer}
"""

"""The arguments of a `trace` in YAML: mistakes in the configuration of a model."""

from pathlib import Path

import pytest

from placer.compiler.frontend import load_text
from placer.errors import SpecError

SPEC = """
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 4]"}
data: {train: {source: "npz:t.npz", batch: 8}}
graph:
  - name: y
    op: trace
    fn: "blocks:apply"
    args: [{make: MADE}, {in: x}]
    in: x
    regions: [{in: x, out: [y: "float32[batch, 4]"]}]
  - {name: loss, op: reduce_mean, in: y}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            "{fn: model, layers: {value: 6}}",
            "'make' must name an object in the module of fn, or have 'fn' and 'with'",
        ),
        ("{fn: model}", "'make' must name an object in the module of fn, or have 'fn'"),
        ("{fn: model, state: 3}", "'state' must list paths, not 3"),
        ("{fn: model, with: {}, state: []}", "'state' must list paths, not"),
        ("{fn: 3, with: {}}", "'fn' must name a function in the module of fn, not 3"),
        (
            "{fn: model, with: {a: {value: 6}, b: {list: [{in: x}]}}}",
            "'b' must be plain data",
        ),
        ("{fn: model, with: {a: 6}}", "an argument must be one of in, param, make"),
    ],
)
def test_a_mistake_in_a_configuration_is_reported_at_its_line(
    made: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "blocks.py").touch()
    with pytest.raises(SpecError) as caught:
        load_text(SPEC.replace("MADE", made), "model.yaml", tmp_path)
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None
    assert caught.value.span.line == 9

"""A program as YAML: it is formatted as by hand, and compiles to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.builds import build_files, check_same_builds, graph_lines, program

import placer
from placer import (
    Program,
    append_backward,
    device_guard,
    layers,
    optimizer,
    place_guard,
    remat,
)
from placer.compiler.frontend.python.read import run_builder
from placer.compiler.frontend.python.yaml_text import to_yaml
from placer.errors import SpecError
from placer.place.guard import OpCall
from placer.system.resources import find_file


def digits(x: str = "image") -> tuple[placer.Variable, placer.Variable]:
    image = layers.data(x, "float32[batch, 64]")
    return image, layers.data("label", "int32[batch]")


def finish(h: placer.Variable, label: placer.Variable) -> None:
    loss = layers.softmax_cross_entropy(layers.fc(h, 10), label, name="loss")
    optimizer.SGD(0.1).minimize(loss)


def nested_guards() -> Program:
    with program(emulate=True) as new_program, place_guard("/node:worker"):
        image, label = digits()
        with place_guard("/cpu"):
            h = layers.relu(layers.fc(image, 32))
        with place_guard("/gpu:0-1"):
            h = layers.fc(h, 16)
            with place_guard("/node:worker:1"):
                h = layers.tanh(h)
            h = layers.fc(h, 16)
        finish(h, label)
    return new_program


ROWS_OF_96 = {"train": {"source": "sklearn:digits", "batch": 96}}
NESTED = """\
  - place: /node:worker
    ops:
      - place: /cpu
        ops:
          - {name: fc_0, op: fc, in: image, size: 32}
          - {name: relu_0, op: relu, in: fc_0}
      - place: /gpu:0-1
        ops:
          - {name: fc_1, op: fc, in: relu_0, size: 16}
          - {name: tanh_0, op: tanh, in: fc_1, place: /node:worker:1}
          - {name: fc_2, op: fc, in: tanh_0, size: 16}
      - {name: fc_3, op: fc, in: fc_2, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [fc_3, label]}"""


def cleared_guards() -> Program:
    with program(emulate=True) as new_program, place_guard("/node:worker:1/gpu:2"):
        image, label = digits()
        h = layers.fc(image, 16)
        with place_guard(None):
            h = layers.tanh(h)
            with place_guard("/node:worker:0,1"):
                h = layers.relu(h)
        with device_guard(None):
            h = layers.sigmoid(h)
        with place_guard("/node:ps"), place_guard("/node:worker/cpu"):
            finish(h, label)
    return new_program


CLEARED = """\
  - {name: fc_0, op: fc, in: image, size: 16, place: /node:worker:1/gpu:2}
  - {name: tanh_0, op: tanh, in: fc_0}
  - {name: relu_0, op: relu, in: tanh_0, place: /node:worker:0-1}
  - {name: sigmoid_0, op: sigmoid, in: relu_0, place: /node:worker:1}
  - place: /node:worker/cpu
    ops:
      - {name: fc_1, op: fc, in: sigmoid_0, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [fc_1, label]}"""


def placed_by_a_function() -> Program:
    def by_kind(op: OpCall) -> str | None:
        return "/node:ps:0" if op.kind == "fc" and op.attrs["size"] > 10 else None

    with (
        program() as new_program,
        place_guard("/node:worker/cpu"),
        place_guard(by_kind),
    ):
        image, label = digits()
        finish(layers.fc(layers.relu(image), 32), label)
    return new_program


BY_FUNCTION = """\
  - place: /node:worker/cpu
    ops:
      - {name: relu_0, op: relu, in: image}
      - {name: fc_0, op: fc, in: relu_0, size: 32, place: /node:ps:0}
      - {name: fc_1, op: fc, in: fc_0, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [fc_1, label]}"""


def computed_again() -> Program:
    with program() as new_program, place_guard("/node:worker/cpu"):
        image, h_label = digits()
        with remat():
            h = layers.tanh(layers.fc(image, 32))
            with remat():
                h = layers.fc(h, 32)
        with remat():
            with place_guard("/node:worker:0"):
                h = layers.fc(h, 16)
            h = layers.fc(h, 16)
        finish(h, h_label)
    return new_program


AGAIN = """\
  - place: /node:worker/cpu
    remat: true
    ops:
      - {name: fc_0, op: fc, in: image, size: 32}
      - {name: tanh_0, op: tanh, in: fc_0}
      - {name: fc_1, op: fc, in: tanh_0, size: 32}
  - place: /node:worker/cpu
    remat: true
    ops:
      - {name: fc_2, op: fc, in: fc_1, size: 16, place: /node:worker:0}
      - {name: fc_3, op: fc, in: fc_2, size: 16}
  - place: /node:worker/cpu
    ops:
      - {name: fc_4, op: fc, in: fc_3, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [fc_4, label]}"""


def every_section() -> Program:
    with program(
        name="all_of_it",
        precision="float64",
        seed=7,
        data={
            "train": {
                "source": "csv:clicks of monday.csv",
                "batch": 64,
                "columns": {"x": ["a", "b, c", "é\u2028"], "label": "on"},
                "csv": {
                    "delimiter": "\t",
                    "comment": "#",
                    "vocabulary": {"on": {"no": 0, "yes": 1, "1e3": 2, "": 3}},
                    "missing": {"a": -1.5e-7, "*": 1e20},
                },
            },
        },
        parameters=[
            {"match": "*.b", "init": {"constant": 1e-5}, "decay": False},
            {"match": "h?.w", "init": {"truncated_normal": {"mean": 0, "std": 0.5}}},
        ],
        epochs=2,
        clip={"global_norm": 1.0},
        slicing={"dispatch": "hash", "min_block": 16},
    ) as new_program:
        x = layers.data("x", shape=[3])
        label = layers.data("label", "int64[batch]")
        w = layers.parameter([3, 4], "orthogonal", name="w")
        with place_guard("/node:worker/cpu"):
            h1 = layers.fc(x @ w, 8, name="h1")
            norm = layers.batch_norm(layers.fc(h1, 8, name="h2"))
            thin = layers.dropout(norm, 0.25)
            lines = layers.reshape(thin, ["batch", 2, 4])
            _, last = layers.gru(lines, 5, out=["states", "end"])
            same = layers.fc(h1, 8, params={"w": layers.fc(h1, 8).parameter("w")})
            logits = layers.fc(layers.concat([last, same]), 4)
            loss = layers.softmax_cross_entropy(
                logits, label, class_weights=[1, 2, 1, 2]
            )
            right = layers.accuracy(logits, label)
        append_backward()
        new_program.update(metrics=[loss, right])
        with place_guard("/node:ps:0"):
            optimizer.Adagrad(
                {"piecewise": {"boundaries": [10], "values": [0.1, 1e-6]}},
                match="h*",
                clip=None,
            ).minimize(loss)
        optimizer.AdamW(0.001, weight_decay=0.02).minimize(loss)
    return new_program


def guards_that_take_turns() -> Program:
    with program() as new_program:
        image, label = digits()
        h = image
        for depth in range(8):
            with place_guard(f"/node:worker:{depth % 2}"):
                h = layers.relu(h)
        finish(h, label)
    return new_program


MODELS: dict[Callable[[], Program], str | None] = {
    nested_guards: NESTED,
    cleared_guards: CLEARED,
    placed_by_a_function: BY_FUNCTION,
    computed_again: AGAIN,
    every_section: None,
    guards_that_take_turns: None,
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_both_compile_to_the_same_bytes(
    model: Callable[[], Program], tmp_path: Path
) -> None:
    text = check_same_builds(model(), tmp_path)
    written = MODELS[model]
    if written is not None:
        assert "\n".join(graph_lines(text)) == written


def test_digits_in_python_is_digits_in_yaml(tmp_path: Path) -> None:
    placer.compile(f"{find_file('specs/digits.py')}:build", tmp_path / "python")
    placer.compile(find_file("specs/digits.yaml"), tmp_path / "yaml")
    assert build_files(tmp_path / "python") == build_files(tmp_path / "yaml")
    check_same_builds(
        run_builder(f"{find_file('specs/digits.py')}:build"), tmp_path / "again"
    )


def test_a_spec_is_formatted_as_by_hand() -> None:
    text = to_yaml(run_builder(f"{find_file('specs/digits.py')}:build"))
    assert (
        text
        == """\
name: digits

nodes:
  worker: {count: 2, devices: {cpu: 1}}
  ps: {count: 2}

inputs:
  image: float32[batch, 64]
  label: int32[batch]

data:
  train: {source: "sklearn:digits", split: train, batch: 128, shuffle: true, seed: 7}
  eval: {source: "sklearn:digits", split: test, batch: 128}

graph:
  - place: /node:worker/cpu
    ops:
      - {name: h1, op: fc, in: image, size: 128, activation: relu}
      - {name: logits, op: fc, in: h1, size: 10}
      - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
      - {name: accuracy, op: accuracy, in: [logits, label]}
      - {name: probability, op: softmax, in: logits}

parameters:
  - {match: logits.b, init: {constant: 0.0}}

train:
  minimize: loss
  epochs: 20
  metrics: [loss, accuracy]
  clip: {global_norm: 1.0}
  backward: /node:worker/cpu
  optimizer:
    op: adam
    learning_rate: {cosine: {init: 0.01, steps: 220}}
    place: /node:ps/cpu

predict:
  outputs: [probability]
"""
    )


def test_other_yaml_parsers_read_the_same() -> None:
    new_program = every_section()
    assert yaml.safe_load(to_yaml(new_program)) == new_program.tree().value


def test_a_place_with_a_comma_is_quoted() -> None:
    new_program = program(nodes={"worker": {"count": 4}}, data=ROWS_OF_96)
    with new_program, place_guard("/node:worker:0,2-3"):
        finish(*digits())
    assert '  - place: "/node:worker:0,2-3"' in graph_lines(to_yaml(new_program))


def test_a_long_op_takes_several_lines() -> None:
    with program() as new_program:
        x = layers.data("a_rather_long_name_for_an_input", "float32[batch, 8, 8, 1]")
        label = layers.data("label", "int32[batch]")
        h = layers.conv2d(x, 8, 3, padding=[[1, 1], [2, 2]], name="a_convolution_layer")
        finish(layers.flatten(h), label)
    assert graph_lines(to_yaml(new_program))[:6] == [
        "  - name: a_convolution_layer",
        "    op: conv2d",
        "    in: a_rather_long_name_for_an_input",
        "    filters: 8",
        "    kernel_size: 3",
        "    padding: [[1, 1], [2, 2]]",
    ]


def test_mistakes_of_the_program_are_reported_first() -> None:
    with program() as new_program:
        digits()
    with pytest.raises(SpecError, match="'graph' has no op"):
        to_yaml(new_program)


def test_a_text_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        program(parameters=[{"match": "\ud800"}])
    assert caught.value.message == "'\\ud800' cannot be written to a file as UTF-8"


def test_guards_nested_deeper_than_yaml_allows_are_refused() -> None:
    with program(nodes={"worker": {"count": 40}}) as new_program:
        image, label = digits()

        def deep(h: placer.Variable, depth: int) -> placer.Variable:
            if depth == 20:
                return layers.relu(h)
            with place_guard(f"/node:worker:{depth}"):
                return layers.relu(deep(layers.relu(h), depth + 1))

        finish(deep(image, 0), label)
    new_program.model()  # a program can nest that deep
    with pytest.raises(SpecError) as caught:
        to_yaml(new_program)
    assert (
        caught.value.message
        == "the program cannot be written as YAML: nested deeper than 32 levels"
    )

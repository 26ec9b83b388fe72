"""Keys of a spec that are set from outside: `--set`, `placer.compile(overrides=...)`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.builds import build_files
from support.small_models import load_model

import placer
from placer.compiler.frontend.yaml.overrides import read_override
from placer.compiler.graph.model import Model
from placer.errors import PlacerError, SpecError, SpecErrors
from placer.system.resources import find_file

SPEC = """\
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {image: "float32[batch, 64]", label: "int32[batch]"}
data:
  train: {source: "sklearn:digits", batch: 128}
graph:
  - place: /node:worker/cpu
    ops:
      - remat: true
        ops:
          - {name: h1, op: fc, in: image, size: 128}
      - {name: logits, op: fc, in: h1, size: 10}
  - {name: loss, op: softmax_cross_entropy, in: [logits, label]}
train:
  minimize: loss
  epochs: 20
  metrics: [loss]
  optimizer:
    - {op: adam, match: "h1.*", learning_rate: 0.01, place: /node:ps}
    - {op: sgd, learning_rate: 0.1, place: /node:ps}
"""
PYTHON = find_file("specs/digits.py")


def load_with(*texts: str) -> Model:
    return load_model(SPEC, overrides=[read_override(text) for text in texts])


def error_of(*texts: str) -> SpecError:
    with pytest.raises(SpecError) as raised:
        load_with(*texts)
    return raised.value


def pointed_text(error: PlacerError) -> str:
    assert error.span is not None
    assert error.span.file == "--set"
    start = error.span.column - 1
    return error.span.text[start : start + error.span.length]


@pytest.mark.parametrize(
    ("key", "value", "edit"),
    [
        ("train.epochs", "3", ("epochs: 20", "epochs: 3")),
        ("seed", "7", ("inputs:", "seed: 7\ninputs:")),
        ("graph.h1.size", "64", ("size: 128", "size: 64")),
        ("graph.0.place", "/node:worker:1", ("/node:worker/cpu", "/node:worker:1")),
        ("graph.0.ops.1.bias", "false", ("size: 10", "size: 10, bias: false")),
        (
            "train.optimizer.0.learning_rate",
            "1e-3",
            ("learning_rate: 0.01", "learning_rate: 1e-3"),
        ),
        (
            "train.clip",
            "{global_norm: 1.0}",
            ("  minimize", "  clip: {global_norm: 1.0}\n  minimize"),
        ),
        (
            "train.clip.global_norm",
            "1.0",
            ("  minimize", "  clip: {global_norm: 1.0}\n  minimize"),
        ),
        (
            "nodes.worker.devices",
            "{cpu: 1, gpu: 2}",
            ("{count: 2}", "{count: 2, devices: {cpu: 1, gpu: 2}}"),
        ),
    ],
)
def test_the_build_is_that_of_an_edited_spec(
    tmp_path: Path, key: str, value: str, edit: tuple[str, str]
) -> None:
    for name, text in (("model", SPEC), ("edited", SPEC.replace(*edit))):
        (tmp_path / f"{name}.yaml").write_text(f"name: model\n{text}")
    plan = placer.compile(
        tmp_path / "model.yaml", tmp_path / "set", overrides=[f"{key}={value}"]
    )
    edited = placer.compile(tmp_path / "edited.yaml", tmp_path / "edit")
    assert plan.digest == edited.digest
    assert build_files(tmp_path / "set") == build_files(tmp_path / "edit")


def test_the_build_lists_what_was_set(tmp_path: Path) -> None:
    values: dict[str, Any] = {"train.epochs": 2, "train.clip": {"norm": 1.0}}
    placer.compile(find_file("specs/digits.yaml"), tmp_path / "build", overrides=values)
    sources = json.loads((tmp_path / "build" / "sources.json").read_text())
    assert sources["overrides"] == ["train.epochs=2", 'train.clip={"norm": 1.0}']


@pytest.mark.parametrize(
    ("text", "pointed", "message", "hint"),
    [
        (
            "train.epohcs=3",
            "epohcs",
            "unknown key 'epohcs' in train",
            "did you mean 'epochs'?",
        ),
        (
            "train.epochs=many",
            "many",
            "'epochs' must be a whole number from 1 to 2147483647, not the text 'many'",
            None,
        ),
        (
            "graph.h1.activation=sigmod",
            "sigmod",
            "op 'h1' (fc) cannot have activation: sigmod",
            "did you mean 'sigmoid'?",
        ),
        (
            "graph.logit.size=3",
            "logit",
            "no op in graph is called 'logit'",
            "did you mean 'logits'?",
        ),
        (
            "train.epochs.max=3",
            "max",
            "train.epochs is 20, which has no key 'max'",
            "set the whole value: train.epochs={max: ...}",
        ),
        (
            "train.optimizer.learning_rate=1",
            "learning_rate",
            "train.optimizer is a list of 2 items; it has no item 'learning_rate'",
            "items are numbered from 0: train.optimizer.0.learning_rate",
        ),
        (
            "train.metrics.1=loss",
            "1",
            "train.metrics is a list of 1 item; it has no item '1'",
            "items are numbered from 0: train.metrics.0",
        ),
        (
            "train.clip={norm: 1",
            "{",
            "'{' is not closed before line 2",
            "close it with '}'",
        ),
        (
            "seed=99999999999999999999",
            "99999999999999999999",
            "99999999999999999999 does not fit in 64 bits",
            None,
        ),
        (
            "train..epochs=3",
            ".",
            "'train..epochs' has an empty part",
            "join the keys of a spec with dots, as in train.epochs",
        ),
    ],
)
def test_an_error_points_into_the_option(
    text: str, pointed: str, message: str, hint: str | None
) -> None:
    error = error_of(text)
    assert (pointed_text(error), error.message, error.hint) == (pointed, message, hint)


def test_a_text_without_a_value_is_an_error() -> None:
    assert error_of("train.epochs").message == "'train.epochs' is not KEY=VALUE"


def test_errors_of_several_options_are_reported_together() -> None:
    error = error_of("train.epohcs=3", "graph.h2.size=3", "train.epochs.x=1")
    assert isinstance(error, SpecErrors)
    assert len(error.errors) == 3


def test_of_one_key_the_last_value_counts() -> None:
    assert load_with("train.epochs=3", "train.epochs=4").settings.train.epochs == 4


def test_a_list_with_one_optimizer_needs_no_number() -> None:
    text = "train.optimizer=[{op: sgd, learning_rate: 0.5}]"
    (group,) = load_with(text, "train.optimizer.learning_rate=0.25").graph.of_kind(
        "optimizer"
    )
    assert group.attrs["learning_rate"] == 0.25
    single = "train.optimizer={op: sgd, learning_rate: 0.5}"
    (group,) = load_with(single, "train.optimizer.0.learning_rate=0.25").graph.of_kind(
        "optimizer"
    )
    assert group.attrs["learning_rate"] == 0.25
    error = error_of(single, "train.optimizer.1.learning_rate=1")
    assert error.message == "train.optimizer is a list of 1 item; it has no item '1'"
    assert error.hint == "items are numbered from 0: train.optimizer.0.learning_rate"


def test_overriding_does_not_change_a_program(tmp_path: Path) -> None:
    program = placer.Program(
        name="small",
        nodes={"worker": {"count": 1}},
        data={"train": {"source": "sklearn:digits", "batch": 64}},
    )
    with program:
        image = placer.layers.data("image", "float32[batch, 64]")
        first = placer.layers.mean(placer.layers.fc(image, 1), name="first")
        placer.layers.mean(image, name="second")
        placer.optimizer.SGD(0.1).minimize(first)
    values = {"train.optimizer.0.learning_rate": 0.5, "train.metrics": [first]}
    changed = placer.compile(program, tmp_path / "set", overrides=values)
    assert changed.nodes[0].tables[0].learning_rate == 0.5
    plan = placer.compile(program, tmp_path / "build")
    assert plan.nodes[0].tables[0].learning_rate == 0.1


def test_the_sections_of_a_python_file_can_be_set(tmp_path: Path) -> None:
    plan = placer.compile(
        f"{PYTHON}:build",
        tmp_path,
        overrides=["data.train.batch=64", "nodes.worker.count=4", "name=other",
                   "precision=float64", "seed=3"],
    )  # fmt: skip
    assert (plan.train.batch, plan.name, plan.settings.precision) == (
        64,
        "other",
        "float64",
    )
    assert (plan.settings.seed, len(plan.nodes)) == (3, 6)


@pytest.mark.parametrize("text", ["graph.h1.size=3", "inputs.image=float32[batch, 3]"])
def test_the_ops_and_inputs_of_a_python_model_cannot_be_set(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(SpecError, match="cannot be overridden") as raised:
        placer.compile(f"{PYTHON}:build", tmp_path, overrides=[text])
    assert pointed_text(raised.value) == text.partition(".")[0]
    assert raised.value.hint is not None
    assert "change the Python code: " in raised.value.hint


def test_an_error_in_a_mapping_points_to_the_call(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown key 'epohcs' in train") as raised:
        placer.compile(f"{PYTHON}:build", tmp_path, overrides={"train.epohcs": 3})
    assert raised.value.span is not None
    assert Path(raised.value.span.file).name == Path(__file__).name


def test_gradient_accumulation_is_microbatches() -> None:
    model = load_with("train.gradient_accumulation=4")
    assert model.graph == load_with("train.microbatches=4").graph
    load_with("train.gradient_accumulation=4", "train.microbatches=4")


def test_gradient_accumulation_and_microbatches_cannot_differ() -> None:
    error = error_of("train.microbatches=4", "train.gradient_accumulation=2")
    assert pointed_text(error) == "gradient_accumulation"
    assert error.message == (
        "'gradient_accumulation' and 'microbatches' are the same setting, but have different"
        " values: 2 and 4"
    )

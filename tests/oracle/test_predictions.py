"""R1 for predictions: placements, one process and plain JAX give the same outputs."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import save_file
from support.drawn.graphs import DrawnModel, models
from support.marks import MAY_PAIR_ROWS, slow_but
from support.plain import step as plain
from support.run_ways import write_spec
from support.spec_models import NAMES, copy_spec, initial_parameters, read_rows

import placer
from placer.compiler.frontend import load
from placer.errors import GraphError
from placer.place.types import TensorType
from placer.plan.plan import read_plan

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]


def outputs_of(file: Path) -> list[str]:
    """Return the values that ops of the spec compute and that can be outputs."""
    model = load(file)
    return [
        value.name
        for op in model.graph.ops
        for value in op.results
        if op.kind != "read" and "." not in value.name
        if isinstance(value.type, TensorType) and value.type.has_rows
        if value.type.shape.count("batch") == 1
    ]


def check_predictions(drawn: DrawnModel) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, initial = Path(name), drawn.initial()
        rows = {which: drawn.rows(which) for which in ("train", "eval")}
        file = write_spec(drawn.spec, rows, folder)
        outputs = outputs_of(file)
        save_file(initial, folder / "params")
        spec = yaml.safe_load(file.read_text())
        wanted = plain.predict(spec, rows["eval"], initial, outputs, folder)
        try:
            placer.compile(file, folder / "build", outputs=outputs)
        except GraphError as error:
            if "trains nothing" not in error.message:
                raise
            return
        for single_process in (False, True):
            got = placer.predict(
                folder / "build",
                params=folder / "params",
                single_process=single_process,
                in_process=True,
                raw=True,
                deadline=300.0,
            )
            assert list(got) == outputs
            for name in outputs:
                np.testing.assert_allclose(
                    got[name], wanted[name], rtol=1e-9, atol=1e-12, err_msg=name
                )


@given(models())
@settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    max_examples=2,
    derandomize=True,
)
def test_the_outputs_of_a_placed_model_are_those_of_plain_jax(drawn):
    check_predictions(drawn)


@pytest.mark.slow
@given(models())
@settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    max_examples=200,
)
def test_many_placed_models_predict_like_plain_jax(drawn):
    check_predictions(drawn)


IN_EVERY_RUN = ("mlp_pipeline", "wide_deep")


@pytest.mark.parametrize("model", slow_but(IN_EVERY_RUN, NAMES))
def test_a_spec_predicts_like_plain_jax_without_labels(model, tmp_path):
    """In float64, from rows that have only the columns that outputs depend on."""
    file = copy_spec(model, tmp_path, "float64")
    plan = placer.compile(file, tmp_path / "build")
    initial = initial_parameters(plan)
    save_file(initial, tmp_path / "params")
    spec = yaml.safe_load(file.read_text())
    outputs = spec["predict"]["outputs"]
    used = {name for output in plan.outputs for name in output.inputs}
    rows = read_rows(spec, tmp_path)["eval"]
    wanted = plain.predict(spec, rows, initial, outputs, tmp_path)
    rows = {name: column for name, column in rows.items() if name in used}
    assert used < spec["inputs"].keys()
    options = {"params": tmp_path / "params", "in_process": True, "raw": True}
    for got in (
        placer.predict(tmp_path / "build", **options),
        placer.predict(tmp_path / "build", rows, single_process=True, **options),
    ):
        assert list(got) == outputs
        for name in outputs:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-12)


def test_the_outputs_of_digits_are_as_accurate_as_its_evaluation(tmp_path):
    build = tmp_path / "build"
    placer.compile(copy_spec("digits", tmp_path, "float32"), build)
    result = placer.launch(build, steps=20, in_process=True)
    got = placer.predict(build, params=result.params, in_process=True)
    spec = yaml.safe_load((tmp_path / "digits.yaml").read_text())
    labels = read_rows(spec, tmp_path)["eval"]["label"]
    assert list(got) == ["class", *(f"probability.{i}" for i in range(10))]
    accuracy = (got["class"] == labels).mean()
    assert accuracy == pytest.approx(result.eval["accuracy"])
    assert read_plan(build).outputs[0].inputs == ("image",)

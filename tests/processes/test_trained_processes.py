"""Training with real processes computes the same as one plain JAX program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.histories import lines_without_times
from support.plain import specs as plain_specs
from support.real_runs import (
    CommandResult,
    compile_small,
    launch,
    nodes_by_hand,
    run_command,
    shown_tables,
)

from placer.errors import SpecWarning
from placer.plan.plan import Plan, read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

KEYS = ["steps", "metrics", "eval", "samples_per_second", "bytes_sent"]
KEYS += ["checkpoint_seconds", "streams", "staleness"]
KEYS += ["staleness_bound", "geo_staleness", "divergence"]
KEYS += ["untrained_rows", "shares", "tables", "table_rows", "table_counted"]
KEYS += ["table_bytes", "best", "published", "passes", "restarts"]
KEYS += ["best_eval", "best_step"]


def compile_spec(
    model: str, folder: Path, *options: str, precision: str = "float32"
) -> Path:
    """Compile a spec of `specs/` into `folder`/build, with the command line."""
    for file in plain_specs.SPECS.glob("*.py"):
        shutil.copy(file, folder)
    spec = folder / f"{model}.yaml"
    text = (plain_specs.SPECS / spec.name).read_text()
    spec.write_text(f"{text}\nprecision: {precision}\n")
    done = run_command("compile", spec, "--out", folder / "build", *options)
    assert done.status == 0, done.err
    return folder / "build"


def initial_parameters(plan: Plan) -> dict[str, np.ndarray]:
    """Draw small values, from which training does not amplify rounding errors."""
    random = np.random.default_rng(4)
    values = {}
    for parameter in plan.parameters:
        shape, size = parameter.shape, 0.1
        if len(shape) > 1 and not parameter.name.endswith(".table"):
            size = 0.3 * shape[0] ** -0.5
        mean = 150.0 if parameter.name == "out.b" else 0.0
        values[parameter.name] = random.normal(mean, size, shape).astype(
            parameter.dtype
        )
    return values


def result_of(run: CommandResult) -> dict[str, Any]:
    """Return the JSON result, the only line of stdout."""
    assert run.status == 0, run.err
    (line,) = run.out.splitlines()
    result: dict[str, Any] = json.loads(line)
    assert list(result) == KEYS
    return result


@pytest.mark.parametrize(
    ("model", "precision", "nodes"),
    [
        ("diabetes", "float64", ["worker:0", "ps:0", "ps:1"]),
        pytest.param(
            "digits",
            "float32",
            ["worker:0", "worker:1", "ps:0", "ps:1"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "two_workers",
            "float64",
            ["worker:0", "worker:1"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "seed_ctr",
            "float32",
            ["worker:0", "worker:1", "ps:0", "ps:1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_processes_train_like_a_plain_jax_program(
    model: str, precision: str, nodes: list[str], tmp_path: Path
) -> None:
    kinds = [node.split(":")[0] for node in nodes]
    counts = ",".join(f"{kind}={kinds.count(kind)}" for kind in dict.fromkeys(kinds))
    build = compile_spec(model, tmp_path, "--nodes", counts, precision=precision)
    plan = read_plan(build)
    initial = initial_parameters(plan)
    save_file(initial, tmp_path / "initial")
    steps = 100

    done = launch(
        build,
        f"--steps={steps}",
        f"--history={tmp_path / 'first.jsonl'}",
        f"--save-params={tmp_path / 'first'}",
        f"--init-params={tmp_path / 'initial'}",
    )
    result, lines = result_of(done), lines_without_times(tmp_path / "first.jsonl")
    with jax.enable_x64(precision == "float64"):
        program = getattr(plain_specs, model)()
        wanted, parameters = plain_specs.train(program, initial, steps)

    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    for line, expected in zip(lines, wanted, strict=True):
        assert list(line["metrics"]) == list(plan.settings.train.metrics)
        check_metrics(line, expected, precision)
    saved = load_file(tmp_path / "first")
    assert saved.keys() == parameters.keys()
    for name, value in parameters.items():
        check_parameter(name, saved[name], value, precision)

    order = program.order(len(next(iter(program.columns.values()))))
    check_epochs(lines, order.steps_per_epoch)
    assert result["steps"] == steps
    assert result["eval"] == lines[-1]["eval"]
    assert list(result["eval"]) == list(plan.settings.train.metrics)
    assert list(result["bytes_sent"]) == nodes
    assert min(result["bytes_sent"].values()) > 0
    assert result["samples_per_second"] > 0
    last = [line["metrics"] for line in lines if line["epoch"] == lines[-1]["epoch"]]
    for name in plan.settings.train.metrics:
        mean = np.mean([metrics[name] for metrics in last])
        assert result["metrics"][name] == pytest.approx(mean, rel=1e-12)

    # R2 of docs/about/architecture.md: a second run has the same bits, also one of threads.
    options = Options(
        steps=steps,
        history=tmp_path / "second.jsonl",
        save_params=tmp_path / "second",
        init_params=tmp_path / "initial",
    )
    again = run_in_threads(build, options)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert lines_without_times(tmp_path / "second.jsonl") == lines
    assert [again.metrics, again.eval] == [result["metrics"], result["eval"]]


def check_metrics(
    line: Mapping[str, Any], wanted: Mapping[str, float], precision: str
) -> None:
    """Check the metrics of a step (R1 of docs/about/architecture.md)."""
    assert line["metrics"].keys() == wanted.keys()
    for name, value in wanted.items():
        close = {"rel": 1e-9}
        if precision == "float32":
            # A row whose two largest logits are equal can count as right or wrong.
            close = {"abs": 0.01} if name == "accuracy" else {"rel": 1e-5, "abs": 1e-6}
        got = line["metrics"][name]
        assert got == pytest.approx(value, **close), (line["step"], name)


def check_parameter(
    name: str, actual: np.ndarray, wanted: np.ndarray, precision: str
) -> None:
    """Check a final parameter (R1 of docs/about/architecture.md)."""
    if precision == "float64":
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-7, err_msg=name)
    else:
        distance = np.linalg.norm(actual - wanted)
        assert distance <= 1e-4 * np.linalg.norm(wanted), name


def check_epochs(lines: list[Mapping[str, Any]], per_epoch: int) -> None:
    """Check the epoch of each line, and that evaluations follow epochs and the run."""
    for line in lines:
        step = line["step"]
        assert line["epoch"] == (step - 1) // per_epoch + 1
        evaluated = step % per_epoch == 0 or step == len(lines)
        extra = ["eval"] if evaluated else []
        assert list(line) == ["step", "epoch", "metrics", *extra]


@pytest.mark.slow
def test_processes_and_one_process_learn_digits_alike(tmp_path: Path) -> None:
    results = {}
    for how in ("placed", "single-process"):
        folder = tmp_path / how
        folder.mkdir()
        options = ["--single-process"] if how == "single-process" else []
        build = compile_spec("digits", folder, *options)
        result = result_of(launch(build, f"--save-params={folder / 'saved'}"))
        results[how] = result, load_file(folder / "saved")
        assert result["steps"] == 220
        assert result["eval"]["accuracy"] > 0.95
    (placed, parameters), (one, expected) = results["placed"], results["single-process"]
    assert list(one["bytes_sent"]) == ["worker:0"]
    assert placed["metrics"] == pytest.approx(one["metrics"], rel=1e-4, abs=1e-4)
    assert placed["eval"] == pytest.approx(one["eval"], rel=1e-4, abs=1e-4)
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        check_parameter(name, parameters[name], value, "float32")


def test_saved_parameters_equal_the_initial_ones_if_the_learning_rate_is_zero(
    tmp_path: Path,
) -> None:
    with pytest.warns(SpecWarning, match="'sgd' trains nothing"):
        build = compile_small(tmp_path, rate=0.0)
    initial = initial_parameters(read_plan(build))
    save_file(initial, tmp_path / "initial")
    options = Options(
        steps=3, init_params=tmp_path / "initial", save_params=tmp_path / "saved"
    )
    run_in_threads(build, options)
    saved = load_file(tmp_path / "saved")
    assert saved.keys() == initial.keys()
    for name, value in initial.items():
        np.testing.assert_array_equal(saved[name], value, err_msg=name)


def test_a_program_started_by_hand_is_the_same_node_as_placer_run(
    tmp_path: Path,
) -> None:
    build = compile_small(tmp_path)
    outputs, tables = {}, shown_tables(build, "ps:0")
    for programs in (False, True):
        saved = tmp_path / f"{programs}.safetensors"
        options = ["--steps=5", f"--save-params={saved}"]
        with nodes_by_hand(build, *options, programs=programs) as nodes:
            ends = {node: run.wait() for node, run in nodes.items()}
        assert [end.status for end in ends.values()] == [0, 0], ends
        assert [end.err for end in ends.values()] == ["", tables]
        assert [bool(end.out) for end in ends.values()] == [True, False]
        lines = ends["worker:0"].out.splitlines()
        assert lines[0].startswith("5 steps, ")
        outputs[programs] = lines[1:], saved.read_bytes()
    assert outputs[True] == outputs[False]

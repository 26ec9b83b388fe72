"""R1 across an interruption: train on one placement, continue on another, and compare
with one process that was not interrupted.

The checkpoint is one that a run has written while it trained later steps."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.checkpointed import lines
from support.marks import slow_but

import placer
from placer.runtime.control import checkpoint_settings
from placer.runtime.control.events import Event, Step
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads
from placer.runtime.saving.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("in_float64")

BATCH = 12
ROWS_OF_ALL = 40  # three batches and a short one
WITHIN = 60.0
"""Seconds within which a later step ends, or the test fails."""
# Failures are not shrunk: an example takes seconds.
SETTINGS = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)

OPTIMIZERS: list[dict[str, Any]] = [
    {"op": "sgd"},
    {"op": "momentum"},
    {"op": "adam"},
    {"op": "adamw", "weight_decay": 0.1},
    {"op": "rmsprop", "centered": True, "momentum": 0.5},
    {"op": "lamb"},
    {"op": "lars"},
]
RATES: list[Any] = [
    0.05,
    {"exponential": {"init": 0.05, "rate": 0.8, "steps": 2}},
    {"warmup": {"steps": 5, "then": {"cosine": {"init": 0.05, "steps": 9}}}},
]


STATISTICS = {"name": "n", "op": "batch_norm"}
DROPOUT = {"name": "d", "op": "dropout", "rate": 0.3}
METRICS = ["loss", "auc"]


def layers(*middle: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers of a model, with these before the activation."""
    first = {"name": "h", "op": "fc", "in": "x", "size": 4, "bias": False}
    ops = [first]
    for op in (*middle, {"name": "a", "op": "tanh"}):
        ops.append({**op, "in": ops[-1]["name"]})
    return ops


@dataclass(frozen=True)
class Placement:
    """A cluster, the places of the two layers and of the optimizer, and the slicing."""

    nodes: dict[str, Any]
    first: str
    second: str
    optimizer: str | None
    slicing: dict[str, Any]
    emulate: bool = False
    exchange: str = ""
    """A setting of an optimizer on several workers that is true."""


def device_kinds(count: int) -> dict[str, Any]:
    return {"count": count, "devices": {"cpu": 1, "gpu": 1}}


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """One process, data parallelism, a pipeline or heter nodes, with the optimizer on
    servers or workers, in host memory or on devices."""
    slicing = {
        "min_block": draw(st.sampled_from([1, 4, 8192])),
        "dispatch": draw(st.sampled_from(["balanced", "round_robin", "hash"])),
    }
    workers, servers = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    gpu = draw(st.booleans())
    nodes: dict[str, Any] = {"worker": device_kinds(workers)}
    if servers:
        nodes["ps"] = device_kinds(servers)
    device = "/gpu" if gpu else "/cpu"
    first = second = f"/node:worker{device}"
    optimizer = f"/node:ps{device}" if servers else first
    match draw(st.sampled_from(["data", "pipeline", "heter"])):
        case "pipeline" if workers > 1:
            first, second = f"/node:worker:0{device}", f"/node:worker:1{device}"
            optimizer = f"/node:ps{device}" if servers else None
        case "heter":
            nodes["heter"] = device_kinds(draw(st.integers(1, workers)))
            second = f"/node:heter{device}"
            optimizer = f"/node:ps{device}" if servers else None
    several = workers > 1 and optimizer == f"/node:worker{device}"
    exchange = draw(st.sampled_from(["", "shard_state"])) if several else ""
    return Placement(
        nodes, first, second, optimizer, slicing, emulate=True, exchange=exchange
    )


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """What stays the same: ops with state and draws, and the training."""
    middle = [op for op in (STATISTICS, DROPOUT) if draw(st.booleans())]
    rule = dict(draw(st.sampled_from(OPTIMIZERS)))
    rule["learning_rate"] = draw(st.sampled_from(RATES))
    microbatches = draw(st.sampled_from([1, 2]))
    train = {
        "optimizer": rule,
        "microbatches": microbatches,
        "metrics": METRICS,
    }
    clip = draw(st.sampled_from([None, {"global_norm": 0.5}, {"norm": 0.3}]))
    if clip:
        train["clip"] = clip
    keep = microbatches == 1 and draw(st.booleans())
    remainder = "keep" if keep else "drop"
    return {"layers": layers(*middle), "train": train, "remainder": remainder}


def compile_placed(
    model: dict[str, Any], placement: Placement, out: Path, **options: Any
):
    """Compile a model as placed into a folder beside its rows."""
    rule = dict(model["train"]["optimizer"])
    if placement.optimizer is not None:
        rule["place"] = placement.optimizer
    if placement.exchange:
        rule[placement.exchange] = True
    head = [
        {"name": "o", "op": "fc", "in": "a", "size": 1},
        {"name": "logit", "op": "reshape", "in": "o", "shape": ["batch"]},
        {"name": "loss", "op": "sigmoid_cross_entropy", "in": ["logit", "y"]},
        {"name": "auc", "op": "auc", "in": ["logit", "y"]},
    ]
    source = {"source": "npz:rows.npz", "batch": BATCH}
    spec = {
        "name": "resumed",
        "precision": "float64",
        "emulate": placement.emulate,
        "nodes": placement.nodes,
        "inputs": {"x": "float64[batch, 6]", "y": "int32[batch]"},
        "data": {
            "train": {**source, "shuffle": True, "remainder": model["remainder"]},
            "eval": source,
        },
        "graph": [
            {"place": placement.first, "ops": model["layers"]},
            {"place": placement.second, "ops": head},
        ],
        "train": {
            "minimize": "loss",
            "epochs": 4,
            **model["train"],
            "optimizer": rule,
            "slicing": placement.slicing,
        },
    }
    text = out.with_suffix(".yaml")
    text.write_text(yaml.safe_dump(spec, sort_keys=False))
    placer.compile(text, out, **options)
    return out


def check_resumed(
    model: dict[str, Any],
    placements: Sequence[Placement],
    stops: Sequence[int],
    steps: int,
) -> None:
    """Train on the first placement, continue after each of `stops` on the next one, up
    to `steps`, and compare with one process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS_OF_ALL, 6))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
        alone = compile_placed(
            model, placements[0], folder / "alone", single_process=True
        )
        whole, parts = folder / "whole.jsonl", folder / "parts.jsonl"
        expected, actual = folder / "expected", folder / "actual"
        run_in_threads(alone, Options(steps=steps, history=whole, save_params=expected))
        start = None
        for number, (placement, stop) in enumerate(
            zip(placements, [*stops, None], strict=True)
        ):
            build = compile_placed(model, placement, folder / f"build{number}")
            options: dict[str, Any] = {"history": parts, "resume": start}
            if stop is None:
                options |= {"steps": steps, "save_params": actual}
                run_in_threads(build, Options(**options))
            else:
                kept = folder / f"checkpoints{number}"
                save_behind_steps(build, stop, checkpoint=kept, **options)
                start = kept / f"step-{stop:06d}"
        values = load_file(actual)
        for parameter, wanted in load_file(expected).items():
            np.testing.assert_allclose(
                values[parameter], wanted, rtol=1e-9, atol=1e-9, err_msg=parameter
            )
        for line, wanted in zip(lines(parts), lines(whole), strict=True):
            check_line(line, wanted)


def save_behind_steps(build: Path, step: int, **options: Any) -> None:
    """Run a build beyond a step; the checkpoint of that step is written only after a
    later one."""
    # The checkpoint of `2 * step` waits until that of `step` is written.
    later = min(2 * step, step + 2)
    has_ended = threading.Event()

    def watch(event: Event) -> None:
        if isinstance(event, Step) and event.step == later:
            has_ended.set()

    write = Checkpoints._write

    def write_later(self: Checkpoints, job: Any, *published: Any) -> None:
        if job.step == step:
            assert has_ended.wait(WITHIN), f"step {later} has not ended"
        write(self, job, *published)

    # A checkpoint of the best evaluation would wait for that of `step`.
    with (
        patch.object(Checkpoints, "_write", write_later),
        patch.object(checkpoint_settings, "best_evaluation", lambda plan: None),
    ):
        run_in_threads(
            build,
            Options(
                steps=later,
                checkpoint_every=str(step),
                checkpoint_keep=99,
                **options,
            ),
            watch=watch,
        )


def check_line(line: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert line.keys() == wanted.keys()
    assert (line["step"], line["epoch"]) == (wanted["step"], wanted["epoch"])
    for key in line.keys() & {"metrics", "eval"}:
        for name, value in wanted[key].items():
            if value is None:
                assert line[key][name] is None
            else:
                assert line[key][name] == pytest.approx(value, rel=1e-9, abs=1e-9)


def placed(
    workers: int,
    first: str,
    second: str,
    optimizer: str | None,
    min_block: int = 8192,
    **others: int,
) -> Placement:
    """Return a placement on workers and `others`; of a slicing if it says so."""
    nodes = {"worker": workers, **others}
    kinds = {name: device_kinds(count) for name, count in nodes.items()}
    slicing = {"min_block": min_block}
    return Placement(kinds, first, second, optimizer, slicing, emulate=True)


def sharded(placement: Placement) -> Placement:
    return replace(placement, exchange="shard_state")


CPU, GPU = "/node:worker/cpu", "/node:worker/gpu"
ONE = placed(1, CPU, CPU, CPU)
SHARDED = sharded(placed(3, CPU, CPU, CPU))
SHARDED_ON_GPUS = sharded(placed(2, GPU, GPU, GPU))
SERVERS = placed(2, CPU, CPU, "/node:ps/cpu", 4, ps=2)
ON_GPUS = placed(2, GPU, GPU, GPU)
PIPELINE = placed(2, "/node:worker:0/cpu", "/node:worker:1/cpu", None)
HETER = placed(2, CPU, "/node:heter/gpu", "/node:ps/gpu", 1, heter=1, ps=2)


@dataclass(frozen=True)
class Case:
    """A model, its placements, and the steps after which it continues on the next."""

    model: dict[str, Any]
    placements: tuple[Placement, ...]
    stops: tuple[int, ...]
    steps: int


def case(
    ops: Sequence[dict[str, Any]],
    optimizer: str,
    rate: Any,
    placements: tuple[Placement, ...],
    stops: tuple[int, ...],
    steps: int,
    *,
    remainder: str = "drop",
    **train: Any,
) -> Case:
    (rule,) = (each for each in OPTIMIZERS if each["op"] == optimizer)
    train = {"optimizer": {**rule, "learning_rate": rate}, "metrics": METRICS, **train}
    model = {"layers": layers(*ops), "train": train, "remainder": remainder}
    return Case(model, placements, stops, steps)


CASES = {
    "lamb, from servers to tables on GPUs and back": case(
        [STATISTICS, DROPOUT],
        "lamb",
        RATES[2],
        (SERVERS, ON_GPUS, SERVERS),
        (2, 5),
        7,
        remainder="keep",
        clip={"global_norm": 0.5},
    ),
    "rmsprop, from a pipeline to heter nodes": case(
        [STATISTICS, DROPOUT],
        "rmsprop",
        RATES[1],
        (PIPELINE, HETER),
        (4,),
        6,
        microbatches=2,
        clip={"norm": 0.3},
    ),
    "lars, from heter nodes to a pipeline": case(
        [DROPOUT], "lars", RATES[0], (HETER, PIPELINE), (4,), 6, remainder="keep"
    ),
    "adamw, from ranges of three workers to those of two": case(
        [STATISTICS],
        "adamw",
        RATES[1],
        (SHARDED, SHARDED_ON_GPUS, SHARDED),
        (2, 4),
        6,
        clip={"global_norm": 0.5},
    ),
    "adamw, from one process to servers": case(
        [STATISTICS],
        "adamw",
        RATES[2],
        (ONE, SERVERS),
        (1,),
        4,
        microbatches=2,
        clip={"global_norm": 0.5},
    ),
}
"""Together they have everything that a continued run must have; see the next test."""


def test_the_cases_have_all_features():
    models = [each.model for each in CASES.values()]
    ops = {op["op"] for model in models for op in model["layers"]}
    assert ops >= {"batch_norm", "dropout"}
    train = [model["train"] for model in models]
    rules = [each["optimizer"] for each in train]
    assert {rule["op"] for rule in rules} >= {"lamb", "lars", "rmsprop", "adamw"}
    assert all(rate in [rule["learning_rate"] for rule in rules] for rate in RATES)
    clips = {key for each in train for key in each.get("clip", ())}
    assert clips == {"global_norm", "norm"}
    assert {each.get("microbatches", 1) for each in train} == {1, 2}
    short = [each for each in CASES.values() if each.model["remainder"] == "keep"]
    assert any(stop % 4 for each in short for stop in each.stops)  # in an epoch
    moves = [move for each in CASES.values() for move in pairwise(each.placements)]
    for move in ((SERVERS, ON_GPUS), (ON_GPUS, SERVERS)):  # host and device tables
        assert move in moves
    for placement in (ONE, PIPELINE, HETER, SHARDED):
        assert any(placement in move for move in moves)


@pytest.mark.parametrize("name", slow_but([*CASES][1:4], CASES))
def test_a_run_continues_on_another_placement(name):
    each = CASES[name]
    check_resumed(each.model, each.placements, each.stops, each.steps)


DRAWN = given(
    model=models(),
    one=placements(),
    other=placements(),
    at=st.integers(1, 7),
    more=st.integers(1, 6),
)


@DRAWN
@settings(SETTINGS, max_examples=2, derandomize=True)
def test_a_run_continues_on_any_placement(model, one, other, at, more):
    check_resumed(model, [one, other], [at], at + more)


@pytest.mark.slow
@DRAWN
@settings(SETTINGS, max_examples=150)
def test_a_run_continues_on_any_placement_drawn_anew(model, one, other, at, more):
    check_resumed(model, [one, other], [at], at + more)

"""Drawn models: graphs of every op, placed in every legal way, and how to train
them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from placer.compiler.frontend import load_text
from placer.compiler.passes.gradients.differentiate import differentiate
from placer.errors import GraphError
from placer.place.types import TensorType
from support.drawn.clusters import clusters
from support.drawn.layers import LAYERS
from support.drawn.losses import TERMS, combine, data_loss
from support.drawn.sketch import INPUTS, UPPER_BOUNDS, VOCABULARY, Sketch
from support.drawn.training import training
from support.drawn.values import VALUES
from support.plain.training import optimizer_groups

SUPPORT = Path(__file__).parents[1]
"""The folder of the module `called`, which drawn models call."""
KINDS = (*LAYERS, *VALUES, *TERMS)


@dataclass(frozen=True)
class DrawnModel:
    """A model: its spec, the shapes of its parameters, and its numbers of rows."""

    spec: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    train_rows: int
    eval_rows: int
    seed: int

    def rows(self, which: str) -> dict[str, np.ndarray]:
        """Return a column for every input, drawn from the seed of the model."""
        count = self.train_rows if which == "train" else self.eval_rows
        inputs = {n: TensorType.parse(t) for n, t in self.spec["inputs"].items()}
        return columns(inputs, count, [self.seed, which == "train"])

    def initial(self) -> dict[str, np.ndarray]:
        """Return initial values of all parameters."""
        return initial_values(self.shapes, [self.seed, 2])


def columns(
    inputs: Mapping[str, TensorType], count: int, seed: list[int]
) -> dict[str, np.ndarray]:
    """Return `count` random rows of each input."""
    random = np.random.default_rng(seed)
    result = {}
    for name, kind in inputs.items():
        sizes = kind.sizes(count)
        if kind.is_float:
            result[name] = random.uniform(-1, 1, sizes)
        else:
            top = UPPER_BOUNDS.get(name, VOCABULARY)
            result[name] = random.integers(0, top, sizes).astype(kind.dtype)
    return result


def initial_values(
    shapes: Mapping[str, tuple[int, ...]], seed: list[int]
) -> dict[str, np.ndarray]:
    """Return random values of parameters; running variances are positive."""
    random = np.random.default_rng(seed)
    return {
        name: np.asarray(
            random.uniform(0.5, 1.5, shape)
            if name.endswith(".running_variance")
            else random.uniform(-0.7, 0.7, shape)
        )
        for name, shape in shapes.items()
    }


@st.composite
def models(draw: Any) -> DrawnModel:
    """Draw a model with a legal placement."""
    cluster = draw(clusters())
    sketch = Sketch(draw, cluster, in_scope=draw(st.booleans()))
    for _ in range(draw(st.integers(2, 8))):
        sketch.pick(KINDS)(sketch)
    loss, metrics = data_loss(sketch)
    unused = [v for v in sketch.values if v.name not in sketch.used]
    unused = [v for v in unused if v.name != loss.name]
    for term in unused[-draw(st.integers(1, 4)) :]:
        loss = combine(sketch, loss, term)
    scalars = [v.name for v in sketch.values if v.shape == () and v.name != loss.name]
    scalars += [name for name, shape in sketch.shapes.items() if shape == ()]
    if scalars:
        metrics += draw(st.lists(st.sampled_from(scalars), max_size=2, unique=True))
    return _spec(sketch, loss.name, [loss.name, *dict.fromkeys(metrics)])


def _spec(s: Sketch, loss: str, metrics: list[str]) -> DrawnModel:
    batch, draw = s.cluster.batch, s.draw
    read = [
        name
        for name in INPUTS
        if any(name in _as_list(entry.get("in", [])) for entry in s.ops)
    ]
    biases = [n for n in s.trainable_shapes() if n.endswith(".b")]
    frozen = biases[: draw(st.sampled_from((0, 0, 1)))]
    tails = st.integers(0, batch - 1)
    eval_batch = draw(st.sampled_from((batch, 2 * batch)))
    shuffle = draw(st.booleans())
    train: dict[str, Any] = {
        "source": "npz:train.npz",
        "batch": batch,
        "shuffle": shuffle,
        **({"seed": draw(st.integers(0, 9))} if shuffle else {}),
        "remainder": draw(st.sampled_from(("drop", "keep"))),
    }
    spec: dict[str, Any] = {
        "name": "drawn",
        "nodes": s.cluster.nodes,
        "precision": "float64",
        **({"emulate": True} if s.cluster.gpus else {}),
        "seed": draw(st.integers(0, 9)),
        "inputs": {n: str(INPUTS[n]) for n in read},
        "data": {
            "train": train,
            "eval": {"source": "npz:eval.npz", "batch": eval_batch},
        },
        "graph": [],
    }
    rules = [{"match": name, "trainable": False} for name in frozen]
    trained = [n for n in s.trainable_shapes() if n not in frozen]
    spec["train"] = draw(training(s.cluster, trained, loss, metrics))
    decayed = _decayed(spec, trained)
    if decayed and draw(st.booleans()):
        rules.append({"match": draw(st.sampled_from(decayed)), "decay": False})
    if rules:
        spec["parameters"] = rules
    _add_graph(s, spec)
    return DrawnModel(
        spec,
        dict(s.shapes),
        train_rows=draw(st.sampled_from((1, 2))) * batch + draw(tails),
        eval_rows=eval_batch + draw(tails),
        seed=draw(st.integers(0, 99)),
    )


def _add_graph(s: Sketch, spec: dict[str, Any]) -> None:
    """Add the ops to a spec, sometimes with some of them in scopes with `remat`."""
    for graph in (_with_remat_scopes(s), s.ops):
        scope = [{"place": "/node:worker/cpu", "ops": graph}]
        spec["graph"] = scope if s.in_scope else graph
        if graph is s.ops:
            return
        with suppress(GraphError):  # a scope has no op with a gradient
            differentiate(load_text(json.dumps(spec), "drawn", SUPPORT).graph)
            return


def _with_remat_scopes(s: Sketch) -> list[dict[str, Any]]:
    """Return the ops, sometimes with some of them in scopes with `remat`."""
    if not s.draw(st.sampled_from((True, False, False))):
        return s.ops
    inner = s.draw(st.lists(st.integers(0, len(s.ops)), max_size=4))
    entries: list[dict[str, Any]] = []
    for start, stop in pairwise(sorted({0, *inner, len(s.ops)})):
        if s.draw(st.sampled_from((True, True, False))):
            entries.append({"remat": True, "ops": s.ops[start:stop]})
        else:
            entries += s.ops[start:stop]
    return entries


def _decayed(spec: Mapping[str, Any], trained: list[str]) -> list[str]:
    """Return the parameters that may have `decay: false`: of optimizers with weight decay
    that have other parameters, too."""
    return [
        name
        for entry, names in optimizer_groups(spec, trained)
        if "weight_decay" in entry and len(names) > 1
        for name in names
    ]


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else names

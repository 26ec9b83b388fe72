"""Trains published models with placer, and with plain JAX and optax.

A user's file, such as `bert_net.py`, has the model and `losses`, the loss of each row or of
the batch. `Published` says how a file is used. The tests compare losses, parameters, state
and evaluations.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.export import deserialize
from safetensors.numpy import load_file
from support.row_draws import draw_by_row

import placer
from placer import Program, layers, optimizer, place_guard

ROWS, BATCH, STEPS, SEED, RATE = 24, 8, 4, 3, 1e-3
PLACEMENTS: dict[str, tuple[dict[str, int], str]] = {
    "servers": ({"worker": 2, "ps": 2}, "/node:ps/cpu"),
    "all-reduce": ({"worker": 2}, "/node:worker/cpu"),
    "split": ({"worker": 2, "ps": 1}, "/node:ps/cpu"),
    "one": ({"worker": 1}, "/node:worker/cpu"),
}
"""How many nodes there are of each kind, and the place of the optimizer.

`split` runs the function `split_losses`, which places layers of the model.
"""


@dataclass(frozen=True)
class Published:
    """A published model, and how it is called.

    Attributes:
        file: the name of the user's file. `losses` takes models, inputs, and if it has
            parameters of these names, `key` and `training`.
        rows: the rows of each input, in the order of the parameters of `losses`.
        models: the functions of the file that return the models, in the order of the
            parameters. If `state` is given, the last one returns the state.
        state: the parameter of `losses` that is state.
        by_rows: whether the loss of a row depends on this row only.
        precision: float64 if the library computes in float64 throughout.
        tolerance: of losses, relative.
    """

    file: str
    rows: Mapping[str, Any]
    models: tuple[str, ...] = ("make",)
    state: str | None = None
    by_rows: bool = True
    precision: str = "float64"
    tolerance: float = 1e-9

    @cached_property
    def net(self) -> ModuleType:
        """The module of the user's file, imported with the precision."""
        sys.modules.pop(self.file, None)
        return import_module(self.file)

    def batches(self) -> Iterator[list[Any]]:
        """Yield the rows of each step."""
        for first in range(0, STEPS * BATCH, BATCH):
            part = np.arange(first, first + BATCH) % ROWS
            rows = [jnp.asarray(values[part]) for values in self.rows.values()]
            yield [self.widened(each) for each in rows]

    def initial(self) -> dict[str, Any]:
        """Return the models by the parameters of `losses`, in the precision."""
        names = inspect.signature(self.net.losses).parameters
        made = [getattr(self.net, each)() for each in self.models]
        return dict(zip(names, jax.tree.map(self.widened, made), strict=False))

    def widened(self, leaf: Any) -> Any:
        """Return an array of the models or of the rows in the precision."""
        if self.precision == "float32" or not hasattr(leaf, "dtype"):
            return leaf
        is_float = jnp.issubdtype(leaf.dtype, np.floating)
        return leaf.astype(np.float64) if is_float else leaf


def build(model: Published, placement: str, rows: Path, **sections: Any) -> Program:
    """Return the program of a model. `rows` is a file, which is written."""
    counts, place = PLACEMENTS[placement]
    np.savez(rows, **model.rows)
    data = {"source": f"npz:{rows}", "batch": BATCH}
    program = Program(
        name="published",
        nodes={kind: {"count": count} for kind, count in counts.items()},
        precision=model.precision,
        seed=SEED,
        data={"train": data, "eval": data},
        epochs=2,
        metrics=["loss"],
        **sections,
    )
    net, name = model.net, "split_losses" if placement == "split" else "losses"
    with program, place_guard("/node:worker/cpu"):
        inputs = [
            layers.data(
                name, f"{x.dtype}[{', '.join(['batch', *map(str, x.shape[1:])])}]"
            )
            for name, x in model.rows.items()
        ]
        models = [getattr(net, each) for each in model.models]
        losses = placer.trace(
            getattr(net, name), *models, *inputs, name="net", state=model.state
        )
        loss = layers.mean(losses, name="loss")
        with place_guard(place):
            optimizer.Adam(RATE).minimize(loss)
    return program


@dataclass
class Outcome:
    """The losses of the steps, and the models and their evaluation after the last one.

    Attributes:
        evaluation: the loss over all rows, in evaluation.
        row_losses: the loss of each row in evaluation, from plain JAX.
        params: the values of a run of placer by name.
    """

    losses: list[float]
    models: dict[str, Any]
    evaluation: float
    row_losses: Any = None
    params: Any = None


Forward = Callable[..., tuple[Any, Any]]
"""From parameters, state, the key of the step, `training` and rows to losses and state."""


def train_plain(model: Published, parts: Any = None) -> Outcome:
    """Train with plain JAX, optax and the documented keys.

    `parts` splits the models into parameters and state: `of_pytrees`, or one of another
    library.
    """
    params, state, forward, join = (parts or of_pytrees)(model, model.initial())
    rows = BATCH if model.by_rows else None

    def loss(params: Any, state: Any, key: Any, *batch: Any) -> Any:
        def mean_loss(*values: Any) -> Any:
            params, *batch = values
            losses, new = forward(params, state, key, True, *batch)
            return (losses.mean(), new) if rows is None else losses.mean()

        if rows is None:
            return mean_loss(params, *batch)
        return draw_by_row(mean_loss, rows)(params, *batch), state

    rule = optax.adam(RATE)
    slots, step = rule.init(params), jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for number, batch in enumerate(model.batches(), 1):
        key = placer.step_key(SEED, "net", number)
        (value, state), gradients = step(params, state, key, *batch)
        updates, slots = rule.update(gradients, slots, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    # An evaluation draws nothing.
    key, first = jax.random.key(0), list(model.batches())[: ROWS // BATCH]
    tested = jnp.concat([forward(params, state, key, False, *b)[0] for b in first])
    return Outcome(losses, join(params, state), float(tested.mean()), tested)


def of_pytrees(model: Published, models: dict[str, Any]) -> Any:
    """Split models whose state, if any, is an argument of its own."""
    losses, name = model.net.losses, model.state
    options = {"key", "training"} & {*inspect.signature(losses).parameters}

    def forward(params: Any, state: Any, key: Any, training: bool, *batch: Any) -> Any:
        own = [*params.values(), *([] if name is None else [state]), *batch]
        given = {"key": key, "training": training}
        result = losses(*own, **{each: given[each] for each in options})
        return (result, state) if name is None else result

    params = {key: value for key, value in models.items() if key != name}
    state = models.get(name) if name else None
    return (
        params,
        state,
        forward,
        lambda params, state: params | ({} if name is None else {name: state}),
    )


def of_nnx(model: Published, models: dict[str, Any]) -> Any:
    """Split a module of Flax nnx. Each stream of random numbers has a key of its own."""
    ((name, module),) = models.items()
    graph, params, streams, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
    names = [*dict.fromkeys(path[:-1] for path, _ in nnx.to_flat_state(streams))]

    def join(params: Any, state: Any, streams: Any = streams) -> dict[str, Any]:
        return {name: nnx.merge(graph, params, streams, state, copy=True)}

    def forward(params: Any, state: Any, key: Any, training: bool, *batch: Any) -> Any:
        keyed = nnx.from_flat_state(
            (path, value.replace(_stream_value(value, key, names.index(path[:-1]))))
            for path, value in nnx.to_flat_state(streams)
        )
        module = join(params, state, keyed)[name]
        if not training:
            module.eval()
        losses = model.net.losses(module, *batch)
        return losses, nnx.split(module, nnx.Param, nnx.RngState, ...)[-1]

    return params, state, forward, join


def _stream_value(value: Any, key: Any, number: int) -> Any:
    is_key = isinstance(value, nnx.RngKey)
    return jax.random.fold_in(key, number) if is_key else jnp.zeros((), jnp.uint32)


def train(model: Published, placement: str, folder: Path, **options: Any) -> Outcome:
    """Train with placer, by default with the nodes as threads, and with the options of
    `placer.launch`. The build is `folder/build`."""
    program = build(model, placement, folder / "rows.npz")
    placer.compile(program, folder / "build", outputs=["net"])
    options = {"steps": STEPS, "in_process": True} | options
    result = placer.launch(folder / "build", **options)
    losses = [step["metrics"]["loss"] for step in result.history if "metrics" in step]
    models = restored(model, result)
    return Outcome(losses, models, result.eval["loss"], None, result.params)


def restored(model: Published, params: Any) -> dict[str, Any]:
    """Return the models with the values of a run, by the parameters of `losses`."""
    models = model.initial()
    if len(models) > 1:
        return placer.restore(models, params, "net")
    ((name, only),) = models.items()
    return {name: placer.restore(only, params, "net")}


def check(model: Published, got: Outcome, wanted: Outcome) -> None:
    """Compare a run with plain JAX."""
    np.testing.assert_allclose(got.losses, wanted.losses, rtol=model.tolerance)
    np.testing.assert_allclose(got.evaluation, wanted.evaluation, rtol=model.tolerance)
    if model.precision == "float32":
        # Adam amplifies the rounding of gradients that are 0, as of a bias of keys.
        return
    trained, expected = (jax.tree.leaves_with_path(x.models) for x in (got, wanted))
    assert [path for path, _ in trained] == [path for path, _ in expected]
    for (path, values), (_, others) in zip(trained, expected, strict=True):
        if not hasattr(values, "dtype"):  # a number or a function of a module
            continue
        if jnp.issubdtype(values.dtype, jax.dtypes.prng_key):
            continue
        np.testing.assert_allclose(
            values, others, rtol=0, atol=100 * model.tolerance, err_msg=str(path)
        )


def check_uses(model: Published, wanted: Outcome, folder: Path) -> None:
    """Resume on another placement, predict with the result, and export it."""
    first, second, saves = folder / "first", folder / "second", folder / "saves"
    for each in (first, second):
        each.mkdir()
    train(model, "servers", first, steps=STEPS // 2, checkpoint=saves)
    got = train(model, "one", second, resume=saves)
    check(model, replace(got, losses=[*wanted.losses[:2], *got.losses[-2:]]), wanted)
    same = {"rtol": 100 * model.tolerance, "atol": 100 * model.tolerance}
    build, rows, params = second / "build", dict(model.rows), got.params
    predicted = placer.predict(build, rows, params=params, in_process=True, raw=True)
    np.testing.assert_allclose(predicted["net"], wanted.row_losses, **same)
    placer.export(build, folder / "exported", params=params, outputs=["net"])
    # An evaluation does not need all state.
    names = load_file(folder / "exported" / "params.safetensors")
    needed = {each: params[each] for each in names}
    code = (folder / "exported" / "model.stablehlo").read_bytes()
    called = deserialize(bytearray(code))
    parts = [*model.batches()][: ROWS // BATCH]
    losses = jnp.concat([called.call(needed, *part)["net"] for part in parts])
    np.testing.assert_allclose(losses, wanted.row_losses, rtol=1e-5, atol=1e-5)

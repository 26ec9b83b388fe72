"""A model in which a reader, or an op, can be slow, in several modes."""

from __future__ import annotations

from pathlib import Path

from placer.compiler.driver import compile

BATCH = 8
SECONDS = 0.05
"""How long a slow part sleeps in a step."""

ROWS = """\
import time


class Rows:
    def __len__(self):
        return 256

    def __getitem__(self, i):
        if i % {batch} == {slow_row}:
            time.sleep({seconds})
        return {{"x": [i % 3, i % 5, i % 7, 1.0], "key": i % 5, "y": float(i % 11)}}


def train():
    return Rows()
"""

SLOW = """\
import time

import jax
import jax.numpy as jnp


def _sleep(x):
    time.sleep({seconds})
    return x


@jax.custom_vjp
def sleepy(x):
    return jax.pure_callback(_sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


sleepy.defvjp(lambda x: (sleepy(x), None), lambda _, g: (g,))


def slow(params, state, x, rng, training):
    return sleepy(x), state
"""

SPEC = """\
name: slowed
nodes:
  worker: {{count: 2}}
  ps: {{count: 1}}
inputs:
  x: float32[batch, 4]
  key: int64[batch]
  y: float32[batch]
data:
  train: {{source: "python:slow_rows:train", batch: {batch}}}
graph:
  - {{name: h, op: fc, in: x, size: {width}, activation: tanh, place: "{first}"}}
{extra}
  - place: "{second}"
    ops:
      - {{name: out, op: fc, in: {into}, size: 1}}
      - {{name: prediction, op: reshape, in: out, shape: [batch]}}
      - {{name: loss, op: mean_squared_error, in: [prediction, y]}}
train:
  minimize: loss
  epochs: {epochs}
{train}
  optimizer: {{op: sgd, learning_rate: 0.01{optimizer}}}
"""

SLOW_OP = """\
  - {{name: slow, op: call, fn: "slow_op:slow", in: h, out: "float32[batch, {width}]", batch: whole, place: "{place}"}}
"""

SPARSE = """\
  - {name: rows, op: embedding, in: key, sparse: true, dim: 8, place: "/node:worker/cpu"}
  - {name: both, op: concat, in: [h, rows], axis: 1, place: "/node:worker/cpu"}
"""

WORKERS = "/node:worker/cpu"


def compile_slowed(
    folder: Path,
    mode: str,
    *,
    reader: int | None = None,
    op: str | None = None,
    seconds: float = SECONDS,
    width: int = 8,
    epochs: int = 4,
) -> Path:
    """Compile the model; return the build folder.

    Args:
        folder: the folder of the spec and the build.
        mode: `sync`, `async`, `sparse` or `pipeline`.
        reader: the number of the worker with the slow reader.
        op: the node that computes the slow op.
        seconds: how long the slow part sleeps.
        width: the units of the first layer. They determine the bytes of messages.
        epochs: how often the 256 rows are read.
    """
    slow_row = -1 if reader is None else reader * BATCH // 2
    rows = ROWS.format(batch=BATCH, slow_row=slow_row, seconds=seconds)
    (folder / "slow_rows.py").write_text(rows)
    (folder / "slow_op.py").write_text(SLOW.format(seconds=seconds))
    first = second = WORKERS
    extra, into, train, optimizer = "", "h", "", ', place: "/node:ps/cpu"'
    if mode == "pipeline":
        first, second = "/node:worker:0/cpu", "/node:worker:1/cpu"
        train, optimizer = "  microbatches: 2", ""
    elif mode == "sparse":
        extra, into = SPARSE, "both"
    elif mode == "async":
        optimizer += ", update: async"
    if op is not None:
        extra, into = SLOW_OP.format(place=f"/node:{op}/cpu", width=width), "slow"
    spec = folder / "slowed.yaml"
    spec.write_text(
        SPEC.format(
            batch=BATCH,
            width=width,
            epochs=epochs,
            first=first,
            second=second,
            extra=extra.rstrip(),
            into=into,
            train=train,
            optimizer=optimizer,
        )
    )
    compile(spec, folder / "build")
    return folder / "build"

"""Compiling is linear in the ops of a model and in the nodes of a cluster.

Python's calls are counted, which are the same in every run, as seconds are not;
bench/compile_time.py has the seconds.
"""

import cProfile
import runpy
import shutil
from itertools import pairwise

import pytest

from placer.compiler import compile as compile_model
from placer.resources import find
from placer.spec import load

chain = runpy.run_path(find("bench/compile_time.py"))["spec"]


def digits(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, ps: {{count: 2}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=n,
    )


def servers(n):
    """Every server holds a block of each weight."""
    return spec(
        nodes=f"worker: {{count: 2}}, ps: {{count: {n}}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=2,
        extra="slicing: {min_block: 1}",
    )


def all_reduce(n):
    return spec(
        nodes=f"worker: {{count: {n}}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:worker",
        batch=n,
    )


def microbatches(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, ps: {{count: 2}}",
        places=("/node:worker", "/node:worker"),
        optimizer="/node:ps",
        batch=4 * n,
        extra="microbatches: 4",
    )


def stages(n):
    """A pipeline of two stages, whose workers are each different from the others."""
    return spec(
        nodes=f"worker: {{count: {2 * n}}}",
        places=(f"/node:worker:0-{n - 1}", f"/node:worker:{n}-{2 * n - 1}"),
        optimizer="/node:worker",
        batch=4 * n,
        extra="microbatches: 4",
    )


def heter(n):
    return spec(
        nodes=f"worker: {{count: {n}}}, heter: {{count: 2}}",
        places=("/node:worker", "/node:heter"),
        optimizer="/node:worker",
        batch=n,
    )


def spec(*, nodes, places, optimizer, batch, extra=""):
    first, second = places
    return f"""
name: many
nodes: {{{nodes}}}
inputs: {{x: "float32[batch, 8]", y: "int32[batch]"}}
data: {{train: {{source: "npz:x.npz", batch: {batch}}}}}
graph:
  - {{name: h, op: fc, in: x, size: 500, activation: relu, place: "{first}"}}
  - {{name: z, op: fc, in: h, size: 5, place: "{second}"}}
  - {{name: loss, op: softmax_cross_entropy, in: [z, y], place: "{second}"}}
train:
  minimize: loss
  optimizer: {{op: sgd, learning_rate: 0.1, place: "{optimizer}"}}
  {extra}
"""


def calls_to_compile(folder, text):
    file, build = folder / "many.yaml", folder / "build"
    file.write_text(text)
    with cProfile.Profile() as profile:
        compile_model(load(file), build)
    shutil.rmtree(build)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (chain, 100),
        (digits, 40),
        (servers, 20),
        (all_reduce, 40),
        (microbatches, 30),
        (stages, 10),
        (heter, 20),
    ],
)
def test_what_is_added_costs_as_much_as_what_was_there(tmp_path, written, size):
    calls_to_compile(tmp_path, written(size))  # imports are made, patterns compiled
    sizes = size, 2 * size, 4 * size
    found = [calls_to_compile(tmp_path, written(n)) for n in sizes]
    few, many = (b - a for a, b in pairwise(found))
    assert many < 1.03 * 2 * few
